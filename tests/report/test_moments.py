"""Pictures of findings: exact shares, rectangles of the same area, and the step where it shows most."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lostflops
from lostflops.finding import Finding
from lostflops.report.first_page import moments as asked
from lostflops.report.first_page.moments import (
    COLUMNS,
    LEVELS,
    Moments,
    ShownStep,
    Strip,
    moments,
    rectangles,
)
from lostflops.report.mini_timeline import MOST_BYTES, pictures
from lostflops.session import Session

LENGTH = COLUMNS * 5
EXAMPLES = Path(__file__).parents[2] / "examples" / "runs"


def a_finding(*accounts: str, rank: int | None = None) -> Finding:
    return Finding("late", "It is late.", "unknown", (), "Look.", accounts=accounts, rank=rank)


def a_session(rows: list[dict[str, Any]], num_events: int = 9) -> Any:
    table = pl.DataFrame(
        rows, schema={"rank": pl.Int32, "start": pl.Int64, "end": pl.Int64, "account": pl.String}
    )
    idle = table.clear()
    ranks = pl.LazyFrame({"rank": table["rank"].unique()})
    whole = SimpleNamespace(table=lambda name: ranks)
    return SimpleNamespace(
        trace=SimpleNamespace(manifest=SimpleNamespace(num_events=num_events), whole=whole),
        run=lambda name: SimpleNamespace(table=table if name == "device_runs" else idle),
    )


def a_ledger(*rows: tuple[int, int, int, int, str, int]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=["rank", "step", "start", "end", "account", "ns"], orient="row")


@given(
    st.lists(
        st.tuples(st.integers(0, 300), st.integers(1, 300), st.sampled_from("ab")), min_size=1, max_size=12
    )
)
def test_shares_are_what_adding_up_each_nanosecond_gives(pieces: list[tuple[int, int, str]]) -> None:
    rows, at = [], -50
    for gap, length, account in pieces:
        rows.append({"rank": 0, "start": at + gap, "end": at + gap + length, "account": account})
        at += gap + length
    found = moments(a_session(rows), a_ledger((0, 3, 0, LENGTH, "a", 7)), [a_finding("a")]).shown["late"]
    ticks = {name: np.zeros(LENGTH) for name in "ab"}
    for row in rows:
        ticks[row["account"]][max(row["start"], 0) : max(row["end"], 0)] = 1
    for strip in found.strips:
        for name, shares in zip(strip.accounts, strip.shares, strict=True):
            assert shares == pytest.approx(ticks[name].reshape(COLUMNS, 5).mean(axis=1))


def test_the_step_is_the_one_with_most_on_the_rank_that_is_blamed() -> None:
    ledger = a_ledger(
        (0, 3, 0, LENGTH, "copy", 90), (1, 3, 5, LENGTH, "copy", 20), (1, 4, 100, 900, "copy", 31),
        (1, 4, 100, 900, "compute", 70), (1, 5, 900, 999, "compute", 80),
    )  # fmt: skip
    rows = [{"rank": 1, "start": 200, "end": 400, "account": "copy"}]
    found = moments(a_session(rows), ledger, [a_finding("copy", rank=1)]).shown["late"]
    assert (found.rank, found.step, found.start, found.end, found.ns) == (1, 4, 100, 900, 31)
    anywhere = moments(a_session(rows), ledger, [a_finding("copy")]).shown["late"]
    assert (anywhere.rank, anywhere.step) == (0, 3)
    nowhere = moments(a_session(rows), ledger, [a_finding("idle.launch_bound")])
    assert nowhere.shown == {} and nowhere.missing == ""


def test_ranks_that_recorded_too_much_have_no_pictures_and_the_report_says_so() -> None:
    rows = [{"rank": 1, "start": 200, "end": 400, "account": "copy"}]
    ledger = a_ledger((1, 4, 100, 900, "copy", 31))
    found = moments(a_session(rows, asked.MOST_EVENTS + 1), ledger, [a_finding("copy")])
    assert found.shown == {}
    assert "each rank recorded about 5,000,001 events" in found.missing and "lostflops view" in found.missing
    assert pictures(["late"], found, False) == ({}, found.missing)


def test_of_a_large_job_fewer_ranks_are_read_and_their_pictures_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = lostflops.open(str(EXAMPLES / "ddp"))
    page = lostflops.why(trace)
    per_rank = trace.manifest.num_events // 4
    findings = [
        replace(a_finding("communication.wait", "communication.transfer"), name="communicates"),
        replace(a_finding("compute", rank=2), name="computes"),
        replace(a_finding("compute", rank=3), name="computes too"),
    ]
    read: list[frozenset[int]] = []

    class Counting(asked._OfSomeRanks):
        def __init__(self, whole: Session, ranks: frozenset[int]) -> None:
            read.append(ranks)
            super().__init__(whole, ranks)

    monkeypatch.setattr(asked, "_OfSomeRanks", Counting)
    of_all = moments(Session(trace), page.ledger, findings)
    assert set(of_all.shown) == {"communicates", "computes", "computes too"} and read == []
    monkeypatch.setattr(asked, "MOST_EVENTS", per_rank * 2)
    of_some = moments(Session(trace), page.ledger, findings)
    assert len(read) == 1 and len(read[0]) == 2
    assert 0 < len(of_some.shown) < 3 and f"{len(of_some.shown)} of 3 findings" in of_some.missing
    for name, step in of_some.shown.items():
        whole = {strip.rank: strip for strip in of_all.shown[name].strips}
        assert step.rank in {strip.rank for strip in step.strips} <= read[0]
        for strip in step.strips:
            assert strip.accounts == whole[strip.rank].accounts
            assert (strip.shares == whole[strip.rank].shares).all()


def test_of_many_ranks_the_blamed_one_and_some_others_are_shown() -> None:
    ledger = a_ledger(*((rank, 1, 0, LENGTH, "copy", 5 + (rank == 700)) for rank in range(1024)))
    rows = [{"rank": rank, "start": 0, "end": LENGTH, "account": "copy"} for rank in range(1024)]
    found = moments(a_session(rows), ledger, [a_finding("copy")]).shown["late"]
    shown = [strip.rank for strip in found.strips]
    assert len(shown) == asked.MOST_ROWS and 700 in shown and shown[0] == 0 and shown[-1] == 1023
    picture = pictures(["late"], Moments({"late": found}), False)[0]["late"]
    assert "6 of 1,024 ranks are shown" in picture and 'class="blamed"' in picture


def test_rectangles_have_the_area_of_the_shares_and_do_not_overlap() -> None:
    generator = np.random.default_rng(7)
    shares = generator.dirichlet([1, 1, 1], COLUMNS).T
    area = np.zeros((LEVELS, COLUMNS), dtype=int)
    strip = Strip(0, ("compute", "copy", "idle.other"), shares)
    for row, name in enumerate(strip.accounts):
        own = 0
        for x, y, wide, high in rectangles(strip)[name]:
            area[y : y + high, x : x + wide] += 1
            own += wide * high
        assert own / area.size == pytest.approx(shares[row].mean(), abs=0.01)
    assert (area == 1).all()


def test_pictures_stop_where_a_file_has_no_more_room() -> None:
    generator = np.random.default_rng(7)
    accounts = ("compute", "communication.wait", "copy", "idle.launch_bound")
    strips = tuple(Strip(rank, accounts, generator.dirichlet([1] * 4, COLUMNS).T) for rank in range(6))
    one = ShownStep(("copy",), 0, 1, 0, 9, 5, 6, strips)
    names = [f"finding-{i}" for i in range(10)]
    made, missing = pictures(names, Moments(dict.fromkeys(names, one)), False)
    assert 1 <= len(made) < 10 and sum(map(len, made.values())) <= MOST_BYTES
    assert list(made) == names[: len(made)] and f"{len(made)} of 10 findings" in missing
