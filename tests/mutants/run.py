"""Which wrong versions of the core do the tests notice? `make mutants` asks, and prints who survives.

A child process per mutant, forked from one that has the libraries loaded: it installs the mutant, runs the
module's tests up to the first failure and dies. What it does not notice within the time of many honest runs
counts as noticed: the tests hang then.
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
import pytest

import untold_order
from fewer_draws import draw_at_most

from .changes import Change, changes
from .core import CORE

ROOT = Path(__file__).parents[2]
PATIENCE, LEAST_PATIENCE = 4, 10  # times the honest run, and seconds


class Survivor(NamedTuple):
    line: int
    words: str


class Result(NamedTuple):
    """What became of a module's mutants."""

    module: str
    possible: int
    tried: int
    survivors: list[Survivor]


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


class _ExamplesFirst:
    """A pytest plugin: tests that draw their cases come last, and draw fewer."""

    def __init__(self, drawn: int) -> None:
        self.drawn = drawn

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: hypothesis.is_hypothesis_test(item.function))  # type: ignore[attr-defined]
        draw_at_most(self.drawn, items)


def _tests_notice(module: str, tree: ast.Module, tests: Sequence[str], drawn: int, turned: bool) -> int:
    """Exit status of the tests with `tree` in the module's place; for a child."""
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]  # a first failure is enough
    hypothesis.settings.register_profile(
        "mutants", phases=phases, derandomize=True, database=None, deadline=None
    )
    hypothesis.settings.load_profile("mutants")
    if turned:
        untold_order.reverse()
    path = _path(module)
    sys.meta_path.insert(0, _Mutated(module, path, compile(ast.fix_missing_locations(tree), path, "exec")))
    asked = ["-x", "-q", "--no-header", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    return int(pytest.main(asked, [_ExamplesFirst(drawn)]))


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
    module: str, number: int, seed: int, drawn: int, until: float, log: Path, lines: range | None
) -> Result:
    """Up to `number` of the module's mutants, drawn by `seed`, against its tests."""
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
    sample = sorted(random.Random(f"{seed} {module}").sample(numbers, min(number, len(numbers))))
    survivors: list[Survivor] = []
    done = 0
    for which in sample:
        if time.monotonic() > until:
            break
        tree = ast.parse(source)
        change: Change = changes(tree)[which]
        words = change.words
        change.apply()
        if _in_child(module, tree, tests, drawn, turned, patience, log) == 0:
            survivors.append(Survivor(change.line, words))
            print(f"    survives: {module}:{change.line}  {words}", flush=True)
        done += 1
    return Result(module, len(found), done, survivors)


def main() -> None:
    """Try mutants of the chosen modules and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", help="parts of the modules' names; all without any")
    parser.add_argument("--number", type=int, default=30, help="mutants per module")
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--examples", type=int, default=100, help="most cases that a property test draws")
    parser.add_argument("--minutes", type=float, default=60, help="stop after so long")
    parser.add_argument("--lines", help="only changes of these lines: FIRST-LAST")
    asked = parser.parse_args()
    lines = None
    if asked.lines:
        first, last = asked.lines.split("-")
        lines = range(int(first), int(last) + 1)
    chosen = [m for m in CORE if not asked.modules or any(part in m for part in asked.modules)]
    os.chdir(ROOT)
    for name in ("polars", "numpy", "torch", "msgspec", "polars.testing"):
        importlib.import_module(name)
    end = time.monotonic() + 60 * asked.minutes
    log = Path(tempfile.mkstemp(prefix="lostflops-mutants-", suffix=".log")[1])
    results: list[Result] = []
    for left, module in zip(range(len(chosen), 0, -1), chosen, strict=True):
        now = time.monotonic()
        results.append(
            tried(module, asked.number, asked.seed, asked.examples, now + (end - now) / left, log, lines)
        )
        r = results[-1]
        print(
            f"{module}: {r.tried - len(r.survivors)} of {r.tried} noticed, {time.monotonic() - now:.0f} s",
            flush=True,
        )
    print("\n| module | possible | tried | noticed | share |\n| --- | ---: | ---: | ---: | ---: |")
    for r in results:
        noticed = r.tried - len(r.survivors)
        share = f"{100 * noticed / r.tried:.0f} %" if r.tried else ""
        print(f"| `{r.module}` | {r.possible} | {r.tried} | {noticed} | {share} |")


if __name__ == "__main__":
    main()
