"""Lanes, the order of edges and bytes on the wire, against what is too simple to be wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lostflops
from lostflops.export import lanes
from lostflops.export.edges import edges
from lostflops.export.formats.perfetto.wire import MessageColumns, number, varint
from stored_runs import made
from trace_processor import TraceProcessor, fields, read_varint

Spans = list[tuple[int, int, int]]
spans = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 6)).map(
        lambda s: (s[0], s[1], s[1] + s[2])
    ),
    max_size=14,
)


def columns(rows: Spans) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    group, start, end = (np.array([r[at] for r in rows], np.int64) for at in range(3))
    return start, end, group


@given(spans)
def test_a_flat_lane_is_the_first_that_is_free(rows: Spans) -> None:
    start, end, group = columns(rows)
    until: dict[tuple[int, int], int] = {}
    expected = [0] * len(rows)
    for at in sorted(range(len(rows)), key=lambda n: (group[n], start[n], end[n])):
        lane = 0
        while until.get((int(group[at]), lane), -1) > start[at]:
            lane += 1
        until[int(group[at]), lane] = int(end[at])
        expected[at] = lane
    assert lanes.flat(start, end, group).tolist() == expected


@given(spans)
def test_many_lanes_are_found_one_by_one_as_well(rows: Spans) -> None:
    start, end, group = columns(rows)
    many, lanes.MOST_ROUNDS = lanes.MOST_ROUNDS, 0
    try:
        found = lanes.flat(start, end, group)
    finally:
        lanes.MOST_ROUNDS = many
    assert found.tolist() == lanes.flat(start, end, group).tolist()


@given(spans)
def test_in_a_nested_lane_no_two_cross(rows: Spans) -> None:
    start, end, group = columns(rows)
    lane = lanes.nested(start, end, group).tolist()
    for a in range(len(rows)):
        for b in range(len(rows)):
            if group[a] == group[b] and lane[a] == lane[b]:
                assert not start[a] < start[b] < end[a] < end[b]


@given(spans)
def test_edges_open_and_close_as_brackets_do(rows: Spans) -> None:
    start, end, _ = columns([(0, s, e) for _, s, e in rows])
    mine = lanes.nested(start, end, np.zeros(len(rows), np.int64)) == 0
    start, end = start[mine], end[mine]
    found = edges(start, end)
    opened: list[int] = []
    last = 0
    for row, begins in zip(found.row.tolist(), found.begins.tolist(), strict=True):
        at = int(start[row] if begins else end[row])
        assert at >= last
        last = at
        if begins:
            opened.append(row)
        else:
            assert opened.pop() == row
    assert opened == []
    assert sorted(found.row.tolist()) == sorted([*range(len(start))] * 2)


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.booleans(), st.booleans()), min_size=1, max_size=9))
def test_messages_written_in_columns_are_read_back(rows: list[tuple[int, bool, bool]]) -> None:
    values = np.array([r[0] for r in rows], np.uint64)
    inner, plain = (np.array([r[at] for r in rows]) for at in (1, 2))
    written = MessageColumns(len(rows))
    with written.inside(1):
        with written.inside(2, inner):
            written.constant(number(3, 5))
            written.number(4, values, plain)
        written.fixed(5, values, plain)
    found = [dict(fields(message)) for _, message in fields(written.bytes())]
    for (value, has, also), message in zip(rows, found, strict=True):
        assert (2 in message, 5 in message) == (has, also)
        if has:
            said = dict(fields(message[2]))
            assert said == ({3: 5, 4: value} if also else {3: 5})
        if also:
            assert int.from_bytes(message[5], "little") == value


@given(st.integers(0, 2**64 - 1))
def test_a_number_is_as_short_as_it_can_be(value: int) -> None:
    assert read_varint(varint(value), 0) == (value, max(1, -(-value.bit_length() // 7)))


HOSTILE = 'a\x00b "\n\x1b[31m <script> ☃ \u202e' + "x" * 3000


def test_overlap_and_hostile_names_arrive_in_perfetto_as_they_are(
    perfetto: TraceProcessor, tmp_path: Path
) -> None:
    kernel = {"rank": 5, "device": 1, "stream": 7, "family": "gemm", "continued": False}
    times = [(0, 300), (100, 500), (200, 250), (300, 300), (300, 400)]
    (tmp_path / "run").mkdir()
    trace = made(
        tmp_path / "run",
        {
            "ranks": [{"rank": 5, "start": 0, "end": 500, "device": 1, "device_kind": "gpu", "host": 2}],
            "kernels": [
                {**kernel, "start": start, "end": end, "name": f"{n}{HOSTILE}", "registers": 2**31 - 1 - n}
                for n, (start, end) in enumerate(times)
            ],
            "counters": [
                {
                    "rank": 5,
                    "start": at,
                    "end": at + 1,
                    "device": 1,
                    "metric": "SM",
                    "value": -0.5 * at,
                    "unit": "%",
                }
                for at in (3, 4)
            ],
        },
        origin=1_700_000_000_000_000_001,
    )
    lostflops.write(trace, tmp_path / "x.pftrace.gz", bare=True)
    stats, slices, process, counters, registers = perfetto.query(
        (tmp_path / "x.pftrace.gz").read_bytes(),
        "select name from stats where severity in ('error', 'data_loss') and value > 0",
        "select ts, dur, substr(name, 1, 1) n, length(name) long from slice order by n",
        "select name from process where pid = 6",
        "select ts, value, t.unit from counter join counter_track t on track_id = t.id order by ts",
        "select int_value v from args where key = 'debug.registers' order by v desc",
    )
    assert stats == []
    assert [(row["ts"], row["ts"] + row["dur"]) for row in slices] == times
    assert [row["name"] for row in process] == ["rank 5 (node 2, GPU 1)"]
    assert [(row["ts"], row["value"], row["unit"]) for row in counters] == [(3, -1.5, "%"), (4, -2.0, "%")]
    assert [row["v"] for row in registers] == [2**31 - 1 - n for n in range(5)]


def test_the_engine_complains_of_a_broken_export(perfetto: TraceProcessor, tmp_path: Path) -> None:
    """Two slices that cross on one track of JSON: what the check of all exports must be able to see."""
    rows = [{"ph": "X", "name": str(ts), "pid": 1, "tid": 1, "ts": ts, "dur": 5} for ts in (0, 3)]
    data = json.dumps({"traceEvents": rows}).encode()
    (stats,) = perfetto.query(
        data, "select name from stats where severity in ('error', 'data_loss') and value > 0"
    )
    assert [row["name"] for row in stats] == ["slice_drop_overlapping_complete_event"]


@pytest.mark.parametrize("cut", [1, 40])
def test_a_window_cuts_slices_exactly_in_perfetto(perfetto: TraceProcessor, tmp_path: Path, cut: int) -> None:
    run = Path(__file__).parents[2] / "examples" / "runs" / "ddp"
    low, high = 700_000_000 + cut, 703_000_000 + cut
    said = lostflops.write(run, tmp_path / "x.pftrace", window=(low, high), bare=True)
    (slices,) = perfetto.query(
        (tmp_path / "x.pftrace").read_bytes(), "select min(ts) a, max(ts + dur) b, count(*) n from slice"
    )
    assert slices == [{"a": low, "b": high, "n": said.num_slices}]
    assert said.cut > 0
