"""Folded stacks: one line a stack with its time in ns, as flamegraph.pl, inferno and speedscope read them."""

from __future__ import annotations

from pathlib import Path

from lostflops.export.asked import Exported, ExportRequest
from lostflops.export.stacks import stacks
from lostflops.export.timeline import Drawn
from lostflops.export.writing import compressed, writing

ENDINGS = (".folded", ".folded.gz")
OPENED_BY = "open it at https://www.speedscope.app, or make a flame graph: `flamegraph.pl --countname ns F`"
TIMELINE = False
TABLE = False
STACKS = True
# What separates names and lines there.
PLAIN = str.maketrans({";": ",", "\n": " ", "\r": " "})


def write(asked: ExportRequest, output: Path) -> Exported:
    drawn = Drawn()
    with writing(output) as place, compressed(place, output) as file:
        for rank in asked.selection.ranks:
            found = stacks(asked, rank, asked.weight)
            for names, weight in found.written() if found else ():
                drawn.stacks += 1
                line = ";".join(name.translate(PLAIN) for name in (f"rank {rank}", *names))
                file.write(f"{line} {weight}\n".encode("utf-8", "replace"))
    return asked.exported(output, drawn)
