"""`make acceptance`: plant every cause, read the first page, and say which causes it named.

python -m acceptance.run [--only WORDS] [--seed N] [--real] [--synthetic] [--write] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from .benchmark_page import put
from .cases import Case, cases, cost, milliseconds, played
from .grading import Verdict, judged, page_of
from .real import examined_for_real, real_cases

TARGET = 0.95


@dataclass(frozen=True)
class Line:
    """A case and its twin, judged."""

    case: str
    truth: str
    step: float
    cost: float | None
    verdict: Verdict
    twin: Verdict | None
    twin_step: float
    folder: str


@dataclass(frozen=True)
class Totals:
    named: tuple[int, int]
    quiet: tuple[int, int]
    steps: tuple[int, int]
    costs: tuple[int, int]
    unjudged: int

    @property
    def met(self) -> bool:
        return all(n >= TARGET * of for n, of in (self.named, self.quiet, self.steps))


def examined(case: Case, folder: Path) -> Line:
    """Run one case and its twin, and judge both pages."""
    place = folder / case.name.replace(", ", "--").replace(" ", "-")
    faulty = played(case.job, place / "run")
    twin = played(case.twin, place / "twin") if case.twin else None
    lost = None if case.truth.quiet else cost(case, faulty, twin)
    verdict = judged(page_of(faulty.folder), case.truth, faulty.step, lost)
    other = None
    if twin:
        healthy = type(case.truth)("healthy", quiet=True)
        other = judged(page_of(twin.folder), healthy, twin.step, None)
    return Line(
        case.name, case.truth.what, faulty.step, lost, verdict, other, twin.step if twin else 0.0, str(place)
    )


def totals(lines: Sequence[Line]) -> Totals:
    named = [x.verdict.named for x in lines if x.verdict.named is not None]
    every = [v for x in lines for v in (x.verdict, x.twin) if v is not None]
    quiet = [v.quiet for v in every if v.quiet is not None]
    costs = [x.verdict.cost_right for x in lines if x.verdict.cost_right is not None]
    steps = [v.step_right for v in every if v.step_right is not None]
    return Totals(
        (sum(named), len(named)),
        (sum(quiet), len(quiet)),
        (sum(steps), len(steps)),
        (sum(costs), len(costs)),
        sum(v.step_right is None for v in every),
    )


def misses(lines: Sequence[Line]) -> list[str]:
    """What is wrong, a line each."""
    said: list[str] = []
    for line in lines:
        for verdict, step, which in (
            (line.verdict, line.step, "run"),
            (line.twin, line.twin_step, "twin"),
        ):
            if verdict is None:
                continue
            faults: list[str] = []
            if verdict.named is False or verdict.quiet is False or verdict.step_right is None:
                faults.append(verdict.why_not)
            if verdict.step_right is False:
                faults.append(f"step {_ms(verdict.shown)}, true {_ms(step)}")
            if verdict.cost_right is False:
                faults.append(f"the finding costs {_ms(verdict.cost)}, the fault {_ms(line.cost)}")
            if faults:
                said.append(f"{line.case} ({which}; {line.folder}/{which}): {'; '.join(faults)}")
                said.append(f"    truth: {line.truth if which == 'run' else 'healthy'}")
                said.append(f"    page: [{verdict.finding}] {verdict.claim}")
    return said


def _ms(ns: float | None) -> str:
    return "none" if ns is None else f"{milliseconds(ns)} ms"


def _share(pair: tuple[int, int]) -> str:
    return f"{pair[0]} of {pair[1]}"


def summary(found: Totals) -> str:
    left = f" {found.unjudged} runs were not judged: the machine was busy." if found.unjudged else ""
    return (
        f"The first finding names the cause in {_share(found.named)} runs; {_share(found.quiet)} healthy "
        f"runs have no finding above 5 % of the step; the step is within 3 % in {_share(found.steps)}; the "
        f"finding's own time is within 40 % of what the fault costs in {_share(found.costs)}.{left}"
    )


def table(lines: Sequence[Line]) -> list[str]:
    """A Markdown table of all cases."""
    rows = [
        "| planted | truth | costs | step shown / true | first finding | named | healthy twin |",
        "| --- | --- | ---: | ---: | --- | --- | --- |",
    ]
    for x in lines:
        v = x.verdict
        named = _mark(v.named if v.named is not None else v.quiet) or v.why_not
        steps = f"{_ms(v.shown)} / {_ms(x.step)}{' **wrong**' if v.step_right is False else ''}"
        twin = "" if x.twin is None else _mark(x.twin.quiet)
        if x.twin is not None and x.twin.step_right is False:
            twin += ", step wrong"
        claim = " ".join(v.claim.split()).replace("|", "/")
        finding = f"{claim}" if v.finding else "none"
        lost = "" if x.cost is None else _ms(x.cost)
        rows.append(f"| {x.case} | {x.truth} | {lost} | {steps} | {finding} | {named} | {twin} |")
    return rows


def _mark(right: bool | None) -> str:
    return "" if right is None else "yes" if right else "**no**"


def every_case(seed: int, only: str, folder: Path, workers: int = 2) -> list[Line]:
    """All synthetic cases, judged; work is spread over processes."""
    wanted = list(cases(seed, only))
    if workers < 2:
        return [examined(case, folder) for case in wanted]
    before = os.environ.get("POLARS_MAX_THREADS")
    os.environ["POLARS_MAX_THREADS"] = "1"  # small tables: a thread more costs more than it brings
    try:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            return list(pool.map(examined, wanted, [folder] * len(wanted)))
    finally:
        if before is None:
            del os.environ["POLARS_MAX_THREADS"]
        else:
            os.environ["POLARS_MAX_THREADS"] = before


def every_real_case(seed: int, only: str, folder: Path) -> list[Line]:
    """All jobs that run on this machine, one after the other: side by side they would slow each other."""
    lines: list[Line] = []
    for case in real_cases(seed):
        if only in case.name:
            verdict, ran, place = examined_for_real(case, folder / "real")
            name = f"real: {case.name}"
            lines.append(Line(name, case.truth.what, ran.step, ran.cost, verdict, None, 0.0, str(place)))
    return lines


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="acceptance")
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--synthetic", action="store_true", help="only the simulated jobs")
    parser.add_argument("--real", action="store_true", help="only the recorded jobs")
    parser.add_argument("--write", action="store_true", help="write the table to benchmarks/README.md")
    parser.add_argument("--keep", type=Path, help="keep the traces in this folder")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        lines = [] if given.real else every_case(given.seed, given.only, folder, given.workers)
        lines += [] if given.synthetic else every_real_case(given.seed, given.only, folder)
    found = totals(lines)
    print("\n".join(table(lines)))
    print("\n" + "\n".join(misses(lines)))
    print("\n" + summary(found))
    if given.write:
        put("acceptance", [*table(lines), "", summary(found)])
    return 0 if found.met else 1


if __name__ == "__main__":
    sys.exit(main())
