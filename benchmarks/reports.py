"""How large the report of a thousand ranks is, and what it costs to write.

python benchmarks/reports.py            prints the table; `run.py --only report` writes it into the README
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from processes import lostflops
from sections import Found, Say, verdict

MOST = 5_000_000  # bytes
RANKS = 1024


def report(repeat: int, big: bool, say: Say) -> Found:
    """The report of 1,024 simulated ranks, one of which is slow."""
    rows: list[list[str]] = []
    size = 0
    with tempfile.TemporaryDirectory() as place:
        job, run, page = (Path(place, name) for name in ("job", "run", "report.html"))
        words = ("--ranks", str(RANKS), "--fault", "slow-rank", "--steps", "4", "--output")
        for what, command in (
            ("`lostflops lab simulate`", ("lab", "simulate", *words, job)),
            ("`lostflops import`", ("import", job, "--output", run)),
            ("`lostflops why --html`", ("why", run, "--html", page)),
        ):
            say(what)
            cost = lostflops(*command, memory=True)
            rows.append([what, f"{cost.wall:.0f}", f"{cost.cpu:.0f}", f"{cost.tree_peak / 2**20:,.0f}"])
        size = page.stat().st_size
    return Found(
        ("", "s", "processor, s", "peak MiB"),
        rows,
        f"The file of {RANKS:,} ranks is {size / 1e6:.2f} MB. {verdict(size <= MOST, '5 MB')}",
    )


if __name__ == "__main__":
    found = report(1, False, lambda what: print(what, file=sys.stderr, flush=True))
    for line in (found.header, *found.rows):
        print(" | ".join(line))
    print(found.summary)
