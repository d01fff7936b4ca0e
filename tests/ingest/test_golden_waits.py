"""Waits and transfers of real Nsight Systems exports, to the nanosecond."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import zstandard

import lostflops

TRACES = Path(__file__).parents[3] / "shared" / "traces" / "nsys"

# Per rank: wait, transfer, clock-free wait, times last.
GOLDEN = {
    "fastvideo_train_2xH100_before": {
        0: (10_898_336, 6_274_316, 11_395_541, 11),
        1: (2_477_480, 5_751_620, 2_451_989, 22),
    },
    "fastvideo_train_2xH100_after": {
        0: (4_266_638, 5_722_378, None, 15),
        1: (18_218_556, 5_534_529, None, 16),
    },
}


@pytest.mark.parametrize("name", GOLDEN)
def test_waits_of_a_real_export_are_exact(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = TRACES / f"{name}.sqlite.zst"
    if not packed.exists():
        pytest.skip("the shared traces are not here")
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "cache"))
    with packed.open("rb") as source, (tmp_path / f"{name}.sqlite").open("wb") as target:
        zstandard.ZstdDecompressor().copy_stream(source, target)
    rows = lostflops.ask(lostflops.open(tmp_path / f"{name}.sqlite"), "communication_matches")
    assert rows["instance"].null_count() == 0
    last = rows.sort("arrival").group_by("instance").agg(pl.col("rank").last())
    for rank, (wait, transfer, without_clocks, times_last) in GOLDEN[name].items():
        mine = rows.filter(pl.col("rank") == rank)
        assert mine["wait"].sum() == wait
        assert mine["transfer"].sum() == transfer
        if without_clocks is not None:
            assert (mine["end"] - mine["arrival"] - mine["latency"]).sum() == without_clocks
        assert last.filter(pl.col("rank") == rank).height == times_last
