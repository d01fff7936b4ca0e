"""A correlation id that several calls use leads from GPU work to the last of them before it."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import nsys_exports as nsys
from kineto_files import call, kernel, operator, step, trace, written
from lostflops.ingest.attribution import apart
from lostflops.ingest.kineto import reader as kineto
from lostflops.ingest.nsys import reader as nsys_reader


def test_two_recordings_in_one_file_that_count_from_the_same_id(tmp_path: Path) -> None:
    events = [
        row
        for at in (0, 1000)
        for row in (
            step(at // 100, at, 100),
            operator("aten::mm", at + 10, 30),
            call(at + 15, 5, 1),
            call(at + 25, 5, 2),
            kernel(at + 30, 40, 1),
            kernel(at + 70, 20, 2),
        )
    ]
    (part,) = kineto.read(written(tmp_path / "rank0.json", trace(events)), tmp_path / "out")
    kernels = pl.read_parquet(f"{part.folder}/kernels.parquet")
    assert kernels["launch_start"].to_list() == [15_000, 25_000, 1_015_000, 1_025_000]
    assert kernels["correlation"].n_unique() == 4
    steps = pl.read_parquet(f"{part.folder}/steps.parquet")
    assert steps.select("start", "end").rows() == [(0, 100_000), (1_000_000, 1_100_000)]


def test_an_export_that_uses_ids_again(tmp_path: Path) -> None:
    tables = {
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            nsys.kernel(100, 110, correlationId=1),
            nsys.kernel(200, 210, correlationId=1),
        ],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [
            nsys.call(90, 91, correlationId=1),
            nsys.call(190, 193, correlationId=1),
        ],
    }
    (part,) = nsys_reader.read(nsys.sqlite(tmp_path / "a.sqlite", tables), tmp_path / "out")
    kernels = pl.read_parquet(f"{part.folder}/kernels.parquet")
    assert kernels.select("start", "launch_start").rows() == [(100, 90), (200, 190)]


def test_calls_within_each_other_keep_the_id_they_share() -> None:
    rows = {"start": [10, 12, 40], "end": [20, 18, 50], "thread": [1, 1, 1], "correlation": [5, 5, None]}
    calls, work = pl.DataFrame(rows), pl.DataFrame({"start": [11], "end": [30], "correlation": [5]})
    told, (placed, nothing) = apart(calls, work, None)
    assert told.equals(calls) and placed is not None and placed.equals(work) and nothing is None


@pytest.mark.parametrize(
    "ids", [(1, 2**63 - 1), (2**63 - 1, 5), (2**63 - 1, -(2**63)), (-(2**63), 2**63 - 2)]
)
def test_new_ids_fit_where_those_that_are_there_are_as_large_as_can_be(
    ids: tuple[int, int], tmp_path: Path
) -> None:
    """Two recordings of two calls: the four have ids of their own."""
    rows = [
        row
        for at in (0, 1000)
        for n, number in enumerate(ids)
        for row in (call(at + 10 * n, 5, number), kernel(at + 30 + 40 * n, 40, number))
    ]
    (part,) = kineto.read(written(tmp_path / "rank0.json", trace(rows)), tmp_path / "out")
    kernels = pl.read_parquet(f"{part.folder}/kernels.parquet")
    assert kernels["launch_start"].to_list() == [0, 10_000, 1_000_000, 1_010_000]
    assert kernels["correlation"].n_unique() == 4
