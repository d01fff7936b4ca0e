"""Ranks that are answered some at a time give the same bytes as all at once."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from lostflops.causes.gathered.of_some_ranks import NAMED
from lostflops.errors import LostflopsError
from lostflops.ingest import job
from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.strategy import strategy
from lostflops.lab.simulate.writing import simulate
from lostflops.recipe import Recipe
from lostflops.recipes import named, recipes, replayed_steps
from lostflops.recipes.communication import waited_for
from lostflops.replay.pipeline import passes
from lostflops.replay.stragglers import chains
from lostflops.replay.stragglers.chains import RankChains
from lostflops.report.document import document
from lostflops.report.first_page.notes import lost_work
from lostflops.report.first_page.notes.lost_work import LOST
from lostflops.report.first_page.page import page
from lostflops.session import Answer, Fold, Session, Skipped, ahead, asking, batches, worker
from lostflops.store import parts
from lostflops.store.trace import Trace
from lostflops.testing.promises import divides_alike

RANKS = 6


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    folder = tmp_path_factory.mktemp("job")
    simulate(SimulatedJob(strategy("tp2-pp3", RANKS), steps=3, seed=5), folder / "traces")
    with pytest.MonkeyPatch.context() as small:
        small.setattr(parts, "JOINED_AT_MOST", 0)  # as those of a job that is large
        return job.open(folder / "traces", output=folder / "run")


@pytest.fixture
def in_pairs(monkeypatch: pytest.MonkeyPatch, trace: Trace) -> None:
    monkeypatch.setattr(batches, "EVENTS", trace.manifest.num_events // 3 + 1)
    assert batches.groups(trace) == [(0, 1), (2, 3), (4, 5)]
    for told_by_rank in (replayed_steps, chains, passes):
        monkeypatch.setattr(told_by_rank, "RANKS_AT_ONCE", 2)


def unkept(trace: Trace) -> Session:
    """A session that computes everything itself."""
    session = Session(trace)
    session._answers.read = lambda *_: None  # type: ignore[method-assign]
    return session


def every(names: Sequence[str], trace: Trace) -> list[pl.DataFrame | None]:
    """The tables of recipes; what several read is computed once for all of them."""
    session = unkept(trace)
    answers = [session.run(name) for name in names]
    return [None if isinstance(said, Skipped) else said.table for said in answers]


def test_every_recipe_of_ranks_gives_the_same_bytes(
    trace: Trace, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    asked = [name for name, recipe in recipes().items() if recipe.scope == "rank"]
    sliced = [trace, trace.select(frozenset((0, 1, 4))), trace.select(steps=(2, 3))]
    once = [every(asked, part) for part in sliced]
    request.getfixturevalue("in_pairs")
    apart = [every(asked, part) for part in sliced]
    some = 0
    for all_of_them, some_of_them in zip(once, apart, strict=True):
        for name, one, other in zip(asked, all_of_them, some_of_them, strict=True):
            assert (one is None) == (other is None), name
            if one is not None and other is not None:
                assert one.schema == other.schema, name
                if divides_alike():
                    assert one.write_json() == other.write_json(), name
                assert_frame_equal(one, other, rel_tol=1e-12)
                some += one.height > 0
    assert some > 60


def test_the_page_is_the_same_and_computes_no_large_table_twice(
    trace: Trace, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, made = unkept(trace), list[str]()
    compute = session._made

    def counted(wanted: Recipe, options: Mapping[str, Any]) -> pl.DataFrame | Skipped:
        made.append(wanted.name)
        return compute(wanted, options)

    with monkeypatch.context() as all_large:
        all_large.setattr(asking, "LARGE", 0)
        all_large.setattr(session, "_made", counted)
        once = document(page(trace, session))
    large = ("communication_matches", "device_runs", "idle_stretches", "idle_causes", "pipeline_passes")
    assert {name: made.count(name) for name in large} == dict.fromkeys(large, 1)
    request.getfixturevalue("in_pairs")
    assert document(page(trace, unkept(trace))) == once


def test_only_the_files_of_chosen_ranks_are_opened(trace: Trace) -> None:
    chosen = trace.select(frozenset((1, 4)))
    table = chosen.table("kernels")
    assert table is not None
    whole = trace.table("kernels")
    assert whole is not None
    expected = whole.filter(pl.col("rank").is_in([1, 4])).collect()
    assert (
        table.collect()
        .sort("rank", "start", maintain_order=True)
        .equals(expected.sort("rank", "start", maintain_order=True))
    )
    assert [file.parent.name for file in chosen._files("kernels")] == ["rank=1", "rank=4"]  # type: ignore[union-attr]
    # A rank without rows in a table leaves the table empty.
    none = trace.select(frozenset((99,))).table("kernels")
    assert none is not None and none.collect().is_empty()


def test_steps_are_cut_by_each_ranks_own(trace: Trace) -> None:
    """Edges of steps that one choice of ranks has met serve the next one, of other ranks."""
    sliced = trace.select(frozenset((1,)), (2, 3))
    first, other = sliced.table("kernels"), sliced.select(frozenset((4,))).table("kernels")
    afresh = trace.select(frozenset((4,)), (2, 3)).table("kernels")
    assert first is not None and other is not None and afresh is not None
    assert first.collect().height and other.collect().equals(afresh.collect())


def test_small_jobs_are_one_part_and_others_parts_as_large_as_each_other(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert batches.groups(trace) == [None]
    assert batches.split([3, 5, 9], 2) == [(3, 5), (9,)]
    assert batches.split([], 2) == [()]
    monkeypatch.setattr(batches, "EVENTS", trace.manifest.num_events * 4 // RANKS + 1)
    assert batches.groups(trace) == [(0, 1, 2), (3, 4, 5)], "not four ranks, and two"


def test_two_recipes_of_a_pipeline_replay_its_steps_once_on_a_page(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    whole = replayed_steps.chains

    def counted(*given: pl.DataFrame) -> RankChains | None:
        made.append(given[0].height)
        return whole(*given)

    monkeypatch.setattr(replayed_steps, "chains", counted)
    session = unkept(trace)
    with replayed_steps.replayed_once():
        told = [session.run(name) for name in ("stragglers", "pipeline_passes")]
    assert len(made) == 1
    apart = [unkept(trace).run(name) for name in ("stragglers", "pipeline_passes")]
    assert len(made) == 3  # nothing is remembered behind the page
    for one, other in zip(told, apart, strict=True):
        assert isinstance(one, Answer) and isinstance(other, Answer)
        assert one.table.height and one.table.equals(other.table)


@pytest.mark.usefixtures("in_pairs")
def test_what_is_told_of_some_ranks_is_told_ahead_by_processes(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "processes", lambda: 2)
    session, told = unkept(trace), list[tuple[int, int]]()
    monkeypatch.setattr(session, "_answer_from_the_last", lambda _: None)
    names = ["kernel_summary", "communication_wait", "gpu_gaps", "idle_gaps", "step_ledger"]
    session.begin(names, ["host_spans", "idle_causes"], lambda *done: told.append(done), (NAMED, LOST))
    assert told == [(1, 3), (2, 3), (3, 3)]
    # What they read of each other stays there, and what folds read.
    of_ranks = {"kernel_summary", "compute_gaps", "step_totals", "host_spans", "counted_steps"}
    assert set(session._ahead) == of_ranks | {"idle_gaps", "idle_stretches", "step_ledger"}
    numbers = [part["gap"].to_list() for part in session._ahead["idle_gaps"]]
    numbered = [gap for part in numbers for gap in part]
    assert numbered == [*range(len(numbered))], "the gaps of later ranks count on"
    alone = unkept(trace)
    for name in (*names, "idle_stretches", "idle_causes"):
        one, other = session.run(name), alone.run(name)
        assert isinstance(one, Answer) and isinstance(other, Answer) and one.table.equals(other.table), name
    assert not session._ahead.get("kernel_summary")
    steps = alone._asked(named("counted_steps"))
    idle = alone._asked(named("idle_causes"))
    assert steps is not None and idle is not None
    counted, asked = steps.select("rank", "step"), list[str]()

    def stretches() -> list[pl.DataFrame]:
        asked.append("idle_causes")
        return [idle]

    def named_by(who: Session, rows: pl.DataFrame) -> list[dict[str, Any]]:
        each = [names for names, _ in who.of_each_group(NAMED, rows, stretches)]
        return pl.concat(each).sort(pl.all()).to_dicts()

    ahead_of_it, lost = named_by(session, counted), session.of_each_group(LOST, counted)
    assert ahead_of_it and not asked
    assert (ahead_of_it, lost) == (named_by(alone, counted), alone.of_each_group(LOST, counted))
    assert asked == ["idle_causes"] * 3
    # What was told of other steps is told anew; what is of all steps is not.
    assert named_by(session, counted.filter(pl.col("step") == 2)) != ahead_of_it and len(asked) == 6
    monkeypatch.setattr(lost_work, "launching", lambda *_: 1 / 0)
    assert session.of_each_group(LOST, counted.filter(pl.col("step") == 2)) == lost


@pytest.mark.usefixtures("in_pairs")
def test_processes_that_die_cost_no_answer(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "processes", lambda: 2)
    monkeypatch.setattr(ahead.sys, "executable", "/bin/false")
    session = unkept(trace)
    session.begin(["kernel_summary"])
    said, expected = session.run("kernel_summary"), unkept(trace).run("kernel_summary")
    assert not session._ahead
    assert isinstance(said, Answer) and isinstance(expected, Answer) and said.table.equals(expected.table)


@pytest.mark.usefixtures("in_pairs")
def test_another_thread_computes_meanwhile_and_says_what_went_wrong(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise LostflopsError("no answer")

    monkeypatch.setattr(ahead, "processes", lambda: 2)
    session = unkept(trace)
    assert session.meanwhile(threading.get_ident)() != threading.get_ident()
    failing = session.meanwhile(fails)
    with pytest.raises(LostflopsError, match="no answer"):
        failing()
    monkeypatch.setattr(ahead, "processes", lambda: 1)
    assert session.meanwhile(threading.get_ident)() == threading.get_ident(), "one core has no other to do it"


def test_a_recipe_that_fails_is_left_out_with_those_that_read_it(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> pl.LazyFrame:
        raise LostflopsError("no")

    monkeypatch.setattr(named("kernel_work"), "function", refuses)
    found = worker.tables(trace, (0, 1), ["counted_steps", "kernel_work", "step_totals", "kernel_families"])
    assert sorted(found) == ["counted_steps", "step_totals"]
    # Nor is what reads a table that is to be handed and is not there.
    none = {"counted_steps": lambda: None}
    assert not worker.tables(trace, (0, 1), ["step_totals"], none)


def test_large_tables_are_given_up_when_all_that_read_them_are_answered(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "LARGE", 0)
    session = unkept(trace)
    session.begin(["idle_summary", "gpu_gaps"], ["host_spans"])
    session.run("gpu_gaps")
    # `idle_summary` reads both; gaps without causes are read no more.
    assert {"idle_stretches[]", "host_spans[]"} <= session._known.keys()
    assert "idle_gaps[]" not in session._known
    session.run("idle_summary")
    assert "idle_stretches[]" not in session._known and "host_spans[]" in session._known
    session.run("host_spans")
    assert "host_spans[]" not in session._known


def test_who_is_waited_for_does_not_depend_on_spans_of_time(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, wanted = unkept(trace), named("communication_waited_for")
    given = [session._asked(named(needed.name)) for needed in wanted.inputs]
    frames = [None if table is None else table.lazy() for table in given]
    once = wanted(*frames).collect()
    assert given[0] is not None
    monkeypatch.setattr(waited_for, "AT_ONCE", given[0].height // 2)
    assert once.height and wanted(*frames).collect().equals(once)


def ranks_and_steps(some: Trace, counted: pl.DataFrame) -> tuple[list[int], list[int]]:
    return batches.ranks_of(some), counted["step"].to_list()


@pytest.mark.usefixtures("in_pairs")
def test_some_ranks_at_a_time_are_all_ranks_that_count(trace: Trace) -> None:
    counted = pl.DataFrame(
        {"rank": [0, 4, 5], "step": [2, 2, 3]}, schema={"rank": pl.Int32, "step": pl.Int64}
    )
    told = unkept(trace).of_each_group(Fold(ranks_and_steps), counted)
    assert told == [([0, 1], [2]), ([4, 5], [2, 3])]
