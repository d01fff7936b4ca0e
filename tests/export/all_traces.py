"""Every real trace through an export and Perfetto's engine: `python tests/export/all_traces.py [FORMAT]`.

Prints a row per trace: how many slices, whether counts and summed durations by name are the tables', flows,
counter samples, and what the engine complained of.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import zstandard

import lostflops
from compared import REAL, as_profiled, differences, in_profile, in_tables, read_by_perfetto
from lostflops.errors import LostflopsError
from trace_processor import TraceProcessor

ENDINGS = {"perfetto": "pftrace", "chrome": "json"}


def main() -> int:
    to = sys.argv[1] if len(sys.argv) > 1 else "perfetto"
    wanted = sys.argv[2] if len(sys.argv) > 2 else ""
    found = sorted([*REAL.glob("kineto/*/*.json.gz"), *REAL.glob("nsys/*.sqlite.zst")])
    engine = TraceProcessor()
    failed = 0
    print(f"{'trace':<60} {'slices':>9} {'flows':>7} {'samples':>7} {'MB':>6} {'s':>5}  verdict")
    with tempfile.TemporaryDirectory() as place:
        os.environ["LOSTFLOPS_CACHE"] = f"{place}/cache"
        for path in found:
            if wanted in str(path):
                said = row(engine, path, Path(place), to)
                failed += not said.endswith("same")
                print(said, flush=True)
    engine.close()
    print(f"{failed} differ" if failed else "all are the same")
    return min(failed, 1)


def row(engine: TraceProcessor, path: Path, place: Path, to: str) -> str:
    name = f"{path.parent.name}/{path.name}"[:60]
    if path.suffix == ".zst":
        packed, path = path, place / path.stem
        with packed.open("rb") as source, path.open("wb") as target:
            zstandard.ZstdDecompressor().copy_stream(source, target)
    try:
        trace = lostflops.open(path)
    except LostflopsError as error:
        return f"{name:<60} no trace: {error.message.splitlines()[0]}  same"
    known = trace.table("ranks")
    assert known is not None
    ranks = sorted(known.collect()["rank"].unique().to_list())
    # The profiler's JSON is of one rank.
    parts = [[rank] for rank in ranks] if to == "chrome" else [ranks]
    took, size, flows, samples, read_flows, read_samples = 0.0, 0, 0, 0, 0, 0
    wrong: list[str] = []
    slices = 0
    for part in parts:
        output = place / f"run.{ENDINGS[to]}"
        began = time.perf_counter()
        said = lostflops.write(trace, output, to=to, ranks=part)
        took += time.perf_counter() - began
        size += output.stat().st_size
        stats, amounts, counted = read_by_perfetto(engine, output.read_bytes())
        expected = in_tables(trace, part)
        if to == "chrome":
            expected, amounts = in_profile(expected), as_profiled(amounts)
        wrong += differences(expected, amounts)
        wrong += [f"{s['name']} = {s['value']}" for s in stats]
        slices += sum(n for n, _ in amounts.values())
        flows, samples = flows + sum(said.drawn.flows.values()), samples + said.drawn.samples
        read_flows, read_samples = read_flows + counted["flows"], read_samples + counted["samples"]
    if read_flows != flows:
        wrong.append(f"{flows} flows written, {read_flows} read")
    if to == "perfetto" and read_samples != samples:
        wrong.append(f"{samples} samples written, {read_samples} read")
    return (
        f"{name:<60} {slices:>9,} {flows:>7,} {samples:>7,} {size / 1e6:>6.1f} {took:>5.1f}  "
        f"{'; '.join(wrong[:3]) if wrong else 'same'}"
    )


if __name__ == "__main__":
    sys.exit(main())
