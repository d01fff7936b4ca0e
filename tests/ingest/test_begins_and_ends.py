"""Traces written again with a begin and an end for each event give what the whole events give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kineto_files import Event, call, kernel, one_step, operator, span, step, trace, written
from lostflops.ingest.kineto import reader as kineto
from lostflops.ingest.part import Part


def halves(event: Event) -> list[Event]:
    begin = {key: said for key, said in event.items() if key != "dur"} | {"ph": "B"}
    end = {"ph": "E", "pid": event["pid"], "tid": event["tid"], "ts": event["ts"] + event["dur"]}
    return [begin, end]


def in_halves(events: list[Event]) -> list[Event]:
    """All begins, outermost first, and all ends, innermost first: as sorting by time would place them."""
    return sorted(
        [half for event in events for half in halves(event)], key=lambda e: (e["ts"], e["ph"] == "B")
    )


def read(folder: Path, events: list[Any], layout: str = "line") -> Part:
    folder.mkdir(exist_ok=True)
    path = written(folder / "rank0.json", trace(events, layout=layout))
    (part,) = kineto.read(path, folder / "out")
    return part


def rows(part: Part, name: str) -> pl.DataFrame:
    return pl.read_parquet(Path(part.folder) / f"{name}.parquet")


TWO_STEPS = [
    *one_step(),
    step(8, 1100.5, 50),
    operator("aten::mm", 1105, 20),
    operator("aten::empty", 1106, 3),
    call(1110, 5, 2),
    kernel(1120, 25.125, 2),
]


def test_begins_and_ends_are_read_as_the_whole_events(tmp_path: Path) -> None:
    whole = read(tmp_path / "whole", TWO_STEPS)
    apart = read(tmp_path / "apart", in_halves(TWO_STEPS))
    assert apart.tables == whole.tables and apart.quality == whole.quality
    for name in whole.tables:
        assert rows(apart, name).equals(rows(whole, name)), name


def test_the_order_of_the_file_says_nothing(tmp_path: Path) -> None:
    apart = read(tmp_path, in_halves(TWO_STEPS)[::-1])
    assert rows(apart, "kernels").sort("start")["end"].to_list() == [1_070_750, 1_145_125]


def test_an_end_may_say_what_its_begin_does_not(tmp_path: Path) -> None:
    """The trace-event format joins the arguments of both."""
    first, last = halves(kernel(1120, 25, 9))
    del first["args"]["correlation"]
    last["args"] = {"correlation": 1}
    part = read(tmp_path, [*(e for e in one_step() if e["cat"] != "kernel"), first, last])
    assert rows(part, "kernels").select("device", "stream", "correlation").row(0) == (0, 7, 1)


def test_halves_without_the_other_are_counted_and_left_out(tmp_path: Path) -> None:
    lost, end = halves(span("cpu_op", "aten::add", 1040, 5, tid=3))
    events = [*in_halves(one_step()), lost, {**end, "tid": 4}, {**end, "tid": 5}]
    part = read(tmp_path, events)
    assert rows(part, "operators").height == 1
    told = {fact.name: (fact.count, fact.level) for fact in part.quality}
    assert told["begins ('B') without an end"] == (1, "warning")
    assert told["ends ('E') without a begin"] == (2, "warning")


def test_times_that_need_all_their_digits_keep_them(tmp_path: Path) -> None:
    base = 1_790_000_000_000_000
    text = json.dumps({"schemaVersion": 1, "traceEvents": in_halves(one_step())})
    for ts in sorted({e["ts"] for e in in_halves(one_step())}, reverse=True):
        text = text.replace(f'"ts": {ts}', f'"ts": {base + int(ts)}.{round(ts % 1 * 1000):03}')
    (part,) = kineto.read(written(tmp_path / "rank0.json", text.encode()), tmp_path / "out")
    kernels = rows(part, "kernels")
    assert (kernels["end"] - kernels["start"]).to_list() == [40_250]
    assert kernels["start"][0] == (base + 1030) * 1000 + 500


@pytest.mark.parametrize("layout", ["torch", "lines"])
def test_whole_events_and_halves_may_stand_side_by_side(tmp_path: Path, layout: str) -> None:
    mixed = [*one_step(), *halves(kernel(1080, 7, 5))]
    part = read(tmp_path, mixed, layout)
    assert rows(part, "kernels").height == 2
