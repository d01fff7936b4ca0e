"""Real jobs on the processor under `lostflops tune`: does it end with the right remedy, proven?

python -m acceptance.tuned [--only WORDS] [--output DIR] [--minutes M] [--write]

A job whose report lies in DIR is not tuned again, so that what was cut short goes on.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .benchmark_page import put
from .real import started

STEPS = 400  # more than any start of a proof makes
MINUTES = 15.0
CLOSE, BIT_IDENTICAL = "numerically-close", "bit-identical"


@dataclass(frozen=True)
class TuneCase:
    """A job with a fault, the remedy that has to stay, and the safety that allows it. Healthy: no remedy.

    `without` are the options of the job as its user would change it: where no code of ours can make the
    remedy, that command is given with `--try`.
    """

    name: str
    fault: str
    options: tuple[str, ...]
    remedy: str | None
    ranks: int = 1
    safety: str = BIT_IDENTICAL
    without: tuple[str, ...] = ()


CASES = (
    TuneCase("loader", "slow dataset, no workers", ("--fault", "loader", "--ms", "120"), "loader-workers"),
    TuneCase("gc", "gc.collect() in each step", ("--fault", "gc"), "gc-freeze"),
    TuneCase(
        "buckets", "buckets of 10 kB", ("--fault", "buckets", "--model", "deep"), "bucket-size", 2, CLOSE
    ),
    TuneCase(
        "accum", "no `no_sync` in 4 micro-batches",
        ("--fault", "sync-all", "--micro", "4", "--model", "steady"), "gradient-accumulation", 2, CLOSE,
    ),
    TuneCase("threads", "16 threads", ("--fault", "threads"), "cpu-threads", 1, CLOSE),
    TuneCase(
        "late", "slow data set on one of two ranks",
        ("--fault", "far", "--ms", "100", "--rank", "1", "--model", "steady"), "loader-workers", 2,
    ),
    TuneCase("recompute", "everything computed again", ("--fault", "recompute", "--model", "steady"),
             "selective-checkpointing"),
    TuneCase("fp32", "fp32", ("--model", "mlp"), "bf16-on-cpu", 1, CLOSE),
    TuneCase(
        "overlap", "one bucket of all gradients",
        ("--fault", "one-bucket", "--model", "steady", "--width", "1280", "--layer-ms", "8"),
        "overlap-communication", 2, CLOSE,
    ),
    TuneCase("log", "8 log lines in each step, to a slow disk", ("--fault", "slow-log", "--model", "steady"),
             "log-less"),
    TuneCase(
        "sync", "each gradient read, and a barrier behind it", ("--fault", "barriers", "--model", "deep"),
        "fewer-barriers", 2, without=("--fault", "reads", "--model", "deep"),
    ),
    TuneCase(
        "stages", "two and four layers in two stages",
        ("--fault", "stages", "--model", "stages", "--micro", "4", "--layer-ms", "2"),
        "stage-balance", 2, without=("--model", "stages", "--micro", "4", "--layer-ms", "2"),
    ),
    TuneCase("healthy", "healthy", ("--model", "steady"), None),
)  # fmt: skip


def command(case: TuneCase, options: Sequence[str], times: Path) -> list[str]:
    return [*started(case.ranks), *options, "--steps", str(STEPS), "--times", str(times)]


def tuned(case: TuneCase, output: Path, minutes: float) -> Mapping[str, Any]:
    """The report of a job, made now where it is not there."""
    folder = output / f"t-{case.name}"
    report = folder / "report.json"
    if not report.exists():
        words = [sys.executable, "-m", "lostflops", "tune", "--minutes", str(minutes)]
        if folder.exists():
            words += ["--resume", str(folder)]
        else:
            words += ["--output", str(folder), "--safety", case.safety]
            if case.without:
                changed = command(case, case.without, output / f"tt-{case.name}-changed")
                words += ["--try", f"{case.remedy}={shlex.join(changed)}"]
            words += ["--", *command(case, case.options, output / f"tt-{case.name}")]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if not report.exists():
            raise SystemExit(f"{case.fault}: {done.stderr.strip()}")
    return json.loads(report.read_text())


def row(case: TuneCase, report: Mapping[str, Any]) -> tuple[str, bool]:
    """A line of the table, and whether the loop ended as it had to."""
    kept: list[str] = report["kept"]
    right = kept[:1] == [case.remedy] if case.remedy else not kept
    trial = next((one for one in report["trials"] if one["kept"] and one["remedy"] == case.remedy), None)
    if trial is None:
        told, predicted, loss = report["headline"], "", ""
    else:
        measured = trial["measured"]
        gain, low, high = (100 * (1 - measured[key]) for key in ("ratio", "high", "low"))
        told = f"{gain:.1f} % ({low:.1f} to {high:.1f}), {measured['pairs']} pairs"
        bound = trial["predicted"]["gain"] if trial["predicted"] else trial["at_most"]
        predicted = f"{'' if trial['predicted'] else 'at most '}{100 * bound:.1f} %"
        loss = measured["loss"]
    first = case.remedy or "nothing"
    took = f"{report['seconds'] / 60:.1f} min, {report['runs']} starts"
    stayed = "yes" if right else "**no**"
    line = f"| {case.fault} | {first} | {stayed} | {predicted} | {told} | {loss} | {took} |"
    return line, right


def table(found: Sequence[tuple[TuneCase, Mapping[str, Any]]]) -> Iterator[str]:
    yield "| fault | has to stay | stayed first? | predicted | proven gain (95 % interval) | loss | took |"
    yield "| --- | --- | --- | ---: | ---: | --- | ---: |"
    for case, report in found:
        yield row(case, report)[0]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tuned")
    parser.add_argument("--only", default="", help="only the jobs whose name contains this")
    parser.add_argument("--output", type=Path, default=Path("tuned"), help="where the loops are kept")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/README.md")
    given = parser.parse_args(words)
    given.output.mkdir(parents=True, exist_ok=True)
    found: list[tuple[TuneCase, Mapping[str, Any]]] = []
    for case in CASES:
        if given.only in case.name:
            found.append((case, tuned(case, given.output.absolute(), given.minutes)))
            print(row(*found[-1])[0], file=sys.stderr, flush=True)
    lines = list(table(found))
    right = sum(row(*one)[1] for one in found)
    lines += ["", f"The loop ends as it has to in {right} of {len(found)} jobs."]
    print("\n".join(lines))
    if given.write:
        put("tuned", lines)
    return 0 if right == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
