"""What the joining of findings looks at: answers, the ledger, and what idle time is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from statistics import median
from typing import Any

import polars as pl

from lostflops import intervals
from lostflops.accounts import ACCOUNTS
from lostflops.errors import LostflopsError
from lostflops.finding import Finding, percent
from lostflops.recipes.compute.of_ranks import ASKED, PACES, WORK, asked_flops, computed_in, paces_of
from lostflops.recipes.host.launching_threads import launches_beside
from lostflops.recipes.host.saving import HELD_UP, held_up_by_async, saving_rows, with_proofs
from lostflops.recipes.host_steps import LOOPS, host_steps, in_host_steps, loops_over_steps
from lostflops.recipes.idle.evaluations import EVALUATIONS, in_evaluations
from lostflops.recipes.idle.gaps import between_nodes
from lostflops.recipes.idle.made_tensors import MADE, made_on_cpu
from lostflops.recipes.idle.read_values import computed_to_be_read, reads_after_passes, reads_values
from lostflops.recipes.idle.updates import UPDATES, in_updates
from lostflops.recipes.layout.micro_batches import alike, micro_batches
from lostflops.recipes.operators.loss_work import LOSSES, loss_work
from lostflops.recipes.operators.weight_casts import CASTS, weight_casts
from lostflops.recipes.transfers import lengthened
from lostflops.session import Answer, Session, Skipped
from lostflops.session.batches import Told, of_each_group
from lostflops.store.trace import Trace

from .declared import edits, remedies
from .gains import gained
from .names import bytes_of
from .purposes import (
    CALLED,
    MEETING,
    RING,
    STAGES,
    Exposed,
    first_waits,
    in_one_process,
    main_purpose,
    met,
    surely_waited,
)
from .purposes import SIZED as OF_SIZE

NAMES = pl.Schema({"rank": pl.Int32, "account": pl.String, "name": pl.String, "ns": pl.Int64})
WAITED = pl.Schema(
    {"rank": pl.Int32, "on": pl.Int32, "account": pl.String, "in_pair": pl.Boolean, "time": pl.Int64}
)
SAVING = pl.Schema({"rank": pl.Int32, "step": pl.Int64, "ns": pl.Int64, "name": pl.String})
PURPOSES, TOTAL = pl.Schema({"purpose": pl.String, "ns": pl.Int64}), pl.Schema({"ns": pl.Int64})
RANKS = pl.Schema({"rank": pl.Int32})
WINDOW = ("rank", "start", "end")
SCHEDULE = pl.Schema({"schedule": pl.String})
INTERLEAVED, ZERO_BUBBLE = "interleaved", "zb"
CHECKPOINT = "idle.checkpoint_logging"
OTHER_HOST, LOADING = "idle.other_host_work", "idle.data_loading"
HOST_WAITS = "host-waits-for-device"  # the finding about a CPU that reads values in steps
BETWEEN = ("idle.launch_bound", "idle.unexplained")  # what a host that runs ahead hides
BESIDE = pl.Schema({"rank": pl.Int32, "name": pl.String, "time": pl.Int64, "pauses": pl.Int64})
LONG = 1_000_000  # ns: a framework takes microseconds between two operators
BESIDE_FROM = 0.1  # of the steps: pauses of so much are held against other threads
COMMUNICATION = ("communication.wait", "communication.transfer", "communication.exposed")

# What `gather` asks of a session, where it has most to ask.
READS = (
    *("idle_causes", "copies_by_cause", "host_spans", "device_runs"),
    *("communication_waited_for", "communication_matches", "communication_matches"),
    *("communication_held_back", "pipeline_passes"),
)


def _plain(name: str, otherwise: str) -> str:
    return otherwise


def _none(names: Sequence[str]) -> tuple[str, ...]:
    return ()


def _not_replayed(edit: str) -> int:
    return 0


@dataclass(frozen=True)
class Given:
    """All that findings are joined by.

    `ledger` holds the steps that count, with the columns of the recipe `step_ledger`. `names` says how long
    each rank's idle time has each name in those steps, `work` how often each rank runs each kernel of one
    grid in them, `paces` the same in steps that compute longer and in the others, `flops` what matrix
    products and attention ask for in all of them on ranks whose shapes tell, `in_checkpoints` how much of the
    exposed copying was launched inside a checkpoint, ns, and `in_long_pauses` how much of the host's other
    work comes in stretches of a millisecond or more, ns. `updates` says how long the GPU idles inside the
    optimizer's step while the CPU launches its kernels, as `in_updates` does. `saving` says for how long of
    each step a thread that launches nothing saves a checkpoint, and in which row; `beside` for how long of
    the pauses of the thread that launches another thread runs Python, and in what. `purposes` says what
    exposed communication is for, `operations` in which kinds of operations of one size it is, ns, and
    `waited` what the ranks that others wait for do meanwhile, as the recipe `communication_waited_for` does;
    `held_back` is how much exposed communication began late because the host waited for its device, ns, and
    `surely_waited` how much of what may be waiting or transfer is waiting for ranks that are here, ns.
    `beyond_fastest` is how much longer exposed communication lasts than the same does at its fastest, where
    ranks are missing. `clocks_apart` is by how much the clocks of two ranks may still differ, ns. `advice`
    puts a remedy into the words of the framework that the job uses, and `left` are those of some remedies
    that it could still make.
    """

    answers: Mapping[str, Answer]
    ledger: pl.DataFrame
    names: pl.DataFrame = field(default_factory=NAMES.to_frame)
    work: pl.DataFrame = field(default_factory=WORK.to_frame)
    paces: pl.DataFrame = field(default_factory=PACES.to_frame)
    flops: Mapping[int, float] = field(default_factory=dict[int, float])
    beyond_least: Mapping[int, float] = field(default_factory=dict[int, float])  # as `asked_flops` tells it
    in_checkpoints: int = 0
    outlasted: int = 0  # exposed copying of checkpoints for which nothing waits, ns
    in_long_pauses: int = 0
    launches_beside: int = 0  # slow launching while two threads are at it, ns
    fetches: int = 0  # how often the loader is asked for a batch in all steps
    micro_batches: int = 0  # of each step, where that is sure
    beside_work: int = 0  # what the busiest stream of each rank leaves free of all its steps, ns
    saving: pl.DataFrame = field(default_factory=SAVING.to_frame)
    in_async: pl.DataFrame = field(default_factory=HELD_UP.to_frame)  # as `held_up_by_async` tells it
    updates: pl.DataFrame = field(default_factory=UPDATES.to_frame)
    evaluations: pl.DataFrame = field(default_factory=EVALUATIONS.to_frame)  # as `in_evaluations` tells them
    made_on_cpu: pl.DataFrame = field(default_factory=MADE.to_frame)  # as the function of that name tells
    losses: pl.DataFrame = field(default_factory=LOSSES.to_frame)  # as `loss_work` tells them
    casts: pl.DataFrame = field(default_factory=CASTS.to_frame)  # as `weight_casts` tells them
    beside: pl.DataFrame = field(default_factory=BESIDE.to_frame)
    purposes: Mapping[str, int] = field(default_factory=dict[str, int])
    operations: Mapping[str, int] = field(default_factory=dict[str, int])
    waited: pl.DataFrame = field(default_factory=WAITED.to_frame)
    held_back: int = 0
    to_be_read: int = 0  # how long kernels run of which few lie between two waits of the CPU, ns
    after_passes: int = 0  # waits in all steps, each after a pass of the model without gradients
    # Whether what the CPU waits for are values that it reads, and not copies to the GPU.
    reads_values: bool = True
    surely_waited: int = 0
    # What stages gain per step without slow links, by a replay, ns; 0 where none knows.
    over_slow_links: int = 0
    beyond_fastest: int = 0
    between_nodes: int = 0  # pauses between kernels of one graph, ns
    clocks_apart: int = 0
    data_parallel: bool = True
    on_host: bool = False
    missing_ranks: bool = False
    advice: Callable[[str, str], str] = _plain
    left: Callable[[Sequence[str]], tuple[str, ...]] = _none
    # How long whoever comes first waits in each operation, of a mean step of the rank with most of that, ns.
    first_waits: int = 0
    # Sets of ranks that take part in no operation of another set, such as actors and learners.
    meeting: tuple[frozenset[int], ...] = ()
    with_frames: frozenset[int] = frozenset()  # ranks that recorded what Python ran
    loops: frozenset[str] = frozenset()  # functions of which one call holds a whole step
    gpus: Mapping[int, str] = field(default_factory=dict[int, str])  # of each rank, as its driver names it
    hosts: Mapping[int, int] = field(default_factory=dict[int, int])  # number of each rank's, where known
    # What a mean step gains by an edit, as a replay has it, ns; 0 where none knows.
    gained: Callable[[str], int] = _not_replayed
    schedule: str = ""  # of the pipeline, as the recipe `pipeline_passes` names it; empty where not known
    units: frozenset[str] | None = None  # precisions of the GPU's matrix units; None where not known

    def named(self, finding: str) -> tuple[str, ...]:
        """The remedies that a finding or a case asks for, as far as this job could still make them."""
        asked = remedies().get(finding)
        return self.left(asked.all) if asked else ()

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for answer in self.answers.values() for finding in answer.findings)

    @cached_property
    def steps(self) -> dict[int, int]:
        """How many steps of each rank count."""
        windows = self.ledger.select("rank", "step", "start").unique()
        return dict(windows.group_by("rank").len().iter_rows())

    def meet(self, rank: int) -> frozenset[int]:
        """The ranks that meet this one in operations, over others too; all, where none is known."""
        mine = next((ranks for ranks in self.meeting if rank in ranks), frozenset[int]())
        return mine if len(mine) > 1 else frozenset(self.steps)

    @cached_property
    def most_waiting(self) -> frozenset[int]:
        """The set of ranks that meet in which most is waited; all, where there is but one."""
        waits = self.ledger.filter(account=COMMUNICATION[0]).group_by("rank").agg(pl.col("ns").sum())
        waited: dict[int, int] = dict(waits.iter_rows())
        sets = [ranks for ranks in self.meeting if len(ranks) > 1] or [frozenset(self.steps)]
        return max(sets, key=lambda ranks: sum(waited.get(rank, 0) for rank in ranks))

    def unnamed(self, account: str, rank: int | None = None) -> int:
        """What no row names of an account in a mean step of a mean rank, or of that rank, ns."""
        rows = self.names.filter(pl.col("name").is_null(), account=account)
        ns = rows["ns"] if rank is None else rows.filter(rank=rank)["ns"]
        return int(ns.sum()) // max(1, self.num_steps if rank is None else self.steps.get(rank, 1))

    def by_rank(self, *accounts: str) -> dict[int, int]:
        """What a mean step of each rank holds of these accounts, ns; of ranks that have any of them."""
        sums = self.ledger.filter(pl.col("account").is_in(accounts)).group_by("rank").agg(pl.col("ns").sum())
        return {at: ns // self.steps[at] for at, ns in sums.sort("rank").iter_rows() if at in self.steps}

    @cached_property
    def num_steps(self) -> int:
        """The same over all ranks."""
        return sum(self.steps.values())

    @cached_property
    def mean_step(self) -> float:
        """Length of a mean step, ns."""
        return int(self.ledger["ns"].sum()) / max(1, self.num_steps)

    @cached_property
    def accounts(self) -> dict[str, int]:
        """What a mean step of a mean rank holds of each account, ns."""
        sums = self.ledger.group_by("account").agg(pl.col("ns").sum())
        return {account: ns // max(1, self.num_steps) for account, ns in sums.iter_rows()}

    def waited_for(self, rank: int) -> int:
        """What ranks wait for this one in the end, of a mean step and rank, ns.

        Who waits for it comes as much later to its other groups, where further ranks wait for that one: if
        that one has no more of its own to do than the others.
        """
        own = self.waited.filter(~pl.col("account").is_in(COMMUNICATION), pl.col("rank") != rank)
        sums = own.group_by("rank", "on").agg(pl.col("time").sum())
        waits = {(by, on): ns for by, on, ns in sums.iter_rows()}
        late = {by: ns for (by, on), ns in waits.items() if on == rank}
        busy = {on: self.more_of_its_own(on) * self.steps.get(on, 1) for on in late}
        passed_on = (
            max(0, min(ns, late[on]) - busy[on]) for (_, on), ns in waits.items() if on != rank and on in late
        )
        return (sum(late.values()) + sum(passed_on)) // max(1, self.num_steps)

    def more_of_its_own(self, rank: int) -> int:
        """What a mean step of the rank holds beyond the median of the others, communication apart, ns."""
        own = self.ledger.filter(~pl.col("account").is_in(COMMUNICATION)).group_by("rank")
        spent = {at: ns / self.steps[at] for at, ns in own.agg(pl.col("ns").sum()).iter_rows()}
        others = [ns for at, ns in spent.items() if at != rank]
        return max(0, round(spent.get(rank, 0.0) - median(others))) if others else 0

    @cached_property
    def longest_wait(self) -> int:
        """What a mean step of the rank that waits most holds of waiting, ns."""
        return max(self.by_rank(COMMUNICATION[0]).values(), default=0)

    @property
    def read_per_step(self) -> int:
        """How long the kernels of `to_be_read` run in a mean step, ns."""
        return self.to_be_read // max(1, self.num_steps)

    def own_remedy(self, account: str) -> str:
        """What to do about an account on a CPU, where no framework's spelling says it; empty elsewhere."""
        return ACCOUNTS[account].remedy_on_host if self.on_host and account in ACCOUNTS else ""

    def table(self, recipe: str) -> pl.DataFrame | None:
        answer = self.answers.get(recipe)
        return None if answer is None else answer.table


def has_stages(given: Given) -> bool:
    """Whether ranks wait in sends and receives of stages: those make a rank late that is not so by itself."""
    if given.purposes.get(RING, 0) > given.purposes.get(STAGES, 0):
        return False
    table = given.table("communication_wait")
    return table is not None and _in_pairs(table)


def waited_in_pairs(given: Given) -> int:
    """What is waited in sends and receives in a mean step of a mean rank, ns; 0 where nothing tells."""
    table = given.table("communication_wait")
    if table is None or "in_pairs" not in table.columns:
        return 0
    return int(table["in_pairs"].sum()) // max(1, given.num_steps)


def _in_pairs(waits: pl.DataFrame) -> bool:
    return "in_pairs" in waits.columns and bool(waits["in_pairs"].sum())


def exposed_for(given: Given) -> Iterator[str]:
    """What the exposed communication is for, where there is more than one thing that it could be."""
    purpose, whole = main_purpose(given.purposes), sum(given.purposes.values())
    if purpose:
        share = "all" if given.purposes[purpose] == whole else percent(given.purposes[purpose], whole)
        yield f"{share} of it: {CALLED[purpose]}"


def exposed_operations(given: Given) -> Iterator[tuple[str, int]]:
    """The operations by how long nothing hides them in a mean step, ns."""
    for name, ns in given.operations.items():
        kind, _, size = name.partition(OF_SIZE)
        if size:
            sized = f" of {bytes_of(int(size))}" if int(size) and kind != "barrier" else ""
            yield f"{kind}{sized}", ns // max(1, given.num_steps)


def gather(
    trace: Trace,
    session: Session,
    answers: Mapping[str, Answer],
    ledger: pl.DataFrame,
    on_host: bool,
    world_size: int | None,
    advice: Callable[[str, str], str] = _plain,
    left: Callable[[Sequence[str]], tuple[str, ...]] = _none,
    units: frozenset[str] | None = None,
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
        if not links or not links.findings or waits is None or not _in_pairs(waits.table):
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
            return session.folded(f"page_{name}", fold)
        except LostflopsError:  # what one recipe cannot answer must not cost the reader the page
            return empty.to_frame()

    stretches = cache(partial(_table, session, "idle_causes"))
    asked = folded("flops", ASKED, lambda: asked_flops(trace, counted)) if many else ASKED.to_frame()

    def on_device(name: str, empty: pl.Schema, told: Told[pl.DataFrame]) -> pl.DataFrame:
        none = empty.to_frame()
        if on_host:
            return none
        return folded(name, empty, lambda: pl.concat([none, *of_each_group(trace, counted, told)]))

    def in_turn(_: Session, steps: pl.DataFrame) -> int:
        return alike(of_each_group(trace, steps, micro_batches))

    def nodes(_: Session, steps: pl.DataFrame) -> int:
        idle, kernels = stretches(), trace.table("kernels")
        return 0 if idle is None or kernels is None else between_nodes(idle, kernels, steps)

    def two_threads(_: Session, steps: pl.DataFrame) -> int:
        each = of_each_group(trace, steps, lambda some, at: launches_beside(some, stretches(), at))
        stretches.cache_clear()  # it is large, and nothing below reads it
        return sum(each)

    def total(name: str, fold: Callable[[Session, pl.DataFrame], int]) -> int:
        made = folded(name, TOTAL, lambda: pl.DataFrame({"ns": [fold(session, counted)]}, schema=TOTAL))
        return int(made["ns"].sum())

    return Given(
        answers=answers,
        ledger=ledger,
        names=folded("names", NAMES, lambda: _names(trace, stretches(), counted)),
        # Beside the names, as long as what both read is there.
        beside=folded("beside", BESIDE, lambda: _beside(session, ledger)),
        work=folded("work", WORK, lambda: computed_in(trace, on_host, ledger)) if many else WORK.to_frame(),
        paces=folded("paces", PACES, lambda: paces_of(trace, ledger)) if not on_host else PACES.to_frame(),
        flops=dict(asked.select("rank", "flops").iter_rows()),
        beyond_least=dict(asked.select("rank", "beyond").iter_rows()),
        in_checkpoints=total("in_checkpoints", _in_checkpoints) if "copy_summary_by_time" in answers else 0,
        outlasted=total("outlasted", _outlasted) if "copy_summary_by_time" in answers else 0,
        in_long_pauses=total("in_long_pauses", lambda _, steps: _in_long_pauses(stretches(), steps)),
        fetches=total("fetches", partial(_fetches, trace))
        if any(f.accounts == (LOADING,) for a in answers.values() for f in a.findings)
        else 0,
        micro_batches=0 if on_host else total("micro_batches", in_turn),
        beside_work=total("beside_work", lambda session, _: _beside_work(session)) if not on_host else 0,
        between_nodes=0 if on_host else total("between_nodes", nodes),
        # All kernels, so only where values are read at a cost.
        to_be_read=total("to_be_read", lambda _, counted: computed_to_be_read(trace, counted))
        if not on_host and any(f.name == HOST_WAITS for a in answers.values() for f in a.findings)
        else 0,
        after_passes=0 if on_host else total("after_passes", lambda _, at: reads_after_passes(trace, at)),
        reads_values=on_host or total("reads_values", lambda _, counted: reads_values(trace, counted)) > 0,
        updates=folded("updates", UPDATES, lambda: in_updates(trace, stretches(), counted))
        if not on_host
        else UPDATES.to_frame(),
        evaluations=on_device("evaluations", EVALUATIONS, lambda t, at: in_evaluations(t, stretches(), at)),
        made_on_cpu=on_device("made_on_cpu", MADE, lambda t, steps: made_on_cpu(t, stretches(), steps)),
        losses=on_device("losses", LOSSES, loss_work),
        casts=on_device("casts", CASTS, weight_casts),
        launches_beside=0 if on_host else total("launches_beside", two_threads),
        saving=folded("saving", SAVING, lambda: _saving_beside(trace, session, ledger)),
        in_async=folded(
            "in_async",
            HELD_UP,
            lambda: pl.concat([HELD_UP.to_frame(), *of_each_group(trace, counted, held_up_by_async)]),
        ),
        purposes=parts("purposes", lambda: exposed().by_purpose()),
        operations=parts("operations", lambda: exposed().by_operation()),
        waited=folded("waited", WAITED, lambda: _waited(session, counted)) if many else WAITED.to_frame(),
        meeting=_sets(folded("meeting", MEETING, meeting)) if many else (),
        first_waits=total("first_waits", first) if many else 0,
        held_back=total("held_back", _held_back) if "communication_exposed" in answers else 0,
        over_slow_links=total("over_slow_links", over_links) if many else 0,
        surely_waited=total("surely_waited", sure) if many and missing else 0,
        beyond_fastest=total("beyond_fastest", lambda session, counted: exposed().beyond_fastest())
        if missing
        else 0,
        clocks_apart=_clocks_apart(trace) if many else 0,
        with_frames=frozenset(folded("with_frames", RANKS, with_frames)["rank"]) if many else frozenset(),
        loops=frozenset(folded("loops", LOOPS, lambda: loops_over_steps(trace, counted))["name"]),
        gpus=_of_ranks(trace, "gpu", pl.String),
        hosts=_of_ranks(trace, "host", pl.Int64),
        gained=partial(_gained, session),
        schedule="".join(folded("schedule", SCHEDULE, lambda: _schedule(session))["schedule"])
        if many
        else "",
        data_parallel=in_one_process(trace),
        on_host=on_host,
        missing_ranks=missing,
        advice=advice,
        left=left,
        units=units,
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


def _names(trace: Trace, stretches: pl.DataFrame | None, counted: pl.DataFrame) -> pl.DataFrame:
    if stretches is None:
        return NAMES.to_frame()
    here = stretches.join(counted, on=["rank", "step"], how="semi").with_columns(
        pl.col("name").cast(pl.String)
    )
    return (
        pl.concat(
            [
                here.filter(account=CHECKPOINT).pipe(with_proofs, trace),
                here.filter(pl.col("account") != CHECKPOINT),
            ]
        )
        .group_by("rank", "account", "name")
        .agg(ns=(pl.col("end") - pl.col("start")).sum())
        .select(pl.col(c).cast(t) for c, t in NAMES.items())
    )


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


def _in_long_pauses(stretches: pl.DataFrame | None, counted: pl.DataFrame) -> int:
    if stretches is None:
        return 0
    other = stretches.filter(pl.col("account") == OTHER_HOST).join(counted, on=["rank", "step"], how="semi")
    length = pl.col("end") - pl.col("start")
    pauses = intervals.union(other.lazy(), ["rank"]).filter(length >= LONG)
    return int(pauses.select(length.sum()).collect().item() or 0)


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


def _outlasted(session: Session, counted: pl.DataFrame) -> int:
    return int(_copied_in_checkpoints(session, counted)["outlasted"].sum())


def _copied_in_checkpoints(session: Session, counted: pl.DataFrame) -> pl.DataFrame:
    copies = _table(session, "copies_by_cause")
    if copies is None:
        return pl.DataFrame(schema={"exposed": pl.Int64, "outlasted": pl.Int64})
    return copies.filter(pl.col("cause") == CHECKPOINT).join(counted, on=["rank", "step"], how="semi")
