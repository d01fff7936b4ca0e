"""Recipes that see the same time from different sides agree, with each other and with every nanosecond."""

from __future__ import annotations

from collections import Counter
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from lostflops.recipe import Rows
from lostflops.recipes import named
from lostflops.testing import on_example

Given = dict[str, list[dict[str, Any]]]
RANKS = 2


def rows(
    *columns: st.SearchStrategy[dict[str, Any]], most: int = 5
) -> st.SearchStrategy[list[dict[str, Any]]]:
    when = st.builds(
        lambda rank, start, length: {"rank": rank, "start": start, "end": start + length},
        st.integers(0, RANKS - 1),
        st.integers(0, 40),
        st.integers(0, 12),
    )
    merged = st.tuples(when, *columns).map(lambda parts: {k: v for part in parts for k, v in part.items()})
    return st.lists(merged, max_size=most)


NAMES = st.sampled_from(["a", "b"]).map(lambda name: {"name": name, "family": "gemm"})
DIRECTIONS = st.sampled_from(["host to device", "device to host"]).map(lambda d: {"direction": d})
# Steps of a rank do not overlap; what runs before, between and after them is in none.
STEPS = st.lists(st.integers(0, 50), min_size=4, max_size=4, unique=True).map(sorted)


@st.composite
def traces(draw: st.DrawFn) -> Given:
    cuts = [draw(STEPS) for _ in range(RANKS)]
    collectives = [{**row, "kind": "broadcast"} for row in draw(rows(NAMES))]
    for row in collectives:
        row.pop("family")
    return {
        "kernels": draw(rows(NAMES)),
        "collectives": collectives,
        "copies": draw(rows(DIRECTIONS)),
        "steps": [
            {"rank": rank, "step": step, "start": c[2 * step], "end": c[2 * step + 1]}
            for rank, c in enumerate(cuts)
            for step in range(2)
        ],
        "ranks": [{"rank": rank, "world_size": RANKS} for rank in range(RANKS)],
    }


def instants(table: Rows) -> Counter[tuple[int, int]]:
    """How many rows are open at each (rank, ns)."""
    return Counter((row["rank"], t) for row in table for t in range(row["start"], row["end"]))


def answer(recipe: str, trace: Given) -> pl.DataFrame:
    return on_example(named(recipe), trace)


def of_rank(counted: Any, rank: int) -> int:
    return sum(1 for r, _ in counted if r == rank)


@settings(max_examples=25, deadline=None)
@given(traces())
def test_exposed_communication_is_what_no_kernel_covers(trace: Given) -> None:
    compute, communication, in_steps = (instants(trace[t]) for t in ("kernels", "collectives", "steps"))
    bare = communication.keys() - compute.keys()
    for row in answer("communication_exposed", trace).to_dicts():
        rank = row["rank"]
        assert row["compute"] == of_rank(compute, rank)
        assert row["total"] == of_rank(communication, rank) == row["hidden"] + row["exposed"]
        assert row["exposed"] == of_rank(bare, rank)
        assert row["per_step"] == of_rank(bare & in_steps.keys(), rank) // 2


@settings(max_examples=25, deadline=None)
@given(traces())
def test_exposed_wait_and_transfer_are_the_ledgers(trace: Given) -> None:
    # With one step over everything, what lies outside steps cannot differ.
    trace["steps"] = [{"rank": rank, "start": 0, "end": 60} for rank in range(RANKS)]
    accounts = answer("step_ledger", trace).group_by("rank", "account").agg(pl.col("ns").sum())
    ledger = {(rank, account): ns for rank, account, ns in accounts.iter_rows()}
    for row in answer("communication_wait", trace).to_dicts():
        rank = row["rank"]
        assert (row["exposed_wait"] or 0) == ledger.get((rank, "communication.wait"), 0)
        assert (row["exposed_transfer"] or 0) == ledger.get((rank, "communication.transfer"), 0)
        assert (row["wait"] or 0) + (row["transfer"] or 0) == row["time"]
    exposed = answer("communication_exposed", trace)
    for rank, ns in exposed.select("rank", "exposed").iter_rows():
        assert ns == sum(v for (r, account), v in ledger.items() if r == rank and "communication" in account)


@settings(max_examples=25, deadline=None)
@given(traces())
def test_all_blame_is_all_waiting_and_a_rank_waits_each_instant_once(trace: Given) -> None:
    matches = answer("communication_matches", trace)
    split = matches.filter(pl.col("wait").is_not_null()).with_columns(until=pl.col("start") + pl.col("wait"))
    imbalance = answer("communication_imbalance", trace)
    assert imbalance["blame"].sum() == split["wait"].sum()
    waiting = instants(split.select("rank", "start", end="until").to_dicts())
    moving = instants(split.select("rank", start="until", end="end").to_dicts())
    for row in imbalance.drop_nulls("rank").to_dicts():
        assert row["own_wait"] == of_rank(waiting, row["rank"])
    unmatched = instants(matches.filter(pl.col("wait").is_null()).to_dicts())
    for row in answer("communication_wait", trace).to_dicts():
        rank = row["rank"]
        assert (row["wait"] or 0) == of_rank(waiting.keys() - moving.keys(), rank)
        assert (row["transfer"] or 0) == of_rank(moving, rank)
        assert row["unmatched_time"] == of_rank(unmatched.keys() - waiting.keys() - moving.keys(), rank)


@settings(max_examples=25, deadline=None)
@given(traces())
def test_exposed_copies_are_what_nothing_else_covers(trace: Given) -> None:
    busy = instants(trace["kernels"]).keys() | instants(trace["collectives"]).keys()
    for row in answer("copy_summary_by_time", trace).to_dicts():
        mine = instants([copy for copy in trace["copies"] if copy["direction"] == row["direction"]])
        assert row["exposed"] == of_rank(mine.keys() - busy, row["rank"])
        assert row["hidden"] == of_rank(mine.keys() & busy, row["rank"])


@settings(max_examples=100, deadline=None)
@given(traces(), st.data())
def test_what_copies_cost_beside_themselves_is_in_the_calls_that_launch_them(
    trace: Given, data: st.DataObject
) -> None:
    for copy in trace["copies"]:
        copy["launch_start"] = copy["start"] - data.draw(st.integers(0, 9))
        copy["launch_end"] = copy["launch_start"] + data.draw(st.integers(0, 25))
    working = instants(trace["kernels"]).keys() | instants(trace["collectives"]).keys()
    busy, steps = working | instants(trace["copies"]).keys(), instants(trace["steps"]).keys()
    for row in answer("copy_summary_by_time", trace).to_dicts():
        rank = row["rank"]
        mine = [c for c in trace["copies"] if (c["rank"], c["direction"]) == (rank, row["direction"])]
        spans = [
            instants([{"rank": rank, "start": first(c), "end": last(c)} for c in mine]).keys() & steps
            for first, last in (
                (lambda c: c["end"], lambda c: max(c["launch_end"], c["end"])),
                (lambda c: c["launch_start"], lambda c: c["launch_end"]),
                (lambda c: c["start"], lambda c: min(c["launch_end"], c["end"])),
                (lambda c: c["start"], lambda c: c["end"]),
            )
        ]
        after, called, own, run = spans
        idle = steps - busy
        # Before a copy, its own gap alone: from the last instant back at which the device works.
        before: set[tuple[int, int]] = set()
        for c in mine:
            at = c["start"] - 1
            while at >= c["launch_start"] and (rank, at) in idle:
                before.add((rank, at))
                at -= 1
        waited = before | after
        assert row["idle_in_calls"] == of_rank(waited & idle, rank)
        assert row["held"] == of_rank((called & busy) - (own - working), rank)
        assert (row["in_steps"], row["hidden_in_steps"]) == (
            of_rank(run - working, rank),
            of_rank(run & working, rank),
        )
        # All copies and calls, hidden or not, as far as the busiest stream of kernels leaves room for them.
        rows = [k for k in trace["kernels"] if k["rank"] == rank and k.get("family") != "communication"]
        streams = {(k.get("device"), k.get("stream")) for k in rows}
        of_streams = [[k for k in rows if (k.get("device"), k.get("stream")) == s] for s in streams]
        room = min(of_rank(steps - instants(kernels).keys(), rank) for kernels in of_streams or [[]])
        every = of_rank(run, rank) + of_rank((waited | called) & idle, rank) + row["held"]
        assert row["at_most"] == min(every, room)


@settings(max_examples=25, deadline=None)
@given(traces())
def test_kernels_overlap_by_what_is_open_beside_them(trace: Given) -> None:
    compute, communication, copies = (instants(trace[t]) for t in ("kernels", "collectives", "copies"))
    for row in answer("kernel_overlap", trace).to_dicts():
        own, table = (communication, "collectives") if row["communication"] else (compute, "kernels")
        mine = [r for r in trace[table] if (r["rank"], r["name"]) == (row["rank"], row["name"])]
        open_at = [(r["rank"], t) for r in mine for t in range(r["start"], r["end"])]
        beside = {
            "with_compute": [compute[at] - (own is compute) for at in open_at],
            "with_communication": [communication[at] - (own is communication) for at in open_at],
            "with_copies": [copies[at] for at in open_at],
        }
        assert (row["calls"], row["time"]) == (len(mine), len(open_at))
        for column, others in beside.items():
            assert row[column] == sum(n > 0 for n in others)
        assert row["alone"] == sum(not any(n) for n in zip(*beside.values(), strict=True))


@settings(max_examples=25, deadline=None)
@given(traces())
def test_combinations_count_every_instant_once(trace: Given) -> None:
    kinds = {t: instants(trace[t]) for t in ("kernels", "collectives", "copies")}
    everything = set().union(*kinds.values(), instants(trace["steps"]))
    words = {"kernels": "compute", "collectives": "communication", "copies": "copies"}
    expected = Counter(
        (at[0], " + ".join(words[t] for t, c in kinds.items() if at in c) or "nothing") for at in everything
    )
    got = answer("gpu_overlap", trace)
    assert {(r, running): ns for r, running, ns, _ in got.iter_rows()} == dict(expected)


@settings(max_examples=25, deadline=None)
@given(traces())
def test_summaries_of_kernels_add_up_to_the_same(trace: Given) -> None:
    by_name, by_family, matrix = (
        answer(recipe, trace) for recipe in ("kernel_summary", "kernel_families", "precision_mix")
    )
    for column in ("calls", "time"):
        assert by_name[column].sum() == by_family[column].sum() == matrix[column].sum()
    assert by_name["time"].sum() == sum(row["end"] - row["start"] for row in trace["kernels"])
    in_steps = instants(trace["steps"])
    inside = sum(n for at, n in instants(trace["kernels"]).items() if at in in_steps)
    shares = by_family.join(answer("step_totals", trace), on="rank")
    assert round((shares["step_share"] * shares["step_time"]).sum()) == inside
