"""Make a large trace of a real one: the same events again and again, each time later, with ids of their own.

    python benchmarks/replicate.py TRACE.json.gz COPIES OUT.json

The layout of the file stays as the profiler wrote it, so that reading the result costs what reading such a
trace costs. Names are the same in every copy: the result stands for size, not for diversity.
"""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path

_SHIFTED = re.compile(rb'"(ts|correlation|External id|id)": ?(\d+)(\.\d+)?|ProfilerStep#(\d+)')


def replicate(source: Path, copies: int, target: Path) -> int:
    """Write `copies` of the trace into `target`, and return how many events it holds."""
    text = gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()
    begin = re.search(rb'"traceEvents": ?\[', text)
    if begin is None:
        raise SystemExit(f"{source} has no events")
    end = text.rindex(b"]", 0, len(text))
    head, events, tail = text[: begin.end()], text[begin.end() : end].rstrip(), text[end:]
    times = [int(t) for t in re.findall(rb'"ts": ?(\d+)', events)]
    steps = [int(s) for s in re.findall(rb"ProfilerStep#(\d+)", events)] or [0]
    # Metadata rows may carry a time long before or after the rest: they must not stretch the copies.
    times.sort()
    period = times[-1 - len(times) // 1000] - times[len(times) // 1000] + 1_000_000
    number_of_steps = max(steps) - min(steps) + 1

    def copy(k: int) -> bytes:
        def moved(match: re.Match[bytes]) -> bytes:
            if match[4]:
                return b"ProfilerStep#%d" % (int(match[4]) + k * number_of_steps)
            add = k * period if match[1] == b"ts" else k * 10_000_000
            return b'"%s": %d%s' % (match[1], int(match[2]) + add, match[3] or b"")

        return _SHIFTED.sub(moved, events)

    part = target.with_suffix(".part")
    with part.open("wb") as out:
        out.write(head)
        for k in range(copies):
            out.write((b"," if k else b"") + copy(k))
        out.write(b"\n  " + tail)
    part.rename(target)
    return copies * events.count(b'"ph"')


if __name__ == "__main__":
    source, copies, target = sys.argv[1:]
    print(f"{replicate(Path(source), int(copies), Path(target)):,} events")
