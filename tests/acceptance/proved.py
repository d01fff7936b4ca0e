"""Real jobs on the processor: is the fault named first, and is the predicted gain the one that is proven?

python -m acceptance.proved [--pairs N] [--only WORDS] [--seed N] [--write]

The remedy is the job without its fault: that is what a user arrives at who does what the finding says.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .benchmark_page import put
from .grading import Page
from .real import RealCase, examined_for_real, real_cases, started

CLOSE = 0.25
LONGEST = 900  # s for one proof


@dataclass(frozen=True)
class Measured:
    """A fault: whether it is named first, and the gain as a share of the step's time.

    `predicted` is null where the page predicts nothing, and why; the interval is the proof's.
    """

    name: str
    named: bool | None
    predicted: float | None
    why_not: str
    gain: float
    low: float
    high: float
    pairs: int
    verdict: str

    @property
    def close(self) -> bool | None:
        """Whether the prediction is within a quarter of the measured gain; null without one."""
        return None if self.predicted is None else abs(self.predicted - self.gain) <= CLOSE * abs(self.gain)


def promised(page: Page) -> tuple[float | None, str]:
    """The first finding's predicted gain, as a share of the step; or why there is none."""
    findings: Sequence[Any] = page.document.get("findings", ())
    if not findings:
        return None, "no finding"
    told = findings[0]["predicted"]
    if told is None or told["refused"]:
        return None, told["refused"] if told else "no edit of the replay stands for it"
    ledger: Sequence[Any] = page.document["ledger"]
    steps = len({(row["rank"], row["step"]) for row in ledger})
    return told["ns"] / (sum(row["ns"] for row in ledger) / steps), ""


def command(case: RealCase, options: Sequence[str], times: Path) -> str:
    return shlex.join([*started(case.ranks), *options, "--times", str(times)])


def measured(case: RealCase, pairs: int, folder: Path) -> Measured:
    """Ask the page, then start the job with the fault and without it in turns."""
    verdict, ran, _ = examined_for_real(case, folder)
    predicted, why_not = promised(ran.page)
    place = folder / case.name.replace(",", "").replace(" ", "-")
    without = case.without or ()
    words = ["--before", command(case, case.options, place / "before")]
    words += ["--after", command(case, without, place / "after")]
    done = subprocess.run(
        [sys.executable, "-m", "lostflops", "prove", *words, "--pairs", str(pairs), "--no-rehearsal",
         "--output", str(place / "proof"), "--json", "-"],
        capture_output=True, text=True, check=False, timeout=LONGEST,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{case.name}: {done.stderr.strip()}")
    told = json.loads(done.stdout)
    gain, low, high = (1 - told[key] for key in ("ratio", "high", "low"))
    return Measured(
        case.name, verdict.named, predicted, why_not, gain, low, high, told["pairs"], told["verdict"]
    )


def table(found: Sequence[Measured]) -> list[str]:
    rows = [
        "| fault | named first? | predicted gain | measured gain | 95 % interval | pairs | prediction |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for one in found:
        named = "busy machine" if one.named is None else "yes" if one.named else "**no**"
        said = f"none: {one.why_not}" if one.predicted is None else f"{one.predicted:.1%}"
        close = {None: "", True: "within a quarter", False: "**further off**"}[one.close]
        rows.append(
            f"| {one.name} | {named} | {said} | {one.gain:.1%} ({one.verdict}) | {one.low:.1%} to "
            f"{one.high:.1%} | {one.pairs} | {close} |".replace("%", " %")
        )
    return rows


def summary(found: Sequence[Measured]) -> str:
    named = [one.named for one in found if one.named is not None]
    close = [one.close for one in found if one.close is not None]
    faster = sum(one.verdict == "faster" for one in found)
    trivial = [abs(1 - one.gain) <= CLOSE * one.gain for one in found]
    return (
        f"The first finding names the fault in {sum(named)} of {len(named)} jobs. "
        f"The predicted gain is within a quarter of the measured one in {sum(close)} of {len(close)}; "
        f"guessing that all of the step goes, in {sum(trivial)} of {len(trivial)}. "
        f"The proof confirms the gain in {faster} of {len(found)}."
    )


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="proved")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--only", default="", help="only jobs whose name contains this")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/README.md")
    given = parser.parse_args(words)
    found: list[Measured] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["LOSTFLOPS_CACHE"] = str(folder / "cache")
        for case in real_cases(given.seed):
            if not case.truth.quiet and given.only in case.name:
                found.append(measured(case, given.pairs, folder))
                print(table(found)[-1], file=sys.stderr, flush=True)
    print("\n" + "\n".join(table(found)) + "\n\n" + summary(found))
    if given.write:
        put("proved", [*table(found), "", summary(found)])
    named = [one.named for one in found if one.named is not None]
    return 0 if all(named) and all(one.close is not False for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
