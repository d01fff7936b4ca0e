"""Which wrong versions of the core do the tests notice? `make mutants` asks, and prints who survives.

A fork per mutant runs the module's tests up to the first failure and dies: of a process that has collected
them (`session`) where only functions are changed, and else, or where those seem to pass, of one that has the
libraries loaded. Tests that take many times as long as honest ones hang, which counts as noticed.
"""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

import hypothesis
import msgspec
import pytest

import untold_order
from acceptance import benchmark_page
from fewer_draws import draw_at_most

from .changes import Change, changes
from .core import CORE
from .equivalent import why
from .session import NOT_HERE, NOTICED, SURVIVES, Session

ROOT = Path(__file__).parents[2]
COUNTED = ROOT / "benchmarks" / "mutants.json"
PATIENCE, LEAST_PATIENCE = 4, 10  # times the honest run, and seconds
OPTIONS = ("-q", "--no-header", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist")


class Survivor(NamedTuple):
    line: str  # the text of its line
    words: str
    why: str | None  # why it is no worse than the original


class Result(NamedTuple):
    """What became of a module's mutants."""

    module: str
    possible: int
    tried: int
    survivors: list[Survivor]

    @property
    def equivalent(self) -> int:
        return sum(survivor.why is not None for survivor in self.survivors)

    @property
    def row(self) -> str:
        noticed, rest = self.tried - len(self.survivors), self.tried - self.equivalent
        share = f"{100 * noticed / rest:.0f} %" if rest else ""
        name = self.module.removeprefix("lostflops.")
        return f"| `{name}` | {self.possible} | {self.tried} | {noticed} | {self.equivalent} | {share} |"


class _Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a changed tree."""

    def __init__(self, name: str, path: Path, code: CodeType) -> None:
        self.name, self.path, self.code = name, path, code

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        exec(self.code, module.__dict__)


def _path(module: str) -> Path:
    base = ROOT / "src" / Path(*module.split("."))
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


class _Turned:
    """A pytest plugin: from the start every order that Polars does not promise is turned round."""

    def pytest_configure(self) -> None:
        untold_order.reverse()


class _ExamplesFirst:
    """A pytest plugin: tests that draw their cases come last, and draw fewer."""

    def __init__(self, drawn: int) -> None:
        self.drawn = drawn

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: hypothesis.is_hypothesis_test(item.function))  # type: ignore[attr-defined]
        draw_at_most(self.drawn, items)


def _tests_notice(module: str, tree: ast.Module, tests: Sequence[str], drawn: int, turned: bool) -> int:
    """Exit status of the tests with `tree` in the module's place; for a child."""
    if turned:
        untold_order.reverse()
    path = _path(module)
    sys.meta_path.insert(0, _Mutated(module, path, _compiled(tree, path)))
    return int(pytest.main(["-x", *OPTIONS, *tests], [_ExamplesFirst(drawn)]))


def _compiled(tree: ast.Module, path: Path) -> CodeType:
    return compile(ast.fix_missing_locations(tree), path, "exec")


def _in_child(
    module: str,
    tree: ast.Module,
    tests: Sequence[str],
    drawn: int,
    turned: bool,
    patience: float,
    log: Path,
) -> int | None:
    """The tests' exit status, or None where they did not end in time."""
    child = os.fork()
    if not child:
        status = 70
        try:
            os.setsid()
            out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1)
            os.dup2(out, 2)
            status = _tests_notice(module, tree, tests, drawn, turned)
        finally:
            os._exit(status)
    until = time.monotonic() + patience
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def tried(
    module: str,
    number: int,
    seed: int,
    drawn: int,
    until: float,
    log: Path,
    lines: range | None,
    quick: bool = True,
    confirmed: bool = True,
    kept: Result | None = None,
) -> Result:
    """Up to `number` of the module's mutants, drawn by `seed`, against its tests.

    With `kept`, an earlier result, those that survived then and have no reason.
    """
    source = _path(module).read_text()
    tests = CORE[module]
    started = time.monotonic()
    honest = ast.parse(source)
    # An order that is no longer told is one that another version of Polars may give: where the tests bear it,
    # all such orders are turned round. Polars itself cannot turn every table.
    turned = _in_child(module, honest, tests, drawn, True, 600, log) == 0
    if not turned:
        started = time.monotonic()
    if not turned and _in_child(module, honest, tests, drawn, False, 600, log) != 0:
        sys.exit(f"The tests of {module} fail without any change: {log}")
    patience = max(LEAST_PATIENCE, PATIENCE * (time.monotonic() - started))
    found = changes(ast.parse(source))
    numbers = [n for n, change in enumerate(found) if lines is None or change.line in lines]
    lines_of = source.splitlines()
    explained = [s for s in kept.survivors if why(module, s.line, s.words)] if kept is not None else []
    if kept is not None:
        before = {(s.line, s.words) for s in kept.survivors if s not in explained}
        numbers = [n for n in numbers if (lines_of[found[n].line - 1].strip(), found[n].words) in before]
        number = len(numbers)
    sample = sorted(random.Random(f"{seed} {module}").sample(numbers, min(number, len(numbers))))
    survivors: list[Survivor] = []
    done = 0
    session = _session(module, tests, drawn, turned, log) if quick else None
    for which in sample:
        if time.monotonic() > until:
            break
        tree = ast.parse(source)
        change: Change = changes(tree)[which]
        words = change.words
        change.apply()
        code = _compiled(tree, _path(module))
        line = lines_of[change.line - 1].strip()
        known = why(module, line, words)
        found_out = NOT_HERE if session is None else session.tried(code)
        seems = found_out == SURVIVES and (known is not None or not confirmed)
        if seems or (
            found_out != NOTICED and _in_child(module, tree, tests, drawn, turned, patience, log) == 0
        ):
            survivors.append(Survivor(line, words, known))
            said = "is equivalent" if survivors[-1].why else "survives"
            print(f"    {said}: {module}:{change.line}  {words}", flush=True)
        done += 1
    if session is not None:
        session.end()
    if kept is not None:
        done = min(kept.tried, len(found)) if done == len(sample) else 0
        here = {(lines_of[change.line - 1].strip(), change.words) for change in found}
        survivors += [s for s in explained if (s.line, s.words) in here]
    return Result(module, len(found), done, survivors)


def _session(module: str, tests: Sequence[str], drawn: int, turned: bool, log: Path) -> Session:
    """A process with the tests collected, all orders turned round as the module's tests bear it."""
    path = _path(module)
    honest = _compiled(ast.parse(path.read_text()), path)
    started: list[object] = [_Turned()] if turned else []
    session = Session(path, honest, [*OPTIONS, *tests], [*started, _ExamplesFirst(drawn)], log)
    if session.failed != 0:
        sys.exit(f"The tests of {module} fail without any change: {log}")
    return session


def main() -> None:
    """Try mutants of the chosen modules and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", help="parts of the modules' names; all without any")
    parser.add_argument("--number", type=int, default=30, help="mutants per module")
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--examples", type=int, default=100, help="most cases that a property test draws")
    parser.add_argument("--minutes", type=float, default=60, help="stop after so long")
    parser.add_argument("--lines", help="only changes of these lines: FIRST-LAST")
    parser.add_argument("--from-the-start", action="store_true", help="import and collect for each mutant")
    parser.add_argument("--unconfirmed", action="store_true", help="do not try survivors from the start")
    parser.add_argument("--again", action="store_true", help="only those that survived in the kept table")
    parser.add_argument("--write", action="store_true", help="write the table into benchmarks/README.md")
    asked = parser.parse_args()
    lines = None
    if asked.lines:
        first, last = asked.lines.split("-")
        lines = range(int(first), int(last) + 1)
    chosen = [m for m in CORE if not asked.modules or any(part in m for part in asked.modules)]
    os.chdir(ROOT)
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]  # a first failure is enough
    hypothesis.settings.register_profile(
        "mutants", phases=phases, derandomize=True, database=None, deadline=None
    )
    hypothesis.settings.load_profile("mutants")
    for name in ("polars", "numpy", "torch", "msgspec", "polars.testing"):
        importlib.import_module(name)
    end = time.monotonic() + 60 * asked.minutes
    log = Path(tempfile.mkstemp(prefix="lostflops-mutants-", suffix=".log")[1])
    results: list[Result] = []
    known = _kept()
    for left, module in zip(range(len(chosen), 0, -1), chosen, strict=True):
        now = time.monotonic()
        results.append(
            tried(
                module,
                asked.number,
                asked.seed,
                asked.examples,
                now + (end - now) / left,
                log,
                lines,
                not asked.from_the_start,
                not asked.unconfirmed,
                known.get(module) if asked.again else None,
            )
        )
        r = results[-1]
        print(
            f"{module}: {r.tried - len(r.survivors)} of {r.tried} noticed, {time.monotonic() - now:.0f} s",
            flush=True,
        )
    print(f"\n{HEADER}", *(r.row for r in results), sep="\n")
    if asked.write:
        _write(results)


HEADER = """\
| module | possible | tried | noticed | equivalent | noticed of the others |
| --- | ---: | ---: | ---: | ---: | ---: |"""


def _kept() -> dict[str, Result]:
    """What is kept of earlier runs."""
    return msgspec.json.decode(COUNTED.read_bytes(), type=dict[str, Result]) if COUNTED.exists() else {}


def _explained(result: Result) -> Result:
    """A result that was kept, with what is known of its survivors by now."""
    told = [s._replace(why=why(result.module, s.line, s.words)) for s in result.survivors]
    return result._replace(survivors=told)


def _write(results: Sequence[Result]) -> None:
    """Put what was counted of these modules, beside what is known of others, onto the benchmarks' page."""
    known = _kept()
    known |= {r.module: r for r in results if r.tried}
    known = {module: _explained(known[module]) for module in CORE if module in known}
    COUNTED.write_bytes(msgspec.json.format(msgspec.json.encode(known), indent=1) + b"\n")
    every = [(r.module.removeprefix("lostflops."), s) for r in known.values() for s in r.survivors]
    listed = [
        f"| `{module}` | {_code(s.line)} | {_code(s.words)} | {s.why or '**no test yet**'} |"
        for module, s in sorted(every, key=lambda one: one[1].why is not None)
    ]
    tried, lost = sum(r.tried for r in known.values()), sum(len(r.survivors) for r in known.values())
    same = sum(r.equivalent for r in known.values())
    whole = f"In all {tried - lost:,} of {tried - same:,} that are not equivalent: "
    benchmark_page.put(
        "mutants",
        [
            "", HEADER, *(r.row for r in known.values()), "",
            f"{whole}{(tried - lost) / max(1, tried - same):.1%} are noticed.", "",
            "Survivors, those that a test should notice first:", "",
            "| module | line | change | why no test notices it |", "| --- | --- | --- | --- |", *listed, "",
        ],
    )  # fmt: skip


def _code(text: str) -> str:
    return f"`{text.replace('|', chr(92) + '|').replace('`', '')[:70]}`"


if __name__ == "__main__":
    main()
