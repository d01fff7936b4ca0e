"""How long it takes to build the graph of a large job and to replay it, and in how much memory.

    .venv/bin/python benchmarks/replay_scale.py [--points 10000000] [--ranks 64]

The job is made up: each rank has a host thread, a compute stream and one for communication; a step launches
1,000 kernels and 20 all-reduces over all ranks, and waits for the device once. Making it up is not counted.
The target is 30 s and 4 GiB on two cores for 10,000,000 points, starts and ends of operations. It is held
against processor time, which a busy machine changes least; on two free cores the clock shows no more.
"""

from __future__ import annotations

import argparse
import gc
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from lostflops.replay.graph import Graph  # noqa: E402
from lostflops.replay.recorded import recorded  # noqa: E402
from lostflops.store.parts import write_part  # noqa: E402
from lostflops.store.trace import FORMAT, Manifest, Trace, write_manifest, writing  # noqa: E402
from lostflops.tables import TABLES  # noqa: E402

KERNELS, COLLECTIVES, EVERY = 1_000, 20, 50
CALL, BUSY, NEXT, TRANSFER, GAP = 5_000, 10_000, 1_000, 200_000, 3_000  # ns
ROWS = 2 * (KERNELS + COLLECTIVES) + 1  # operations of a step
TARGET_S, TARGET_BYTES = 30.0, 4 << 30
GIB = 1 << 30
Int = npt.NDArray[np.int64]


def rank_tables(rank: int, ranks: int, steps: int, late: Int) -> dict[str, pl.DataFrame]:
    """A rank's kernels, launches and steps; `late` is by how much each rank is behind, ns."""
    one = KERNELS + COLLECTIVES
    length = one * (CALL + GAP) + KERNELS * GAP + 200_000
    number = np.arange(one)
    is_comm = number % (EVERY + 1) == EVERY
    begin = late[rank] + np.arange(steps, dtype=np.int64)[:, None] * length
    launch = begin + number * (CALL + GAP)
    compute = np.sort(launch[:, ~is_comm] + 7_000)
    # Along a stream a row begins when its launch has arrived and the row before has ended.
    before: Int = np.arange(KERNELS, dtype=np.int64) * (BUSY + NEXT)
    start = np.empty(launch.shape, np.int64)
    start[:, ~is_comm] = before + np.maximum.accumulate(compute - before, axis=1)
    end = start + BUSY
    last = end[:, ~is_comm].max(axis=1)
    start[:, is_comm] = end[:, np.flatnonzero(is_comm) - 1] + NEXT
    together = start[:, is_comm] - late[rank] + late.max()
    end[:, is_comm] = together + TRANSFER
    until = np.maximum(last, end[:, is_comm].max(axis=1)) + 7_000
    correlation = (np.arange(steps)[:, None] * (one + 1) + number + 1).ravel()
    wait = launch[:, -1] + CALL + GAP
    kernels = pl.DataFrame(
        {"start": start.ravel(), "end": end.ravel(), "correlation": correlation,
         "launch_start": launch.ravel(), "launch_end": (launch + CALL).ravel(),
         "stream": np.where(np.tile(is_comm, steps), 20, 7)}
    ).with_columns(
        name=pl.when(pl.col("stream") == 20).then(pl.lit("ncclAllReduce")).otherwise(pl.lit("gemm")),
        family=pl.when(pl.col("stream") == 20).then(pl.lit("communication")).otherwise(pl.lit("gemm")),
        thread=pl.lit(1), device=pl.lit(0), rank=pl.lit(rank),
    )  # fmt: skip
    launches = pl.DataFrame(
        {"start": np.r_[launch.ravel(), wait], "end": np.r_[(launch + CALL).ravel(), until],
         "correlation": np.r_[correlation, 1_000_000_000 + np.arange(steps)]}
    ).with_columns(
        name=pl.when(pl.col("correlation") < 1_000_000_000)
        .then(pl.lit("cudaLaunchKernel")).otherwise(pl.lit("cudaDeviceSynchronize")),
        thread=pl.lit(1), rank=pl.lit(rank),
    )  # fmt: skip
    marks = pl.DataFrame(
        {"step": np.arange(steps), "start": begin.ravel(), "end": np.r_[begin.ravel()[1:], until[-1] + GAP]}
    ).with_columns(rank=pl.lit(rank), source=pl.lit("profiler"))
    return {"kernels": kernels, "launches": launches, "steps": marks}


def matches(tables: list[pl.DataFrame], ranks: int) -> pl.DataFrame:
    """The all-reduces of all ranks as `communication_matches` gives them."""
    rows = pl.concat(
        frame.filter(pl.col("family") == "communication").select(
            "rank", "stream", "start", "end", instance=pl.int_range(pl.len())
        )
        for frame in tables
    )
    last = pl.col("start").max().over("instance")
    return rows.with_columns(
        arrival="start", last_arrival=last, transfer=pl.col("end") - last, members=pl.lit(ranks),
        kind=pl.lit("all-reduce"), group=pl.lit("0"), bytes_in=pl.lit(1 << 20), bytes_out=pl.lit(1 << 20),
    )  # fmt: skip


def written(folder: Path, ranks: int, steps: int) -> tuple[Trace, pl.DataFrame]:
    late = np.random.default_rng(1).integers(0, 50_000, ranks)
    kept, names = list[pl.DataFrame](), ["ranks", "steps", "kernels", "launches"]
    with writing(folder) as place:
        for rank in range(ranks):
            tables = rank_tables(rank, ranks, steps, late)
            kept.append(tables["kernels"].filter(pl.col("family") == "communication"))
            tables["ranks"] = pl.DataFrame(
                {"rank": [rank], "device_kind": ["gpu"], "world_size": [ranks], "main_thread": [1]}
            )
            for name in names:
                write_part(place, name, rank, TABLES[name].conform(tables[name]))
        write_manifest(
            place,
            Manifest(format=FORMAT, lostflops="", clock="", origin_ns=0, sources=[], tables=names,
                     num_events=0, quality=[], absent={}),
        )  # fmt: skip
    return Trace.open(folder, just_written=True), matches(kept, ranks)


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--points", type=int, default=10_000_000)
    parser.add_argument("--ranks", type=int, default=64)
    given = parser.parse_args()
    steps = max(1, round(given.points / 2 / ROWS / given.ranks))
    with tempfile.TemporaryDirectory() as folder:
        trace, matched = written(Path(folder) / "run", given.ranks, steps)
        gc.collect()
        before = peak()
        begun = [time.perf_counter(), time.process_time()]

        def passed(what: str) -> float:
            wall, cpu = time.perf_counter() - begun[0], time.process_time() - begun[1]
            said = f"{cpu:5.1f} s of processor, {wall:5.1f} s by the clock, {peak() / GIB:.2f} GiB at most"
            print(f"{what:<44} {said}", flush=True)
            return cpu

        with trace.reading():
            job = recorded(trace, matched)
        passed(f"built: {len(job.measured):,} points, {len(job.edges.source):,} edges")
        graph: Graph = job.graph
        passed("put in order")
        exact = job.replayed(job.lags())
        whole = passed("replayed")
        assert (exact == job.measured).all(), "with residuals the replay is exact"
        job.replayed(job.lags(above=-1))
        again = passed("replayed once more") - whole
        form = "edge by edge" if graph.levels is None else f"in {len(graph.levels):,} levels"
        print(f"{form}; making the job up took {before / GIB:.2f} GiB at most")
    fits = whole <= TARGET_S and peak() <= TARGET_BYTES
    print(
        f"{whole:.1f} of {TARGET_S:.0f} s of processor, {peak() / GIB:.2f} of 4 GiB: "
        f"{'met' if fits else 'missed'}; each further replay {again:.1f} s"
    )
    return 0 if fits else 1


if __name__ == "__main__":
    sys.exit(main())
