"""The house stands as it is drawn: what each floor may take from outside is an allow-list, and stays one."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple
from zipfile import ZipFile

import house

from lostflops import run_folder
from lostflops.recipes import recipes

SOURCE = Path(__file__).parents[2] / "src" / "lostflops"
# From outside of Python and of lostflops; a floor that is not here takes nothing. The layers between the
# floors stand in pyproject.toml.
FROM_OUTSIDE = {
    "__init__": {"polars"},
    "columns": {"polars"},
    "tables": {"polars"},
    "naming": {"polars"},
    "intervals": {"numpy", "polars"},
    "store": {"msgspec", "polars"},
    "ingest": {"adbc_driver_manager", "adbc_driver_sqlite", "msgspec", "numpy", "polars"},
    "recipe": {"polars"},
    "recipes": {"numpy", "polars"},
    "session": {"polars"},
    "testing": {"polars"},
    "privacy": {"polars"},
    "replay": {"numpy", "polars"},
    "causes": {"polars"},
    "frameworks": {"polars"},
    "export": {"msgspec", "numpy", "polars"},
    "report": {"duckdb", "msgspec", "numpy", "polars", "rich"},
    "cluster": {"distributed", "msgspec", "polars"},
    "capture": {"cryptography", "ruamel"},
    "machine": {"polars"},
    "plan": {"msgspec"},
    "lab": {"numpy", "polars", "rich"},
    "experiment": {"msgspec", "numpy", "polars", "rich"},
    "watch": {"msgspec", "numpy", "polars", "rich"},
    "viewer": {"anyio", "anywidget", "msgspec", "numpy", "polars", "starlette", "traitlets", "uvicorn"},
    "cli": {"IPython", "msgspec", "polars", "rich"},
    "optimize": {"peft", "torch", "torchao", "transformer_engine", "transformers"},
    "integrations": {"accelerate", "lightning_utilities", "torch", "transformers"},
}
# What a file takes beyond its floor. What runs inside a job takes what the job has, and its own package.
MORE = {
    "capture/record/injected": {"lostflops_recorder", "nvtx"},
    "experiment/tune/injected": {"lostflops_tuner"},
    "machine/bench/scripts": {"torch"},
    "lab/exercises/scripts": {"deepspeed", "duckdb", "numpy", "torch", "transformers"},
}
MOST_UP = 3  # calls upward, of the ways that `docs/house.py` draws
# Floors beside the stack, and all that they know of it.
BESIDE = {
    "optimize": {"optimize", "copies", "units", "errors"},
    "plan": {"plan", "naming", "copies", "units", "errors"},
    "copies": {"copies", "units", "errors"},
}


class Seen(NamedTuple):
    """What the tests ask of all files, which are parsed once."""

    imports: list[tuple[Path, str]]  # those inside functions too
    public_classes: list[str]
    lengths: list[int]  # of functions


@cache
def seen() -> Seen:
    found = Seen([], [], [])
    for path in sorted(SOURCE.rglob("*.py")):
        file, tree = path.relative_to(SOURCE), ast.parse(path.read_text())
        top = (node.name for node in tree.body if isinstance(node, ast.ClassDef))
        found.public_classes.extend(name for name in top if not name.startswith("_"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found.imports.extend((file, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                found.imports.append((file, node.module))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.lengths.append((node.end_lineno or 0) - node.lineno + 1)
    return found


def floor(file: Path) -> str:
    return file.parts[0].removesuffix(".py")


def test_a_floor_takes_from_outside_only_what_it_is_allowed() -> None:
    for file, name in seen().imports:
        package = name.partition(".")[0]
        if package == "lostflops" or package in sys.stdlib_module_names:
            continue
        more = (names for folder, names in MORE.items() if str(file).startswith(f"{folder}/"))
        assert package in FROM_OUTSIDE.get(floor(file), set()).union(*more), f"{file} imports {name}"


def test_what_stands_beside_the_stack_knows_nothing_of_it() -> None:
    for file, name in seen().imports:
        package, _, rest = name.partition(".")
        if package == "lostflops" and floor(file) in BESIDE:
            assert rest.partition(".")[0] in BESIDE[floor(file)], f"{file} imports {name}"


def test_only_callbacks_for_frameworks_turn_remedies_on() -> None:
    for file, name in seen().imports:
        if name.startswith("lostflops.optimize"):
            assert floor(file) in ("optimize", "integrations"), f"{file} imports {name}"


# About a dozen; a module that is data, and `__init__`, count as well.
MOST_MODULES, LONGEST_MODULE, LONGEST_FUNCTION, FUNCTIONS_ABOVE = 14, 600, 50, 0.015


def test_no_folder_holds_much_more_than_a_dozen_modules() -> None:
    folders = Counter(str(file.parent.relative_to(SOURCE)) for file in SOURCE.rglob("*.py"))
    for folder, modules in folders.items():
        assert modules <= MOST_MODULES, f"{folder} holds {modules} modules"


def test_a_module_can_be_read_in_one_sitting() -> None:
    lengths = {str(f.relative_to(SOURCE)): len(f.read_text().splitlines()) for f in SOURCE.rglob("*.py")}
    assert median(lengths.values()) <= 150
    for file, length in lengths.items():
        assert length <= LONGEST_MODULE, f"{file} has {length} lines"


def test_no_two_public_classes_have_one_name() -> None:
    places = Counter(seen().public_classes)
    twice = {name for name, times in places.items() if times > 1}
    assert not twice, f"{twice}"


def test_no_two_modules_of_tests_have_one_name() -> None:
    """pytest imports those outside of packages by their names alone: one would hide the other."""
    tests = SOURCE.parents[1] / "tests"
    alone = [file for file in tests.rglob("*.py") if not (file.parent / "__init__.py").exists()]
    many = Counter(file.name for file in alone if file.name != "conftest.py")
    assert [name for name, times in many.items() if times > 1] == []


def test_functions_fit_in_a_glance() -> None:
    lengths = seen().lengths
    long = sum(length > LONGEST_FUNCTION for length in lengths)
    assert long <= FUNCTIONS_ABOVE * len(lengths), f"{long} of {len(lengths)} functions"


def test_the_runner_names_no_recipe() -> None:
    names = set(recipes())
    for file in ("recipe.py", "session/asking.py", "session/batches.py"):
        said = {
            n.value
            for n in ast.walk(ast.parse((SOURCE / file).read_text()))
            if isinstance(n, ast.Constant) and isinstance(n.value, str)
        }
        assert not names & said, f"{file} names {names & said}"


def test_reports_read_units_from_types_and_never_from_names_or_sentences() -> None:
    """A table's columns are shown by kind and unit of their type: no regular expression decides."""
    for file in ("report/words/cells.py", "report/first_page/answer.py", "report/table.py"):
        text = (SOURCE / file).read_text()
        assert "import re\n" not in text and "endswith(" not in text, file


def test_the_drawing_follows_the_imports_and_points_down() -> None:
    graph, rows = house.imports(), house.layers()
    height = {name: -number for number, row in enumerate(rows) for name in row}
    assert "errors" in graph["store"] and "store" not in graph["errors"]
    for floor, below in graph.items():
        assert all(height[name] <= height[floor] for name in below), floor
    arrows = [line.split() for line in house.drawing().splitlines() if "-->" in line]
    assert all(two in graph[one] for one, _, two in arrows)
    assert len({tuple(arrow) for arrow in arrows}) == len(arrows) <= 61, "a drawing that can be read"


def test_a_way_crosses_each_floor_once_and_seldom_goes_up() -> None:
    graph, rows = house.imports(), house.layers()
    height = {name: -number for number, row in enumerate(rows) for name in row}
    for way in (house.TO_THE_PAGE, house.TO_A_RUN):
        floors = [one for one, _ in groupby(floor(Path(name)) for name in way)]
        assert len(set(floors)) == len(floors), f"{floors}: a floor is left and entered again"
        steps = list(pairwise(floors))
        assert sum(height[after] > height[before] for before, after in steps) <= MOST_UP
        # The data is handed on by an import: of the floor after, of that before, or of one above both.
        for before, after in steps:
            assert any({before, after} <= graph[one] | {one} for one in floors), f"{before} -> {after}"


def test_a_way_names_modules_that_say_what_they_are_for() -> None:
    for name in (*house.TO_THE_PAGE, *house.TO_A_RUN):
        assert ast.get_docstring(ast.parse((SOURCE / name).read_text())), name


def test_importing_lostflops_takes_no_time_and_no_library() -> None:
    code = """
import sys, time
before = time.process_time()
import lostflops
print(time.process_time() - before, sorted({name.partition('.')[0] for name in sys.modules}))
"""
    said = [subprocess.check_output([sys.executable, "-c", code], text=True) for _ in range(3)]
    assert min(float(text.split()[0]) for text in said) < 0.15  # of the processor, so load does not count
    assert not any(name in said[0] for name in ("polars", "numpy", "msgspec", "rich", "torch"))


def test_the_wheel_holds_the_package_and_nothing_of_tests(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=SOURCE.parents[1], check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as packed:
        names = {Path(name) for name in packed.namelist() if not name.endswith("/")}
        for shared in ("node.py", "run_folder.py"):
            inside = packed.read(f"lostflops/capture/record/injected/lostflops_recorder/{shared}")
            assert inside == (SOURCE / shared).read_bytes(), "a file, not a link"
    about = {name for name in names if name.parts[0].endswith(".dist-info")}
    assert {name.parts[0] for name in names - about} == {"lostflops"}
    files = {file.relative_to(SOURCE.parent) for file in SOURCE.rglob("*") if file.is_file()}
    left = re.compile(rf"__pycache__|{run_folder.SEEN}")  # by running
    assert names - about == {file for file in files if not left.search(str(file))}
    assert not [name for name in names if name.name.startswith(("test_", "conftest"))]
    assert any(name.suffix == ".js" for name in names), "what the report draws with"
