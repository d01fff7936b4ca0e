"""What communication is for: gradients, shards, tensor or context parallelism, experts or pipeline stages.

The process group's description says it where there is one. Else the operation does: sends and receives join
pipeline stages, an all-to-all exchanges tokens or rows, an all-gather or a reduce-scatter brings shards. An
all-reduce is of gradients, unless the forward pass makes it: then it adds up what ranks computed of a layer.
So does a reduce-scatter of the forward pass, as with sequence parallelism, and its all-gathers bring tokens.
One number is no gradient and no shard, whatever group it goes through. What is added up after the optimizer's
step and before the next forward pass is no gradient either: local SGD averages weights there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import polars as pl

from lostflops import intervals
from lostflops.intervals.matching import PAIR, SYNCHRONISING
from lostflops.recipes.accounting import WAIT
from lostflops.recipes.communication.bandwidth import counted_bytes
from lostflops.store.trace import ONE_PER_DEVICE, OPENED, Trace

GRADIENTS, SHARDS, TENSOR, STAGES = "gradients", "shards", "tensor", "stages"
EXPERTS, EXCHANGE = "experts", "exchange"
RING, CONTEXT = "ring", "context"
BARRIERS, BROADCASTS, REPLICAS, OTHER = "barriers", "broadcasts", "replicas", "other"
UPDATED = "updated"
VALUES = "values"
AVERAGED = "averaged"
# What each is called on the page.
CALLED: Mapping[str, str] = {
    GRADIENTS: "all-reduces of gradients",
    SHARDS: "all-gathers and reduce-scatters of shards",
    TENSOR: "tensor parallelism",
    EXPERTS: "all-to-all exchanges between experts",
    EXCHANGE: "all-to-all exchanges",
    STAGES: "sends and receives between pipeline stages",
    RING: "sends and receives around a ring, as of context parallelism",
    CONTEXT: "context parallelism",
    BARRIERS: "barriers",
    BROADCASTS: "broadcasts",
    UPDATED: "broadcasts of weights that each rank has updated in the optimizer's step",
    AVERAGED: "all-reduces after the optimizer's step, as of weights that are averaged",
    VALUES: "single numbers or objects that ranks tell each other, such as losses",
    REPLICAS: "weights and gradients of `DataParallel`, which one process sends between its GPUs",
}
# What torch marks the forward pass of a `DataParallel` with.
IN_ONE_PROCESS = "DataParallel.forward"
BY_DESCRIPTION: Mapping[str, str] = {
    EXPERTS: r"(?i)expert|(?:^|_)ep(?:_|$)|moe",
    STAGES: r"(?i)pipeline|(?:^|_)pp(?:_|$)",
    SHARDS: r"(?i)fsdp|shard",
    GRADIENTS: r"(?i)data|replicate|ddp|(?:^|_)dp(?:_|$)",
    CONTEXT: r"(?i)context|(?:^|_)cp(?:_|$)",
    TENSOR: r"(?i)tensor|(?:^|_)(?:tp|sp)(?:_|$)|sequence|model_parallel",
}
BY_KIND: Mapping[str, str] = {
    **dict.fromkeys(("send", "receive", "send-receive"), STAGES),
    **dict.fromkeys(("dispatch", "combine", "notify", "layout"), EXPERTS),
    "all-to-all": EXCHANGE,
    **dict.fromkeys(("all-gather", "reduce-scatter"), SHARDS),
    **dict.fromkeys(("all-reduce", "reduce"), GRADIENTS),
    "barrier": BARRIERS,
    "broadcast": BROADCASTS,
}
REDUCE = ("all-reduce", "reduce-scatter")
ONE_NUMBER = 8  # bytes
# What these are for is plain, in whatever group they run.
BY_KIND_ALONE = (STAGES, BARRIERS, BROADCASTS, UPDATED)
# Of a group's bytes that all-reduces move, from which on those of the forward pass make it tensor parallel:
# statistics and flags that a forward pass reduces are small.
IN_FORWARD = 0.1
LATEST = 2**62
FORWARD = 0.25  # of a step: less than its forward pass, after which gradients are sent
ABSENT = "of its group are not here"  # what the reason of an operation whose members lack ends with
SIZED = "|"  # between an operation's kind and its bytes
MOST_OPERATIONS = 8
MEETING = pl.Schema({"rank": pl.Int32, "lowest": pl.Int32})
SOME, LARGE, SLACK = 4, 1 << 20, 1.5  # like operations; bytes that tell a link's speed, and by how far


def main_purpose(purposes: Mapping[str, int]) -> str:
    """What most exposed communication is for; empty where nothing that is known is most of it."""
    most = max(purposes, key=lambda purpose: purposes[purpose], default="")
    return most if most in CALLED and 2 * purposes[most] > sum(purposes.values()) else ""


@dataclass(frozen=True, eq=False)
class Exposed:
    """Communication inside counted steps that nothing hides.

    `runs` says what the device did when, as the recipe `device_runs` does. What `lengthened` operations take
    beyond the usual is a slow link's, and not counted.
    """

    trace: Trace
    runs: pl.DataFrame | None
    counted: pl.DataFrame
    lengthened: pl.DataFrame | None = None

    def by_purpose(self) -> dict[str, int]:
        """For how long each purpose is communicated for, ns."""
        return self._by(lambda rows: _purposes(self.trace, rows, lambda: self._in_forward).fill_null(OTHER))

    def by_operation(self) -> dict[str, int]:
        """The same for each kind of operation on as many bytes, of those that take most time."""
        return self._by(_operations)

    def gathered_again(self) -> int:
        """For how long shards are gathered that the forward pass had already, ns."""
        again = "backward"
        return self._by(lambda rows: _gathers_in(rows, self._in_forward, again)).get(again, 0)

    def beyond_fastest(self) -> int:
        """For how long operations last beyond what those like them take at their fastest, ns.

        Those like one are of its kind, group and size, on any rank; larger ones are no slower for each byte,
        by half.
        """
        if self._operations_and_cover is None:
            return 0
        rows, cover = self._operations_and_cover
        size = pl.max_horizontal("bytes_in", "bytes_out").cast(pl.Int64)
        took, of = pl.col("end") - pl.col("start"), ["kind", "group"]
        large = pl.col("size").fill_null(0) >= LARGE
        each = rows.with_columns(size=size).filter(took > 0).with_columns(
            like=pl.when(pl.col("size").is_not_null(), pl.len().over(*of, "size") >= SOME).then(
                took.min().over(*of, "size")
            ),
            a_byte=pl.when(large).then(took / pl.col("size")).min().over(of),
        )  # fmt: skip
        by_bytes = pl.when(large).then((SLACK * pl.col("a_byte") * pl.col("size")).cast(pl.Int64))
        longer = each.with_columns(end=pl.col("end") - pl.min_horizontal("like", by_bytes)).filter(
            pl.col("end") > pl.col("start")
        )
        if longer.is_empty():
            return 0
        here = intervals.union(longer.select("rank", "start", "end").lazy(), ["rank"])
        bare = intervals.inside(here, cover, {"exposed": pl.lit(True)})
        return int(bare.select(pl.col("exposed").sum()).collect().item())

    def stops(self) -> dict[str, int]:
        """How many all-reduces are followed by computing before the next of their step (`times`), and how
        long that takes (`computed`, ns); those of one number are none."""
        table = self.trace.table("collectives")
        if table is None or self.runs is None or self.counted.is_empty():
            return {}
        at, account = ["rank", "step"], pl.col("account").cast(pl.String)
        here = self.runs.join(self.counted, on=at, how="semi")
        windows = here.group_by(at).agg(pl.col("start").min(), until=pl.col("end").max()).sort("start")
        reduces = (pl.col("kind").cast(pl.String) == "all-reduce") & (pl.col("bytes_in") > ONE_NUMBER)
        gaps = (
            table.filter(reduces)
            .select("rank", "start", "end")
            .sort("start")
            .join_asof(windows.lazy(), on="start", by="rank", check_sortedness=False)
            .filter(pl.col("start") < pl.col("until"))
            .sort(*at, "start")
            .select("rank", start=pl.col("end").cum_max().over(at), end=pl.col("start").shift(-1).over(at))
            .filter(pl.col("end") > pl.col("start"))
        )
        computes = intervals.union(here.filter(account == "compute").lazy(), ["rank"])
        each = intervals.inside(gaps, computes, {"computed": pl.lit(True)}).filter(pl.col("computed") > 0)
        times, computed = each.select(pl.len(), pl.col("computed").sum()).collect().row(0)
        return {"times": int(times), "computed": int(computed)}

    @cached_property
    def _operations_and_cover(self) -> tuple[pl.DataFrame, pl.LazyFrame] | None:
        """All operations, and when one of them is exposed; None where there is nothing to tell."""
        table = self.trace.table("collectives")
        if table is None or self.runs is None or self.counted.is_empty():
            return None
        rows = table.collect()
        if rows.is_empty():
            return None
        alone = self.runs.filter(pl.col("account").cast(pl.String).str.starts_with("communication"))
        # What is waited for is no matter of what is sent, where anything is.
        moving = alone.filter(pl.col("account").cast(pl.String) != WAIT)
        alone = moving if moving.height else alone
        alone = alone.join(self.counted, on=["rank", "step"], how="semi").select("rank", "start", "end")
        return rows, intervals.union(alone.lazy(), ["rank"]).collect().lazy()

    @cached_property
    def _in_forward(self) -> pl.Series:
        """Whether the forward pass asked for each of all operations."""
        assert self._operations_and_cover is not None
        return _in_forward(self.trace, self._operations_and_cover[0])

    def _by(self, named: Callable[[pl.DataFrame], pl.Series]) -> dict[str, int]:
        if self._operations_and_cover is None:
            return {}
        rows, cover = self._operations_and_cover
        of = rows.select("rank", "start", self._end(rows), name=named(rows))
        # Two operations at a time share what is exposed: each name counts its own union.
        lanes = {name: of.filter(pl.col("name") == name) for name in of["name"].unique().sort()}
        return {
            name: int(
                intervals.inside(intervals.union(mine.lazy(), ["rank"]), cover, {"exposed": pl.lit(True)})
                .select(pl.col("exposed").sum())
                .collect()
                .item()
            )
            for name, mine in lanes.items()
        }

    def _end(self, rows: pl.DataFrame) -> pl.Series:
        if self.lengthened is None:
            return rows["end"]
        at = ["rank", "start", "end"]
        longer = rows.join(self.lengthened, on=at, how="left", maintain_order="left")["longer"]
        return rows["end"] - longer.fill_null(0)


def _operations(rows: pl.DataFrame) -> pl.Series:
    """The kind and the bytes of each operation, where those like it are among the longest.

    Bytes are those that the recipe `communication_summary` counts: of an all-gather what it brings together.
    """
    kind = pl.col("kind").cast(pl.String)
    size = counted_bytes(kind, pl.col("group_size").cast(pl.Int64)).cast(pl.Int64).fill_null(0)
    named = pl.concat_str(kind.fill_null(OTHER), size, separator=SIZED)
    told = rows.select(named.alias("name"), time=pl.col("end") - pl.col("start"))
    sums = told.group_by("name").agg(pl.col("time").sum())
    longest = sums.sort("time", "name", descending=[True, False])["name"].head(MOST_OPERATIONS)
    return told["name"].replace_strict(longest, longest, default=OTHER)


def _gathers_in(rows: pl.DataFrame, forward: pl.Series, backward: str) -> pl.Series:
    """What all-gathers are called that the forward pass did not ask for, null for all other operations."""
    gathers = pl.col("kind").cast(pl.String) == "all-gather"
    later = gathers & ~pl.lit(forward)
    return rows.select(pl.when(later).then(pl.lit(backward)).otherwise(None)).to_series().fill_null(OTHER)


def _purposes(trace: Trace, rows: pl.DataFrame, in_forward: Callable[[], pl.Series]) -> pl.Series:
    """What each operation is for; null where nothing tells. `in_forward` tells those of the forward pass."""
    if in_one_process(trace):
        return pl.Series([REPLICAS] * rows.height, dtype=pl.String)
    kind, group = pl.col("kind").cast(pl.String), _group()
    described = _described(trace)
    known = rows.select(
        said=group.str.extract(r"^(\S+)").replace_strict(described, default=None, return_dtype=pl.String),
        kind=kind.replace_strict(dict(BY_KIND), default=None, return_dtype=pl.String),
        reduces=kind.is_in(REDUCE),
        group=group,
        rank="rank",
        size=pl.max_horizontal("bytes_in", "bytes_out").fill_null(1),
        forward=in_forward(),
        averages=_after_updates(trace, rows),
    )
    if _brings_updates(trace):
        known = known.with_columns(pl.col("kind").replace({BROADCASTS: UPDATED}))
    sums_up = pl.col("reduces") & ~pl.col("averages")
    moved, forward = pl.col("size").filter(sums_up), pl.col("size").filter(sums_up & pl.col("forward"))
    share = (forward.sum() / moved.sum()).over("rank", "group").fill_nan(0).fill_null(0)
    tensor = (pl.col("reduces") | (pl.col("kind") == SHARDS)) & (share >= IN_FORWARD)
    # Without passes, what begins in a step's first part may be of layers; what comes later is of gradients.
    early = pl.col("group").is_in(_early(trace, rows)) if not _tells_passes(trace) else pl.lit(False)
    untold = (pl.col("kind") == GRADIENTS) & early & pl.col("said").is_null()
    moves = pl.col("kind").is_in(BY_KIND_ALONE)
    of_layers = pl.col("said").is_in([TENSOR, CONTEXT])
    ring = _in_rings(rows) | pl.lit(_multiplies_first(trace, rows)) | of_layers
    rings = (pl.col("kind") == STAGES) & ring & (pl.col("said").is_null() | (pl.col("said") != STAGES))
    # Groups of ranks that share data also bring each other the shards of weights and of gradients.
    brings = (pl.col("said") == GRADIENTS) & (pl.col("kind") == SHARDS)
    values = _of_values(rows) & pl.col("kind").is_in([GRADIENTS, SHARDS])
    averages = pl.col("averages") & (pl.col("said").is_null() | (pl.col("said") == GRADIENTS))
    return known.select(
        pl.when(values).then(pl.lit(VALUES)).when(rings).then(pl.lit(RING)).when(moves | brings).then("kind")
        # Heads for tokens, as in sequence parallelism: no matrix product hides half of it.
        .when((pl.col("kind") == EXCHANGE) & of_layers).then("kind")
        .when(tensor & pl.col("said").is_null()).then(pl.lit(TENSOR))
        # The first layer of a tensor-parallel model adds up rows of embeddings before any product.
        .when(averages).then(pl.lit(AVERAGED))
        .when(untold).then(None)
        .otherwise(pl.coalesce("said", "kind"))
        .alias("purpose")
    ).to_series()  # fmt: skip


def _group() -> pl.Expr:
    """The group, or where none is known the stream: PyTorch gives each group one of its own."""
    return pl.coalesce(pl.col("group").cast(pl.String), pl.format("of stream {}", "stream"), pl.lit(""))


def _of_values(rows: pl.DataFrame) -> pl.Series:
    """Whether each operation is of one number of each rank, or of objects, whose sizes go before them."""
    kind, by = pl.col("kind").cast(pl.String), ["rank", _group()]
    one = pl.col("bytes_in").is_between(1, ONE_NUMBER)
    sizes = one & (kind == "all-gather")
    objects = (kind == "all-gather") & sizes.shift(1, fill_value=False).over(by, order_by="start")
    return rows.select(one | objects).to_series().fill_null(False)


def _brings_updates(trace: Trace) -> bool:
    """Whether most broadcasts are made in the optimizer's step, as by PyTorch's `ZeroRedundancyOptimizer`."""
    operators = trace.table("operators")
    if operators is None:
        return False
    broadcasts = operators.filter(pl.col("name").cast(pl.String).str.contains(r"^c10d::broadcast"))
    updates = (pl.col("phase").cast(pl.String) == "optimizer").fill_null(False)
    return bool(broadcasts.select(2 * updates.sum() > pl.len()).collect().item())


def _tells_passes(trace: Trace) -> bool:
    """Whether anything recorded is known to be of the backward pass."""
    back = pl.col("phase").cast(pl.String) == "backward"
    return any(
        table.select(back.any()).collect().item()
        for name in ("kernels", "operators")
        if (table := trace.table(name)) is not None
    )


def _early(trace: Trace, rows: pl.DataFrame) -> list[str]:
    """The groups that reduce in the first part of a usual step already, by `_group`.

    What is over soon, such as a count of tokens, is of neither gradients nor layers.
    """
    steps = trace.table("steps")
    if steps is None:
        return []
    place = steps.select("rank", "step", from_="start", to="end").sort("rank", "from_").collect()
    reduces, took = pl.col("kind").cast(pl.String) == "all-reduce", pl.col("end") - pl.col("start")
    return (
        rows.filter(reduces)
        .filter(took >= IN_FORWARD * took.max().over(_group()))
        .select("rank", "arrival", group=_group())
        .sort("rank", "arrival")
        .join_asof(place, left_on="arrival", right_on="from_", by="rank", check_sortedness=False)
        .filter(pl.col("arrival") < pl.col("to"))
        .group_by("group", "rank", "step")
        .agg(first=((pl.col("arrival") - pl.col("from_")) / (pl.col("to") - pl.col("from_"))).min())
        .group_by("group")
        .agg(pl.col("first").median())
        .filter(pl.col("first") < FORWARD)["group"]
        .to_list()
    )


def _in_rings(rows: pl.DataFrame) -> pl.Expr:
    """Whether a send or receive is of a group in which every rank sends to one and receives from another.

    Between stages of a pipeline activations go one way and gradients the other.
    """
    ends = rows.select("rank", "peer", pl.col("group").cast(pl.String), kind=pl.col("kind").cast(pl.String))
    sends, receives = (pl.col("kind") == kind for kind in ("send", "receive"))
    to, of = (pl.col("peer").filter(which).drop_nulls() for which in (sends, receives))
    each = ends.group_by("rank", "group").agg(
        ring=(to.n_unique() == 1) & (of.n_unique() == 1) & (to.first() != of.first()),
        pairs=(sends | receives).any(),
    )
    whole = each.filter("pairs").group_by("group").agg(pl.col("ring").all())
    rings = whole.filter("ring")["group"]
    return pl.col("group").is_in(rings.implode())


def _multiplies_first(trace: Trace, rows: pl.DataFrame) -> bool:
    """Whether every rank that sends or receives multiplies matrices before, in every step.

    A stage of a pipeline but the first has nothing to compute before it receives. Around a ring go the keys
    and values that each rank has made. Two ranks of a ring send to where they receive from, as stages do, and
    of messages in one launch no peer is known. Ranks that are not here would tell more: then it is not known.
    """
    kernels, steps, ranks = (trace.table(name) for name in ("kernels", "steps", "ranks"))
    messages = rows.filter(pl.col("kind").cast(pl.String).replace_strict(dict(BY_KIND), default="") == STAGES)
    if kernels is None or steps is None or ranks is None or messages["rank"].n_unique() < 2:
        return False
    kinds = messages.group_by("rank").agg(pl.col("kind").cast(pl.String).unique())["kind"]
    if any("send-receive" not in those and those.len() < 2 for those in kinds):
        return False  # one of them only sends, or only receives
    here, world = ranks.select(pl.col("rank").n_unique(), world=pl.col("world_size").max()).collect().row(0)
    if world is not None and here < world:
        return False
    products = kernels.filter(pl.col("family").cast(pl.String) == "gemm").select("rank", "start").collect()
    windows = steps.filter(pl.col("complete").fill_null(True)).select("rank", "step", from_="start", to="end")
    order = windows.sort("rank", "from_").collect()

    def first(of: pl.DataFrame, name: str) -> pl.DataFrame:
        placed = of.sort("rank", "start").join_asof(
            order, left_on="start", right_on="from_", by="rank", check_sortedness=False
        )
        inside = placed.filter(pl.col("start") < pl.col("to"))
        return inside.group_by("rank", "step").agg(pl.col("start").min().alias(name))

    both = first(messages.select("rank", "start"), "message").join(
        first(products, "product"), on=["rank", "step"], how="left"
    )
    before = (pl.col("product") < pl.col("message")).fill_null(False)
    return both.height > 0 and bool(both.select(before.all()).item())


def in_one_process(trace: Trace) -> bool:
    """Whether one process trains on several devices with `DataParallel`."""
    ranks = trace.table("ranks")
    if ranks is None or (
        ranks.select(pl.col("rank_source").cast(pl.String).ne_missing(ONE_PER_DEVICE).any()).collect().item()
    ):
        return False
    marked = pl.col("name").cast(pl.String) == IN_ONE_PROCESS
    return any(
        table.select(marked.any()).collect().item()
        for name in ("ranges", "operators")
        if (table := trace.table(name)) is not None
    )


def _described(trace: Trace) -> dict[str, str]:
    """What groups are for, by their names, where their descriptions say it."""
    ranks = trace.table("ranks")
    if ranks is None:
        return {}
    groups = ranks.select(pl.col("groups").explode(empty_as_null=True)).drop_nulls().unnest("groups")
    # Ranks that describe one group differently: the first by name decides, whatever the order of the ranks.
    found = (
        groups.select("name", "description")
        .drop_nulls()
        .sort("name", "description")
        .collect()
        .unique("name", keep="first", maintain_order=True)
    )
    text = pl.col("description")
    purpose = pl.coalesce(
        *(pl.when(text.str.contains(mark)).then(pl.lit(p)) for p, mark in BY_DESCRIPTION.items())
    )
    return dict(found.select("name", purpose=purpose).drop_nulls().iter_rows())


def _in_forward(trace: Trace, rows: pl.DataFrame) -> pl.Series:
    """Whether the forward pass asked for each operation: launched there, or before a step's backward.

    What a thread without a pass launched is of the pass whose operator began last: a step of several
    micro-batches goes forward again after it went backward.
    """
    kernels, steps, operators = (trace.table(t) for t in ("kernels", "steps", "operators"))
    # The device gets to the forward pass when the host may be in the backward pass already.
    asked, of_host = rows.select("rank", "correlation", asked="arrival"), False
    phase = pl.Series([None] * rows.height, dtype=pl.String)
    if kernels is not None:
        on_device = (
            kernels.filter(pl.col("family").cast(pl.String) == "communication")
            .select("rank", "correlation", "launch_start", phase=pl.col("phase").cast(pl.String))
            .collect()
        )
        launched = on_device.drop_nulls("correlation").unique(["rank", "correlation"])
        told = asked.join(launched, on=["rank", "correlation"], how="left", maintain_order="left")
        phase = told["phase"]
        if not phase.null_count():
            return phase == "forward"
        # What was launched before the recording says nothing of the pass that it is of. On a CPU nothing is
        # launched: operations begin as they are asked for.
        of_host = on_device.is_empty()
        if not of_host:
            asked = told.with_columns(asked=pl.coalesce("launch_start", pl.lit(LATEST)))
    known = (phase == "forward").fill_null(False)
    if operators is None or steps is None:
        return known
    silent = phase.is_null()
    of_passes = operators.filter(pl.col("phase").is_not_null()).select("rank", "start", "phase")
    spoken = intervals.in_order(of_passes.collect(), "rank").rename({"start": "at"})
    backward = spoken.filter(pl.col("phase") == "backward").select("rank", "at", _at="at")
    place = steps.select("rank", "step", start=OPENED).sort("rank", "start").collect()
    opened = place.with_columns(_until=pl.col("start").shift(-1, fill_value=LATEST).over("rank"))
    first = opened.join_asof(
        backward, left_on="start", right_on="at", by="rank", strategy="forward", check_sortedness=False
    ).filter(pl.col("_at") < pl.col("_until"))
    at = (
        asked.filter(silent)
        .select("rank", start="asked")
        .with_row_index("_row")
        .sort("rank", "start")
        .join_asof(place, on="start", by="rank", strategy="backward", check_sortedness=False)
        .join(first.select("rank", "step", backward="_at"), on=["rank", "step"], how="left")
        .sort("rank", "start")
        .join_asof(spoken, left_on="start", right_on="at", by="rank", check_sortedness=False)
        .sort("_row")
    )
    again = (pl.col("phase") == "forward") & (pl.col("start") < LATEST)
    before = at.select(((pl.col("start") < pl.col("backward")) | again).fill_null(False)).to_series()
    if of_host and kernels is not None:
        reduces = rows.filter(silent)["kind"].cast(pl.String).is_in(REDUCE)
        before &= ~reduces | _after_a_product(kernels, opened, at)
    return known.scatter(silent.arg_true(), before)


def _after_updates(trace: Trace, rows: pl.DataFrame) -> pl.Series:
    """Whether each all-reduce was asked for after an operator of the optimizer's step and before a product of
    the next forward pass, or the end: no other product, backward pass or update lies between.

    An optimizer that steps within the backward pass has gradients reduced on both sides of its operators. A
    second update may follow, as DiLoCo's outer one does, where the group reduces nothing before the first."""
    kernels, operators = trace.table("kernels"), trace.table("operators")
    start, phase = pl.col("arrival"), pl.col("phase").cast(pl.String)
    never = pl.repeat(False, rows.height, dtype=pl.Boolean, eager=True)
    asked = rows.with_row_index("_row").filter(pl.col("kind").cast(pl.String) == "all-reduce")
    if operators is None or asked.is_empty():
        return never
    of_passes = operators.filter(phase.is_in(["optimizer", "backward"]))
    marks = of_passes.select("rank", "start", before=phase).collect()
    if not (marks["before"] == "optimizer").any():
        return never
    if kernels is not None:
        family, begun = pl.col("family").cast(pl.String), pl.coalesce("launch_start", "start")
        products = kernels.filter(family == "gemm", phase.ne_missing("optimizer"))
        marks.extend(products.select("rank", start=begun, before=pl.lit("product")).collect())
        launched = kernels.filter(family == "communication").select("rank", "correlation", "launch_start")
        told = launched.drop_nulls().collect().unique(["rank", "correlation"])
        asked = asked.join(told, on=["rank", "correlation"], how="left")
        start = pl.coalesce("launch_start", start)
    at = asked.select("_row", "rank", start=start, of=_group(), size="bytes_in").sort("start")
    marks = intervals.in_order(marks, "rank").with_columns(after="before")
    join = partial(pl.DataFrame.join_asof, on="start", by="rank", check_sortedness=False)
    at = join(at, marks.select("rank", "start", "before"), strategy="backward")
    at = join(at, marks.select("rank", "start", "after"), strategy="forward")
    updated, after = pl.col("before") == "optimizer", pl.col("after").fill_null("product")
    gradients = ~updated & (pl.col("size").fill_null(LATEST) > ONE_NUMBER)
    outer = (after == "optimizer") & ~gradients.any().over("rank", "of")
    return never.scatter(at.filter(updated & ((after == "product") | outer))["_row"], True)


def _after_a_product(kernels: pl.LazyFrame, opened: pl.DataFrame, at: pl.DataFrame) -> pl.Series:
    """Whether a matrix product of the forward pass begins in a step before each operation, by `_row`.

    What averages weights after a step comes before all products of the next: it adds up no part of a layer.
    """
    phase, family = (pl.col(column).cast(pl.String) for column in ("phase", "family"))
    products = kernels.filter(family == "gemm", phase == "forward").select("rank", "start").collect()
    begun = intervals.in_order(products, "rank").with_columns(_product="start")
    first = opened.join_asof(begun, on="start", by="rank", strategy="forward", check_sortedness=False)
    each = at.join(first.select("rank", "step", "_product"), on=["rank", "step"], how="left").sort("_row")
    return each.select((pl.col("start") > pl.col("_product")).fill_null(False)).to_series()


def surely_waited(matches: pl.DataFrame, runs: pl.DataFrame, counted: pl.DataFrame) -> int:
    """For how long ranks wait in such operations inside counted steps while nothing hides it, ns.

    `matches` and `runs` are as the recipes `communication_matches` and `device_runs` have them. Operations
    are told by the source's numbers; where it has none, nothing is certain.

    Nobody leaves a synchronising collective before everybody has come: what a rank spends in one before the
    last of those that are here is waiting, whoever is missing.
    """
    one = ["group", "kind", "sequence"]
    rows = matches.filter(
        pl.col("wait").is_null(),
        pl.col("reason").cast(pl.String).str.ends_with(ABSENT),
        pl.col("kind").cast(pl.String).is_in(SYNCHRONISING),
        pl.col("sequence").is_not_null(),
    ).filter(pl.len().over(one) == pl.col("rank").n_unique().over(one))
    waits = rows.select(
        "rank", start="arrival", end=pl.min_horizontal("end", pl.col("arrival").max().over(one))
    ).filter(pl.col("end") > pl.col("start"))
    bare = (
        runs.filter(pl.col("account").cast(pl.String) == "communication.exposed")
        .join(counted, on=["rank", "step"], how="semi")
        .select("rank", "start", "end")
    )
    if waits.is_empty() or bare.is_empty():
        return 0
    inside = intervals.inside(
        intervals.union(waits.lazy(), ["rank"]), intervals.union(bare.lazy(), ["rank"]), {"ns": pl.lit(True)}
    )
    return int(inside.select(pl.col("ns").sum()).collect().item())


def met(matches: pl.DataFrame) -> pl.DataFrame:
    """Which ranks take part in operations together, over others too: rank, and the lowest of those."""
    known = matches.filter(pl.col("instance").is_not_null())
    group = pl.col("group").cast(pl.String).fill_null("")
    is_pair = pl.col("kind").cast(pl.String).is_in(PAIR)
    of_groups = known.filter(~is_pair).select("rank", _of=group).unique().sort("_of", "rank")
    pairs = known.filter(is_pair).select("rank", "peer").unique().drop_nulls()
    sets = [frozenset[int](ranks) for ranks in of_groups.group_by("_of").agg("rank")["rank"]]
    sets += [frozenset[int](pair) for pair in pairs.iter_rows()]
    found: list[frozenset[int]] = []
    for ranks in sets:
        met = [each for each in found if each & ranks]
        found = [*(each for each in found if not each & ranks), ranks.union(*met)]
    told = sorted((rank, min(ranks)) for ranks in found for rank in ranks)
    return pl.DataFrame(told, schema=MEETING, orient="row")


def first_waits(matches: pl.DataFrame, windows: pl.DataFrame) -> int:
    """The longest wait in each operation, summed over those of a rank's mean step; of the rank with most, ns.

    If nobody came later than the first, no step could be shorter by more. `windows` are the steps that count,
    each `until` its end.
    """
    rows = (
        matches.filter(pl.col("wait").is_not_null(), ~pl.col("kind").cast(pl.String).is_in(PAIR))
        .with_columns(longest=pl.col("wait").max().over("instance"))
        .select("rank", "longest", start="arrival")
        .sort("start")
        .join_asof(windows.sort("start"), on="start", by="rank", check_sortedness=False)
        .filter(pl.col("start") < pl.col("until"))
    )
    each = rows.group_by("rank").agg(pl.col("longest").sum()).join(windows.group_by("rank").len(), on="rank")
    return int(each.select((pl.col("longest") // pl.col("len")).max()).item() or 0)
