"""On real traces the recipes on request give the figures that independent programs found in the files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from lostflops.ingest import job
from lostflops.session import Answer, Session

TRACES = Path(__file__).parents[3] / "shared" / "traces"
Ask = Callable[[str, str], pl.DataFrame]
BEFORE = "nsys/fastvideo_train_2xH100_before.sqlite.zst"
AFTER = "nsys/fastvideo_train_2xH100_after.sqlite.zst"


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """What a recipe answers on one of the shared traces, which is read once."""
    sessions: dict[str, Session] = {}

    def opened(name: str) -> Session:
        path = TRACES / name
        if not path.exists():
            pytest.skip("the shared traces are not here")
        place = tmp_path_factory.mktemp("run")
        if path.suffix == ".zst":
            zstandard = pytest.importorskip("zstandard")
            with path.open("rb") as packed, (place / path.stem).open("wb") as target:
                zstandard.ZstdDecompressor().copy_stream(packed, target)
            path = place / path.stem
        return Session(job.open(path, output=place / "RUN"))

    def answer(trace: str, recipe: str) -> pl.DataFrame:
        if trace not in sessions:
            sessions[trace] = opened(trace)
        said = sessions[trace].run(recipe)
        assert isinstance(said, Answer), said
        return said.table

    return answer


def by_rank(table: pl.DataFrame, *sums: pl.Expr) -> list[tuple[int, ...]]:
    return table.group_by("rank").agg(*sums).sort("rank").drop("rank").rows()


@pytest.mark.parametrize(
    ("trace", "depth"),
    [
        (BEFORE, [(1_765_803_888, 264_492_306, 28), (1_485_003_639, 251_721_169, 26)]),
        (AFTER, [(1_083_336_412, None, 17), (1_354_798_803, None, 17)]),
    ],
)
def test_kernels_in_flight_are_those_of_paraver(
    trace: str, depth: list[tuple[int | None, ...]], ask: Ask
) -> None:
    found = by_rank(
        ask(trace, "launch_queue_depth"),
        pl.col("waiting").sum(),
        pl.col("some").sum(),
        pl.col("deepest").max(),
    )
    for ours, theirs in zip(found, depth, strict=True):
        assert all(b is None or a == b for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    ("trace", "threads"),
    [
        (BEFORE, [(822_765_013_345_792,), (835_487_489_571_840,)]),
        (AFTER, [(747_291_404_927_360,), (748_332_237_758_592,)]),
    ],
)
def test_kernel_threads_are_those_of_paraver(trace: str, threads: list[tuple[int]], ask: Ask) -> None:
    sizes = (pl.col("grid") * pl.col("block") * pl.col("time")).sum()
    assert by_rank(ask(trace, "kernel_summary_by_grid"), sizes) == threads


def test_bursts_add_up_to_the_useful_time_of_paraver(ask: Ask) -> None:
    bursts = ask(BEFORE, "compute_bursts")
    assert by_rank(bursts, pl.col("time").sum()) == [(253_690_832,), (256_095_624,)]


def test_exposed_collectives_and_waiting_calls_are_those_of_the_oracle(ask: Ask) -> None:
    each = ask(BEFORE, "communication_overlap_trace")
    assert by_rank(each, pl.len(), pl.col("exposed").sum()) == [(33, 17_172_652), (33, 8_229_100)]
    waits = ask(BEFORE, "api_call_blocking").filter(pl.col("name").cast(pl.String) == "cudaStreamSynchronize")
    # 54.53576 % and 53.64751 % of the 299,986,072 ns of that export.
    shares = [100 * time / 299_986_072 for (time,) in by_rank(waits, pl.col("time").sum())]
    assert shares == [pytest.approx(54.53576, abs=5e-6), pytest.approx(53.64751, abs=5e-6)]


def test_small_copies_are_seventeen_of_eight_bytes(ask: Ask) -> None:
    up = ask(BEFORE, "copy_summary_by_size").filter(pl.col("direction") == "host to device")
    assert up.select("rank", "size", "copies", "bytes").rows() == [(0, 8, 17, 136), (1, 8, 17, 136)]


def test_straggling_collectives_of_dlrm_are_those_of_the_oracle(ask: Ask) -> None:
    found = ask("kineto/param_dlrm8", "straggling_collectives").sort("start")
    micro = found.select("bytes_in", "last_rank", *(pl.col(c) // 1000 for c in ("wait", "transfer"))).rows()
    assert micro == [
        (24_576, 7, 26_435, 81),
        (192, 7, 6_231, 60),
        (1_536, 7, 1_161, 58),
        (13_568, 7, 871, 58),
        (1_576_964, 7, 854, 678),
        (24_576, 5, 2_903, 77),
        (448, 5, 3_379, 157),
        (907_840, 4, 5_009, 530),
    ]


def test_allocations_and_frees_of_a_cpu_rank_are_counted(ask: Ask) -> None:
    peaks = ask("kineto/gen_torch213_cpu/ddp_rank0.pt.trace.json.gz", "memory_peaks")
    assert peaks.select("allocations", "frees").rows() == [(3_466, 3_467)]
    owners = ask("kineto/gen_torch213_cpu/ddp_rank0.pt.trace.json.gz", "memory_peak_owners")
    assert owners["bytes"].sum() == peaks["peak"][0], "what owns the peak is all of it"


def test_all_reduces_of_a_ddp_rank_are_fifteen(ask: Ask) -> None:
    traffic = ask("kineto/hta/nccl_parser_config__nccl_data.json.gz", "traffic_map")
    reduced = traffic.filter(pl.col("kind") == "all-reduce")
    assert reduced.select("operations", "time").rows() == [(15, 46_762_159)]
    # Three times the five sizes of the oracle, in floats of four bytes.
    sizes = 2_049_000 + 7_875_584 + 6_563_840 + 6_637_568 + 2_431_040
    assert reduced["bytes"].to_list() == [3 * 4 * sizes]


def test_the_map_of_a_run_adds_up_to_its_accounts(ask: Ask) -> None:
    found = ask("kineto/deepseek/train.json.gz", "gpu_utilization_map")
    width = pl.col("end") - pl.col("start")
    parts = found.select((pl.col(c) * width).sum() for c in ("compute", "communication", "copies")).row(0)
    assert [round(ns) for ns in parts] == [124_310_000, 4_190_000, 15_000]
    assert (
        found.select(pl.sum_horizontal("compute", "communication", "copies", "idle")).to_series().to_list()
        == [pytest.approx(1.0)] * found.height
    )
