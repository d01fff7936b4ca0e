"""Draws the house for `architecture.md`, from the imports that are there."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "lostflops"
# The modules that data passes, in order. What each does is the first sentence of its docstring.
TO_THE_PAGE = (
    "cli/commands/asking/why.py",
    "ingest/job.py",
    "ingest/formats.py",
    "ingest/kineto/reader.py",
    "ingest/part.py",
    "ingest/assembly.py",
    "store/trace.py",
    "session/asking.py",
    "recipes/steps/ledger.py",
    "finding.py",
    "causes/__init__.py",
    "report/first_page/page.py",
    "report/terminal.py",
)
TO_A_RUN = (
    "cli/commands/recording/record.py",
    "capture/record/recording.py",
    "capture/record/new_run.py",
    "capture/record/injected/sitecustomize.py",
    "capture/record/injected/lostflops_recorder/__init__.py",
    "capture/record/injected/lostflops_recorder/steps/stepping.py",
    "capture/record/injected/lostflops_recorder/step_log.py",
    "capture/record/injected/lostflops_recorder/windows/window.py",
    "capture/record/outcome.py",
)


def layers() -> list[list[str]]:
    """The floors from the top down, those of one height together, as import-linter holds us to."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rows = next(c["layers"] for c in declared if c["type"] == "layers")
    names = ([name.strip(" ()") for name in row.split("|")] for row in rows)
    return [[name for name in row if _exists(name)] for row in names]


def _exists(floor: str) -> bool:
    return (SOURCE / floor).is_dir() or (SOURCE / f"{floor}.py").is_file()


@cache
def imports() -> Mapping[str, frozenset[str]]:
    """Which floors each floor imports, inside functions too."""
    found: dict[str, set[str]] = {name: set() for row in layers() for name in row}
    for file in SOURCE.rglob("*.py"):
        here = file.relative_to(SOURCE)
        floor = here.parts[0].removesuffix(".py")
        if floor in found:
            above = len(here.parts) - 1
            found[floor] |= {name for name in _named(ast.parse(file.read_text()), above) if name in found}
    return {floor: frozenset(names - {floor}) for floor, names in found.items()}


def _named(tree: ast.Module, above: int) -> Iterator[str]:
    """The floors that a file imports which lies `above` folders below the package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module == "lostflops":
            names = [f"lostflops.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        elif isinstance(node, ast.ImportFrom) and node.level == above + 1:
            names = [f"lostflops.{node.module}"] if node.module else []
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("lostflops."))


def drawing() -> str:
    """The floors and what each stands on; an arrow that follows from two others is left out."""
    graph = imports()
    below = {floor: _reached(floor, graph) for floor in graph}
    lines = ["```mermaid", "flowchart TD"]
    for number, row in enumerate(layers()):
        if row:
            lines += [f"  subgraph floor{number}[ ]", *(f"    {name}" for name in row), "  end"]
    for floor, names in graph.items():
        for name in sorted(names):
            if not any(name in below[other] for other in names - {name}):
                lines.append(f"  {floor} --> {name}")
    return "\n".join([*lines, "```"])


def _reached(floor: str, graph: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """All that a floor stands on, near or far."""
    found: set[str] = set()
    ahead = [floor]
    while ahead:
        for name in graph[ahead.pop()] - found:
            found.add(name)
            ahead.append(name)
    return frozenset(found)


def floors() -> str:
    """Each floor in a sentence, from its own first line."""
    lines = ["| floor | what it is for |", "| --- | --- |"]
    lines += [f"| `{name}` | {_first_line(name)} |" for row in layers() for name in row]
    return "\n".join(lines)


def way(modules: Sequence[str]) -> str:
    """The modules that data passes, each in a sentence."""
    rows = (f"{number}. `{name}`: {_said(SOURCE / name)}" for number, name in enumerate(modules, 1))
    return "\n".join(rows)


def _first_line(floor: str) -> str:
    folder = SOURCE / floor
    return _said(folder / "__init__.py" if folder.is_dir() else SOURCE / f"{floor}.py")


def _said(file: Path) -> str:
    doc = ast.get_docstring(ast.parse(file.read_text())) or ""
    return " ".join(doc.split("\n\n")[0].split())
