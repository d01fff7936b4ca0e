"""What the joining of findings looks at: answers, the ledger, and what idle time is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median

import polars as pl

from lostflops.accounts import ACCOUNTS
from lostflops.finding import Finding, percent
from lostflops.recipes.accounting import UNEXPLAINED
from lostflops.recipes.compute.of_ranks import PACES, WORK
from lostflops.recipes.host.saving import HELD_UP
from lostflops.recipes.idle.evaluations import EVALUATIONS
from lostflops.recipes.idle.made_tensors import MADE
from lostflops.recipes.idle.updates import UPDATES
from lostflops.recipes.needless.given_back import GIVEN_BACK
from lostflops.recipes.needless.outside_passes import OUTSIDE
from lostflops.recipes.needless.own_functions import OWN_FUNCTIONS
from lostflops.recipes.needless.products import SLOW_PRODUCTS
from lostflops.recipes.needless.run_again import RUN_AGAIN
from lostflops.recipes.needless.started_workers import WORKERS
from lostflops.recipes.operators.loss_work import LOSSES
from lostflops.recipes.operators.weight_casts import CASTS
from lostflops.session import Answer

from .declared import remedies
from .names import bytes_of
from .purposes import (
    CALLED,
    GRADIENTS,
    RING,
    STAGES,
    main_purpose,
)
from .purposes import SIZED as OF_SIZE

NAMES = pl.Schema({"rank": pl.Int32, "account": pl.String, "name": pl.String, "ns": pl.Int64})
WAITED = pl.Schema(
    {"rank": pl.Int32, "step": pl.Int64, "on": pl.Int32, "account": pl.String}
    | {"in_pair": pl.Boolean, "time": pl.Int64}
)
SAVING = pl.Schema({"rank": pl.Int32, "step": pl.Int64, "ns": pl.Int64, "name": pl.String})
INTERLEAVED, ZERO_BUBBLE = "interleaved", "zb"
CHECKPOINT = "idle.checkpoint_logging"
OTHER_HOST, LOADING = "idle.other_host_work", "idle.data_loading"
HOST_WAITS = "host-waits-for-device"  # the finding about a CPU that reads values in steps
BETWEEN = ("idle.launch_bound", UNEXPLAINED)  # what a host that runs ahead hides
BESIDE = pl.Schema({"rank": pl.Int32, "name": pl.String, "time": pl.Int64, "pauses": pl.Int64})
COMMUNICATION = ("communication.wait", "communication.transfer", "communication.exposed")


def plain(name: str, otherwise: str) -> str:
    return otherwise


def none_named(names: Sequence[str]) -> tuple[str, ...]:
    return ()


def _not_known(functions: Sequence[str]) -> int:
    return 0


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
    behind_checkpoints: int = 0  # how much of that goes on while the CPU is at no checkpoint, ns
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
    again: pl.DataFrame = field(default_factory=RUN_AGAIN.to_frame)  # as `run_again` tells it
    memory_peak: float = 0.0  # the largest share of a GPU's memory that is allocated; 0 where not known
    slow_products: pl.DataFrame = field(default_factory=SLOW_PRODUCTS.to_frame)  # as its function tells them
    given_back: pl.DataFrame = field(default_factory=GIVEN_BACK.to_frame)  # as its function tells it
    outside: pl.DataFrame = field(default_factory=OUTSIDE.to_frame)  # as `outside_passes` tells it
    own_functions: pl.DataFrame = field(default_factory=OWN_FUNCTIONS.to_frame)  # as its function tells
    workers: pl.DataFrame = field(default_factory=WORKERS.to_frame)  # as `of_workers` tells it
    beside: pl.DataFrame = field(default_factory=BESIDE.to_frame)
    purposes: Mapping[str, int] = field(default_factory=dict[str, int])
    operations: Mapping[str, int] = field(default_factory=dict[str, int])
    # As `Exposed.stops` tells it, where hardly any communication is hidden.
    stops: Mapping[str, int] = field(default_factory=dict[str, int])
    waited: pl.DataFrame = field(default_factory=WAITED.to_frame)
    held_back: int = 0
    to_be_read: int = 0  # how long kernels run of which few lie between two waits of the CPU, ns
    after_passes: int = 0  # waits in all steps, each after a pass of the model without gradients
    # Whether what the CPU waits for are values that it reads, and not copies to the GPU.
    reads_values: bool = True
    awaits_batches: bool = True  # whether the CPU waits for copies to the GPU, or may
    surely_waited: int = 0
    # What stages gain per step without slow links, by a replay, ns; 0 where none knows.
    over_slow_links: int = 0
    beyond_fastest: int = 0
    # How long nothing hides shards that are gathered again after the forward pass, ns; None where not known.
    gathered_again: int | None = None
    between_nodes: int = 0  # pauses between kernels of one graph, ns
    long_unexplained: int = 0  # what nothing explains in stretches of a millisecond or more, ns
    late_launches: int = 0  # pauses before work begins that was launched to an idle device, ns
    clocks_apart: int = 0
    data_parallel: bool = True
    on_host: bool = False
    missing_ranks: bool = False
    advice: Callable[[str, str], str] = plain
    left: Callable[[Sequence[str]], tuple[str, ...]] = none_named
    # How long whoever comes first waits in each operation, of a mean step of the rank with most of that, ns.
    first_waits: int = 0
    # Sets of ranks that take part in no operation of another set, such as actors and learners.
    meeting: tuple[frozenset[int], ...] = ()
    with_frames: frozenset[int] = frozenset()  # ranks that recorded what Python ran
    loops: frozenset[str] = frozenset()  # functions of which one call holds a whole step
    passes: frozenset[str] = frozenset()  # functions of the user's of which one call holds a backward pass
    gpus: Mapping[int, str] = field(default_factory=dict[int, str])  # of each rank, as its driver names it
    hosts: Mapping[int, int] = field(default_factory=dict[int, int])  # number of each rank's, where known
    # What a mean step gains by an edit, as a replay has it, ns; 0 where none knows.
    gained: Callable[[str], int] = _not_replayed
    # How long the steps that count are in some functions of the user's, with all that they call, ns.
    spent_in: Callable[[Sequence[str]], int] = _not_known
    schedule: str = ""  # of the pipeline, as the recipe `pipeline_passes` names it; empty where not known
    units: frozenset[str] | None = None  # precisions of the GPU's matrix units; None where not known
    fitting: Callable[[str], str] = str  # advice, with what there is for the maker's accelerators

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

    def holds(self, function: str) -> bool:
        """Whether a call of it holds a training loop or a backward pass: it cannot be taken out of a step."""
        return function in self.loops or function in self.passes

    def meet(self, rank: int) -> frozenset[int]:
        """The ranks with steps that count which meet this one in operations, over others too; all of those,
        where none is known."""
        mine = next((ranks for ranks in self.meeting if rank in ranks), frozenset[int]()) & self.steps.keys()
        return mine if len(mine) > 1 else frozenset(self.steps)

    def part_of(self, rank: int) -> Given:
        """What is given of the ranks that this one meets: itself, where these are all."""
        ranks = self.meet(rank)
        if ranks == self.steps.keys():
            return self
        rows = (self.ledger, self.names, self.waited)
        ledger, names, waited = (each.filter(pl.col("rank").is_in([*ranks])) for each in rows)
        return replace(self, ledger=ledger, names=names, waited=waited, meeting=())

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

        Who waits for it comes as much later to its other groups in that step, where ranks that never wait for
        it themselves wait for that one: if that one has no more of its own to do than the others.
        """
        own = self.waited.filter(~pl.col("account").is_in(COMMUNICATION), pl.col("rank") != rank)
        waits = own.group_by("rank", "on", "step").agg(pl.col("time").sum())
        late = waits.filter(on=rank).select("step", late="time", on="rank")
        busy = {on: self.more_of_its_own(on) for on in late["on"].unique()}
        least = pl.min_horizontal("time", "late") - pl.col("on").replace_strict(busy, return_dtype=pl.Int64)
        further = (pl.col("on") != rank) & ~pl.col("rank").is_in(late["on"].unique().implode())
        passed_on = waits.filter(further).join(late, on=["on", "step"]).select(least.clip(0).sum())
        return int((late["late"].sum() + passed_on.item()) // max(1, self.num_steps))

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
    return table is not None and in_pairs(table)


def waited_in_pairs(given: Given) -> int:
    """What is waited in sends and receives in a mean step of a mean rank, ns; 0 where nothing tells."""
    table = given.table("communication_wait")
    if table is None or "in_pairs" not in table.columns:
        return 0
    return int(table["in_pairs"].sum()) // max(1, given.num_steps)


def in_pairs(waits: pl.DataFrame) -> bool:
    return "in_pairs" in waits.columns and bool(waits["in_pairs"].sum())


def exposed_for(given: Given) -> Iterator[str]:
    """What the exposed communication is for, where there is more than one thing that it could be."""
    purpose, whole = main_purpose(given.purposes), sum(given.purposes.values())
    if purpose:
        share = "all" if given.purposes[purpose] == whole else percent(given.purposes[purpose], whole)
        said = CALLED[purpose]
        if purpose == GRADIENTS and not any(name.startswith("all-reduce") for name in given.operations):
            said = said.replace("all-reduces", "reductions", 1)  # each to one rank
        yield f"{share} of it: {said}"


def exposed_operations(given: Given) -> Iterator[tuple[str, int]]:
    """The operations by how long nothing hides them in a mean step, ns."""
    for name, ns in given.operations.items():
        kind, _, size = name.partition(OF_SIZE)
        if size:
            sized = f" of {bytes_of(int(size))}" if int(size) and kind != "barrier" else ""
            yield f"{kind}{sized}", ns // max(1, given.num_steps)
