"""Asks a session for all that findings are joined by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

import polars as pl

from lostflops import intervals
from lostflops.causes.declared import edits
from lostflops.causes.gains import gained
from lostflops.causes.given import (
    BESIDE,
    BETWEEN,
    CHECKPOINT,
    HOST_WAITS,
    LOADING,
    NAMES,
    OTHER_HOST,
    SAVING,
    WAITED,
    ZERO_BUBBLE,
    Given,
    in_pairs,
    none_named,
    plain,
)
from lostflops.causes.purposes import (
    MEETING,
    Exposed,
    first_waits,
    in_one_process,
    met,
    surely_waited,
)
from lostflops.errors import LostflopsError
from lostflops.recipes.compute.of_ranks import ASKED, PACES, WORK, asked_flops, computed_in, paces_of
from lostflops.recipes.host.functions import spent_in
from lostflops.recipes.host.saving import HELD_UP, saving_rows
from lostflops.recipes.host_steps import LOOPS, holds_passes, host_steps, in_host_steps, loops_over_steps
from lostflops.recipes.idle.evaluations import EVALUATIONS
from lostflops.recipes.idle.made_tensors import MADE
from lostflops.recipes.idle.read_values import awaits_batches, computed_to_be_read, reads_values
from lostflops.recipes.idle.updates import UPDATES, in_updates
from lostflops.recipes.layout.micro_batches import alike
from lostflops.recipes.needless.given_back import GIVEN_BACK
from lostflops.recipes.needless.outside_passes import OUTSIDE, outside_passes
from lostflops.recipes.needless.own_functions import OWN_FUNCTIONS, own_functions
from lostflops.recipes.needless.products import SLOW_PRODUCTS, slow_products
from lostflops.recipes.needless.run_again import RUN_AGAIN, of_all_ranks, run_again
from lostflops.recipes.needless.started_workers import WORKERS, of_workers
from lostflops.recipes.operators.loss_work import LOSSES
from lostflops.recipes.operators.weight_casts import CASTS
from lostflops.recipes.transfers import lengthened
from lostflops.session import Answer, Fold, Session, Skipped
from lostflops.store.trace import Trace

from . import of_some_ranks

T = TypeVar("T")

PURPOSES, TOTAL = pl.Schema({"purpose": pl.String, "ns": pl.Int64}), pl.Schema({"ns": pl.Int64})
RANKS = pl.Schema({"rank": pl.Int32})
WINDOW = ("rank", "start", "end")
SCHEDULE = pl.Schema({"schedule": pl.String})
BARE = 0.9  # of communication
BESIDE_FROM = 0.1  # of the steps: pauses of so much are held against other threads

# What `gather` asks of a session, where it has most to ask.
READS = (
    *("idle_causes", "copies_by_cause", "host_spans", "device_runs"),
    *("communication_waited_for", "communication_matches", "communication_matches"),
    *("communication_held_back", "pipeline_passes"),
)


class _Bare(NamedTuple):
    """What exposed communication is made of, as `Given` tells it."""

    purposes: dict[str, int]
    operations: dict[str, int]
    stops: dict[str, int]
    gathered_again: int
    waited: pl.DataFrame


def gather(
    trace: Trace,
    session: Session,
    answers: Mapping[str, Answer],
    ledger: pl.DataFrame,
    on_host: bool,
    world_size: int | None,
    advice: Callable[[str, str], str] = plain,
    left: Callable[[Sequence[str]], tuple[str, ...]] = none_named,
    units: frozenset[str] | None = None,
    fitting: Callable[[str], str] = str,
) -> Given:
    """What a page has for the joining of its findings; `ledger` is of the steps that count."""
    counted = ledger.select("rank", "step").unique()
    ranks = counted["rank"].n_unique()
    many = ranks > 1
    missing = world_size is not None and ranks < world_size

    def over_slow_links() -> pl.DataFrame | None:
        links, ranks = answers.get("communication_slow_links"), trace.table("ranks")
        matches = _table(session, "communication_matches") if links and links.findings else None
        if links is None or matches is None or ranks is None:
            return None
        return lengthened(matches.lazy(), ranks, links.table)

    @cache
    def exposed() -> Exposed:
        return Exposed(trace, _table(session, "device_runs"), counted, over_slow_links())

    def parts(name: str, told: Callable[[], dict[str, int]]) -> dict[str, int]:
        def fold() -> pl.DataFrame:
            return pl.DataFrame(list(told().items()), schema=PURPOSES, orient="row")

        return dict(folded(name, PURPOSES, fold).iter_rows())

    def sure(session: Session, counted: pl.DataFrame) -> int:
        matches, runs = _table(session, "communication_matches"), _table(session, "device_runs")
        return 0 if matches is None or runs is None else surely_waited(matches, runs, counted)

    def over_links(session: Session, counted: pl.DataFrame) -> int:
        links, waits = answers.get("communication_slow_links"), answers.get("communication_wait")
        if not links or not links.findings or waits is None or not in_pairs(waits.table):
            return 0
        return gained(session, edits()[links.findings[0].name])

    def meeting() -> pl.DataFrame:
        matches = _table(session, "communication_matches")
        return MEETING.to_frame() if matches is None else met(matches)

    def with_frames() -> pl.DataFrame:
        frames = trace.table("frames")
        return RANKS.to_frame() if frames is None else frames.select(pl.col("rank").unique()).collect()

    def first(session: Session, counted: pl.DataFrame) -> int:
        matches, windows = _table(session, "communication_matches"), ledger.select(*WINDOW).unique()
        return 0 if matches is None else first_waits(matches, windows.rename({"end": "until"}))

    def folded(name: str, empty: pl.Schema, fold: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        try:
            return session.folded(f"cause_{name}", fold)  # the page has folds of its own
        except LostflopsError:  # what one recipe cannot answer must not cost the reader the page
            return empty.to_frame()

    stretches = cache(partial(_table, session, "idle_causes"))

    def each(fold: Fold[T]) -> list[T]:
        return session.of_each_group(fold, counted, lambda: [stretches()] if fold.reads else [])

    def asked_for() -> pl.DataFrame:
        return asked_flops(each(of_some_ranks.FLOPS))

    asked = folded("flops", ASKED, asked_for) if many else ASKED.to_frame()

    def on_device(name: str, empty: pl.Schema, fold: Fold[pl.DataFrame]) -> pl.DataFrame:
        none = empty.to_frame()
        return none if on_host else folded(name, empty, lambda: pl.concat([none, *each(fold)]))

    def on_cpu(name: str, empty: pl.Schema, fold: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        return folded(name, empty, fold) if on_host else empty.to_frame()

    def in_turn(session: Session, counted: pl.DataFrame) -> int:
        return alike(each(of_some_ranks.MICRO_BATCHES))

    def summed(fold: Fold[int]) -> Callable[[Session, pl.DataFrame], int]:
        return lambda session, counted: sum(each(fold))

    def two_threads(_: Session, steps: pl.DataFrame) -> int:
        told = each(of_some_ranks.LAUNCHED_BESIDE)
        stretches.cache_clear()  # it is large, and nothing below reads it
        return sum(told)

    def total(name: str, fold: Callable[[Session, pl.DataFrame], int]) -> int:
        made = folded(name, TOTAL, lambda: pl.DataFrame({"ns": [fold(session, counted)]}, schema=TOTAL))
        return int(made["ns"].sum())

    def computed_again() -> pl.DataFrame:
        if on_host:
            return of_all_ranks([run_again(trace, counted, on_host)])
        return of_all_ranks(each(of_some_ranks.RUN_AGAIN))

    def bare() -> _Bare:
        told = (
            parts("purposes", lambda: exposed().by_purpose()),
            parts("operations", lambda: exposed().by_operation()),
            parts("stops", lambda: exposed().stops()) if _mostly_bare(answers) else {},
            total("gathered_again", lambda session, counted: exposed().gathered_again()),
        )
        if not missing:
            exposed.cache_clear()  # it is large, and nothing below reads it
        waited = folded("waited", WAITED, lambda: _waited(session, counted)) if many else WAITED.to_frame()
        return _Bare(*told, waited)

    # It takes as long as all that is asked before it is read; two large ones at a time would take memory.
    of_bare = cache(session.meanwhile(bare))
    again = folded("again", RUN_AGAIN, computed_again)
    return Given(
        answers=answers,
        ledger=ledger,
        names=folded("names", NAMES, lambda: of_some_ranks.names_of(trace, each(of_some_ranks.NAMED))),
        # Beside the names, as long as what both read is there.
        beside=folded("beside", BESIDE, lambda: _beside(session, ledger)),
        work=folded("work", WORK, lambda: computed_in(trace, on_host, ledger)) if many else WORK.to_frame(),
        paces=folded("paces", PACES, lambda: paces_of(trace, ledger)) if not on_host else PACES.to_frame(),
        flops=dict(asked.select("rank", "flops").iter_rows()),
        beyond_least=dict(asked.select("rank", "beyond").iter_rows()),
        in_checkpoints=total("in_checkpoints", _in_checkpoints) if "copy_summary_by_time" in answers else 0,
        behind_checkpoints=total("behind_checkpoints", _behind_checkpoints)
        if "copy_summary_by_time" in answers
        else 0,
        outlasted=total("outlasted", _outlasted) if "copy_summary_by_time" in answers else 0,
        in_long_pauses=total("in_long_pauses", summed(of_some_ranks.LONG_PAUSES)),
        fetches=total("fetches", partial(_fetches, trace))
        if any(f.accounts == (LOADING,) for a in answers.values() for f in a.findings)
        else 0,
        micro_batches=0 if on_host else total("micro_batches", in_turn),
        beside_work=total("beside_work", lambda session, _: _beside_work(session)) if not on_host else 0,
        between_nodes=0 if on_host else total("between_nodes", summed(of_some_ranks.BETWEEN_NODES)),
        long_unexplained=0 if on_host else total("long_unexplained", summed(of_some_ranks.LONG_UNEXPLAINED)),
        late_launches=0 if on_host else total("late_launches", summed(of_some_ranks.LATE_LAUNCHES)),
        # All kernels, so only where values are read at a cost.
        to_be_read=total("to_be_read", lambda _, counted: computed_to_be_read(trace, counted))
        if not on_host and any(f.name == HOST_WAITS for a in answers.values() for f in a.findings)
        else 0,
        after_passes=0 if on_host else total("after_passes", summed(of_some_ranks.READ_AFTER_PASSES)),
        reads_values=on_host or total("reads_values", lambda _, counted: reads_values(trace, counted)) > 0,
        awaits_batches=on_host
        or not any(f.name == "copies-exposed" for a in answers.values() for f in a.findings)
        or total("awaits_batches", lambda _, counted: awaits_batches(trace, counted)) > 0,
        updates=folded("updates", UPDATES, lambda: in_updates(each(of_some_ranks.UPDATED)))
        if not on_host
        else UPDATES.to_frame(),
        evaluations=folded(
            "evaluations",
            EVALUATIONS,
            lambda: pl.concat([EVALUATIONS.to_frame(), *each(of_some_ranks.EVALUATED)]),
        ),
        given_back=on_cpu("given_back", GIVEN_BACK, lambda: pl.concat(each(of_some_ranks.GIVEN_BACK))),
        outside=on_cpu("outside", OUTSIDE, lambda: outside_passes(trace, counted)),
        own_functions=on_cpu("own_functions", OWN_FUNCTIONS, lambda: own_functions(trace, counted)),
        workers=folded("workers", WORKERS, lambda: of_workers(trace)),
        made_on_cpu=on_device("made_on_cpu", MADE, of_some_ranks.MADE_ON_CPU),
        losses=on_device("losses", LOSSES, of_some_ranks.LOSS_WORK),
        casts=on_device("casts", CASTS, of_some_ranks.WEIGHT_CASTS),
        again=again,
        memory_peak=_memory_peak(session) if again.height and not on_host else 0.0,
        slow_products=folded("slow_products", SLOW_PRODUCTS, lambda: slow_products(trace, counted))
        if on_host
        else SLOW_PRODUCTS.to_frame(),
        launches_beside=0 if on_host else total("launches_beside", two_threads),
        saving=folded("saving", SAVING, lambda: _saving_beside(trace, session, ledger)),
        in_async=folded(
            "in_async",
            HELD_UP,
            lambda: pl.concat([HELD_UP.to_frame(), *each(of_some_ranks.HELD_BY_ASYNC)]),
        ),
        meeting=_sets(folded("meeting", MEETING, meeting)) if many else (),
        first_waits=total("first_waits", first) if many else 0,
        held_back=total("held_back", _held_back) if "communication_exposed" in answers else 0,
        over_slow_links=total("over_slow_links", over_links) if many else 0,
        surely_waited=total("surely_waited", sure) if many and missing else 0,
        clocks_apart=_clocks_apart(trace) if many else 0,
        with_frames=frozenset(folded("with_frames", RANKS, with_frames)["rank"]) if many else frozenset(),
        loops=frozenset(folded("loops", LOOPS, lambda: loops_over_steps(trace, counted))["name"]),
        passes=frozenset(folded("hold_passes", LOOPS, lambda: holds_passes(trace))["name"]),
        gpus=_of_ranks(trace, "gpu", pl.String),
        hosts=_of_ranks(trace, "host", pl.Int64),
        gained=partial(_gained, session),
        spent_in=partial(spent_in, trace, counted),
        schedule="".join(folded("schedule", SCHEDULE, lambda: _schedule(session))["schedule"])
        if many
        else "",
        purposes=of_bare().purposes,
        operations=of_bare().operations,
        stops=of_bare().stops,
        gathered_again=of_bare().gathered_again,
        waited=of_bare().waited,
        beyond_fastest=total("beyond_fastest", lambda session, counted: exposed().beyond_fastest())
        if missing
        else 0,
        data_parallel=in_one_process(trace),
        on_host=on_host,
        missing_ranks=missing,
        advice=advice,
        left=left,
        units=units,
        fitting=fitting,
    )


def _clocks_apart(trace: Trace) -> int:
    ranks = trace.table("ranks")
    error = None if ranks is None else ranks.select(pl.col("clock_error").max()).collect().item()
    return 2 * int(error or 0)


def _of_ranks(trace: Trace, column: str, dtype: type[pl.DataType]) -> dict[int, Any]:
    ranks = trace.table("ranks")
    if ranks is None:
        return {}
    known = ranks.select("rank", pl.col(column).cast(dtype)).drop_nulls().unique("rank", keep="first")
    return dict(known.collect().iter_rows())


def _gained(session: Session, edit: str) -> int:
    try:
        return gained(session, edit)
    except LostflopsError:  # what cannot be replayed must not cost the reader the page
        return 0


def _table(session: Session, recipe: str) -> pl.DataFrame | None:
    """The recipe's table, or None where the trace lacks what it needs. Raises what the recipe does."""
    answer = session.run(recipe)
    return None if isinstance(answer, Skipped) else answer.table


def _memory_peak(session: Session) -> float:
    memory = _table(session, "batch_headroom")
    return 0.0 if memory is None else float(memory["peak_share"].max() or 0.0)  # pyright: ignore[reportArgumentType]


def _waited(session: Session, counted: pl.DataFrame) -> pl.DataFrame:
    waits = _table(session, "communication_waited_for")
    if waits is None:
        return WAITED.to_frame()
    here = waits.join(counted, on=["rank", "step"], how="semi")
    return here.select(pl.col(c).cast(t) for c, t in WAITED.items())


def _schedule(session: Session) -> pl.DataFrame:
    """The pipeline's schedule, as far as its passes tell."""
    passes = _table(session, "pipeline_passes")
    if passes is None or passes.is_empty():
        return SCHEDULE.to_frame()
    named, untold = passes["schedule"].first(), passes["untold"].first()
    if untold is not None:  # stages seem to go through unlike numbers of passes: their order tells nothing
        return SCHEDULE.to_frame()
    # Of passes in no known order, those for the weights alone tell, where all stages go through as many.
    apart = bool(passes["kind"].eq("W").any())
    return pl.DataFrame({"schedule": [ZERO_BUBBLE if apart else str(named)]}, schema=SCHEDULE)


def _sets(meeting: pl.DataFrame) -> tuple[frozenset[int], ...]:
    by_lowest = meeting.group_by("lowest").agg("rank").sort("lowest")
    return tuple(frozenset(ranks) for ranks in by_lowest["rank"].to_list())


def _held_back(session: Session, counted: pl.DataFrame) -> int:
    gathers = _table(session, "communication_held_back")
    if gathers is None:
        return 0
    return int(gathers.join(counted, on=["rank", "step"], how="semi")["time"].sum())


def _saving_beside(trace: Trace, session: Session, ledger: pl.DataFrame) -> pl.DataFrame:
    """For how long of each step that counts a thread that neither launches nor is the main one saves."""
    found = [rows for _, rows in saving_rows(trace)]
    if not found:
        return SAVING.to_frame()
    every = pl.concat(found)
    spans = _table(session, "host_spans")
    if spans is not None:
        every = every.join(spans.select("rank", "thread").unique(), on=["rank", "thread"], how="anti")
    windows = ledger.select("rank", "step", "start", "end").unique().lazy()
    outermost = every.sort("start", pl.col("end"), descending=[False, True])["name"].first()
    inside = intervals.inside(windows, intervals.union(every.lazy(), ["rank"]), {"ns": pl.lit(True)})
    return (
        inside.filter(pl.col("ns") > 0)
        .with_columns(name=pl.lit(outermost))
        .select(pl.col(c).cast(t) for c, t in SAVING.items())
        .collect()
    )


def _beside(session: Session, ledger: pl.DataFrame) -> pl.DataFrame:
    """What runs Python while the thread that launches pauses between its rows, if a rank does so for long."""
    pauses = pl.col("account").is_in([*BETWEEN, OTHER_HOST])
    spent = ledger.group_by("rank").agg(pauses=pl.col("ns").filter(pauses).sum(), all=pl.col("ns").sum())
    if spent.filter(pl.col("pauses") >= BESIDE_FROM * pl.col("all")).is_empty():
        return BESIDE.to_frame()
    beside = _table(session, "python_beside")
    return (
        BESIDE.to_frame() if beside is None else beside.select(pl.col(c).cast(t) for c, t in BESIDE.items())
    )


def _fetches(trace: Trace, session: Session, counted: pl.DataFrame) -> int:
    spans, steps = _table(session, "host_spans"), trace.table("steps")
    if spans is None or steps is None:
        return 0
    begun = spans.lazy().filter(pl.col("account") == LOADING).select("rank", "start")
    return in_host_steps(begun, host_steps(steps, counted.lazy())).collect().height


def _beside_work(session: Session) -> int:
    streams = _table(session, "busiest_stream")
    return 0 if streams is None else int(streams["beside"].sum())


def _in_checkpoints(session: Session, counted: pl.DataFrame) -> int:
    saving = _copied_in_checkpoints(session, counted)
    return int(saving["exposed"].sum()) - int(saving["outlasted"].sum())


def _behind_checkpoints(session: Session, counted: pl.DataFrame) -> int:
    return int(_copied_in_checkpoints(session, counted)["behind"].sum())


def _outlasted(session: Session, counted: pl.DataFrame) -> int:
    return int(_copied_in_checkpoints(session, counted)["outlasted"].sum())


def _copied_in_checkpoints(session: Session, counted: pl.DataFrame) -> pl.DataFrame:
    copies = _table(session, "copies_by_cause")
    if copies is None:
        return pl.DataFrame(schema=dict.fromkeys(("exposed", "outlasted", "behind"), pl.Int64))
    return copies.filter(pl.col("cause") == CHECKPOINT).join(counted, on=["rank", "step"], how="semi")


def _mostly_bare(answers: Mapping[str, Answer]) -> bool:
    """Whether hardly any communication has computation beside it."""
    split = answers.get("communication_exposed")
    if split is None or not {"in_steps", "total_in_steps"} <= set(split.table.columns):
        return False
    exposed, whole = split.table.select(pl.col("in_steps", "total_in_steps").sum()).row(0)
    return whole > 0 and exposed >= BARE * whole
