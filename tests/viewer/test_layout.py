"""Every row of a run is drawn once, in a lane in which nothing overlaps; a rank's state has no gap."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lostflops.errors import CannotServe
from lostflops.session import Session
from lostflops.viewer import layout, timeline
from lostflops.viewer.timeline import DrawnTrack, RunTimeline
from viewed import HOSTILE, job, laid_out, stored


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> RunTimeline:
    return laid_out(tmp_path_factory.mktemp("run"))


def events(of: RunTimeline, lane: int) -> list[tuple[int, int, str, str]]:
    """Start, end, name and category of a lane's events."""
    rows = range(int(of.events.first[lane]), int(of.events.first[lane + 1]))
    return [
        (
            int(of.events.start[row]),
            int(of.events.start[row]) + int(of.events.length[row]),
            of.kept.names[int(of.events.name[row])],
            of.kept.categories[int(of.events.category[row])],
        )
        for row in rows
    ]


def track(of: RunTimeline, rank: int, kind: str, title: str = "") -> DrawnTrack:
    (found,) = [t for t in of.kept.tracks if (t.rank, t.kind) == (rank, kind) and title in t.title]
    return found


def test_in_no_lane_do_events_overlap(drawn: RunTimeline) -> None:
    for lane in range(drawn.num_lanes):
        rows = events(drawn, lane)
        assert all(one[1] <= two[0] for one, two in pairwise(rows))


def test_every_row_of_the_tables_is_drawn_once(drawn: RunTimeline) -> None:
    rows = job()
    for rank in (0, 1):
        for kind, tables in {
            "steps": ("steps",),
            "stream": ("kernels", "copies"),
            "collectives": ("collectives",),
            "thread": ("operators", "launches", "ranges"),
        }.items():
            wanted = sorted(
                (row["start"], row["end"])
                for table in tables
                for row in rows[table]
                if row["rank"] == rank and row.get("nested", True)
            )
            found = [
                event[:2]
                for t in drawn.kept.tracks
                if (t.rank, t.kind) == (rank, kind)
                for lane in range(t.first_lane, t.first_lane + t.num_lanes)
                for event in events(drawn, lane)
            ]
            assert sorted(found) == wanted, kind


def test_a_state_lane_shows_the_ledger_and_covers_its_rank_without_a_gap(drawn: RunTimeline) -> None:
    assert [t.kind for t in drawn.kept.tracks[:2]] == ["state", "state"]
    assert [(t.rank, t.first_lane) for t in drawn.kept.tracks[:2]] == [(0, 0), (1, 1)]
    for lane in (0, 1):
        rows = events(drawn, lane)
        assert (rows[0][0], rows[-1][1]) == (0, 230)
        assert all(one[1] == two[0] for one, two in pairwise(rows))
    said = Session(drawn.trace).run("step_ledger")
    ledger: Any = said.table  # pyright: ignore[reportAttributeAccessIssue]
    for rank in (0, 1):
        spent: dict[str, int] = {}
        for start, end, _, category in events(drawn, rank):
            spent[category] = spent.get(category, 0) + end - start
        assert spent.pop(layout.OUTSIDE) == 30
        mine = ledger.filter(ledger["rank"] == rank).group_by("account").agg(pl.col("ns").sum())
        assert spent == {f"account:{account}": ns for account, ns in mine.iter_rows()}


def test_overlapping_kernels_of_a_stream_stand_below_each_other(drawn: RunTimeline) -> None:
    stream = track(drawn, 0, "stream", "stream 7")
    assert stream.num_lanes == 2
    assert events(drawn, stream.first_lane)[0] == (20, 50, HOSTILE, "family:gemm")
    assert events(drawn, stream.first_lane + 1)[0] == (45, 53, "add", "family:elementwise")


def test_calls_stand_below_the_operators_that_made_them(drawn: RunTimeline) -> None:
    thread = track(drawn, 1, "thread")
    assert thread.title == "thread 7 (main)"
    outer, middle, inner = (events(drawn, thread.first_lane + n)[0] for n in range(3))
    assert outer == (10, 60, "forward", "host:range")
    assert middle == (12, 16, "aten::mm", "host:operator")
    assert inner == (13, 15, "cudaLaunchKernel", "host:call")


def test_ranges_that_cross_get_lanes_of_their_own_and_stay_whole(drawn: RunTimeline) -> None:
    spans = track(drawn, 0, "spans", "ranges: app")
    assert events(drawn, spans.first_lane)[0][:3] == (40, 70, "epoch")
    assert (50, 80, "batch", "host:range") in events(drawn, spans.first_lane + 1)


def test_counters_and_memory_are_kept_with_their_units(drawn: RunTimeline) -> None:
    found = {(c.rank, c.title): c for c in drawn.kept.counters}
    active = found[0, "SM active of GPU 0"]
    assert (active.unit, active.least, active.most, active.last - active.first) == ("%", 0.0, 3.0, 20)
    assert found[1, "memory allocated on GPU 0"].most == 1024.0


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=25))
def test_stacking_keeps_every_interval_whole_and_what_is_inside_below(spans: list[tuple[int, int]]) -> None:
    start = np.array([s for s, _ in spans], np.int64)
    end = np.array([s + n for s, n in spans], np.int64)
    lane = layout.stacked(start, end)
    for one in range(len(spans)):
        for two in range(len(spans)):
            if one != two and lane[one] == lane[two]:
                apart = end[one] <= start[two] or end[two] <= start[one]
                assert apart, "two in one lane overlap"
            inside = start[one] < start[two] and end[two] < end[one] and lane[one] == 0
            assert not inside or lane[two] > 0


def test_a_timeline_is_built_once_and_again_when_the_run_is_another(tmp_path: Path) -> None:
    first = laid_out(tmp_path)
    (place,) = (tmp_path / timeline.FOLDER).iterdir()
    written = place.stat().st_mtime_ns
    again = timeline.opened(first.trace, first.session)
    assert (again.hash, place.stat().st_mtime_ns) == (first.hash, written)
    rows = job()
    rows["kernels"].append({"rank": 0, "start": 300, "end": 301, "name": "late", "family": "gemm"})
    other = laid_out(tmp_path, rows)
    assert other.hash != first.hash and "late" in other.kept.names
    assert [p.name for p in (tmp_path / timeline.FOLDER).iterdir()] == [other.hash], "the old one is gone"


@pytest.mark.parametrize("harm", ["cut", "gone", "garbled"])
def test_a_kept_timeline_that_is_not_whole_is_built_again(tmp_path: Path, harm: str) -> None:
    first = laid_out(tmp_path)
    (place,) = (tmp_path / timeline.FOLDER).iterdir()
    match harm:
        case "cut":
            (place / "start.bin").write_bytes(b"1234567")
        case "gone":
            (place / "level_0.bin").unlink()
        case _:
            (place / timeline.DOCUMENT).write_text("{]")
    trace = first.trace
    again = timeline.opened(trace, Session(trace))
    assert events(again, 0) == events(laid_out(tmp_path / "other"), 0)


def test_a_run_without_gpu_work_still_has_its_threads(tmp_path: Path) -> None:
    rows = {"ranks": job()["ranks"], "operators": job()["operators"]}
    found = laid_out(tmp_path, rows)
    assert {t.kind for t in found.kept.tracks} == {"state", "thread"}
    assert events(found, 0) == [] and "not drawn" in found.kept.warnings[0]


def test_clocks_that_cannot_be_right_are_refused(tmp_path: Path) -> None:
    rows = job()
    rows["operators"].append({"rank": 0, "thread": 7, "start": 0, "end": 1 << 60, "name": "x"})
    trace = stored(tmp_path, rows)
    with pytest.raises(CannotServe, match="days apart"):
        timeline.opened(trace, Session(trace))
    assert list((tmp_path / timeline.FOLDER).iterdir()) == [], "nothing half-made is left"
