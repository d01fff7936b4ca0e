"""Match one collective over the ranks that took part, and split its time on each into wait and transfer.

A collective begins to move data when its last participant arrives. What a rank spends in it before that is
waiting for others, what it spends after is transfer, whatever the kernel's own duration says.

Ranks run the operations of one lane, a process group or the two ends of a send, in one order. So instances
are told by the lane and the place in that order, never by time: by the source's sequence number where there
is one, else by counting, from the start of the recording or, when ranks began at different places, from its
end. An instance counts only when all members are there and agree in kind and bytes, and when no member of a
synchronising collective leaves before the last has come.

Most jobs have few collectives, and then making an expression of Polars takes longer than computing it: those
that are the same for every job are made once.
"""

from __future__ import annotations

import re
from functools import cache

import polars as pl

# Nobody can leave these before everybody has arrived. The root of a broadcast can.
SYNCHRONISING = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "barrier")
# All ranks move the same bytes in these; an all-to-all may split unevenly.
SAME_BYTES = ("all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce")
PAIR = ("send", "receive")
# A step of communication that one rank does alone: DeepEP counts tokens before it sends them.
LOCAL = ("layout",)
# Without a measured error, times up to this far apart are not held against a match.
UNKNOWN_ERROR = 1_000_000

WORLD = "all ranks"
ONE_RANK = "only one rank was recorded: its waiting and its transfer look alike"
LISTED = re.compile(r"\[[0-9, ]*\]$")
DIFFER = "the ranks' collectives differ in kind, bytes or order"
CONTRADICT = "the ranks' times contradict each other: one leaves before another has come"


def matches(collectives: pl.LazyFrame, ranks: pl.LazyFrame, *, trust_clocks: bool = True) -> pl.DataFrame:
    """Every collective of every rank, with its instance, wait and transfer where ranks could be matched.

    Adds to `collectives`: reason, instance, members, last_arrival, last_rank, lead, latency, wait, transfer,
    clock_error and assumed. Wait and transfer add up to end - arrival; they are null, and `reason` says why,
    where they cannot be told. The last rank is null when it leads by less than the clock error; `lead` is by
    how much it comes after the next to last. `latency` is the shortest stay of any member, which needs no
    common clock. `clock_error` is the largest of the members', and `assumed` says that nothing tells how many
    members there should be: the ranks that are here were taken for all. Without `trust_clocks`, times of
    different ranks are not compared, and ranks must have recorded equally many operations of a lane.
    """
    known = ranks.select("rank", "world_size", "clock_error", "groups").unique("rank", keep="first").collect()
    rows = _laned(collectives.collect().with_row_index("_row"), known)
    sequenced, counted, rest = _told_apart()
    rows = pl.concat(
        [
            *([_by_sequence(some)] if (some := rows.filter(sequenced)).height else []),
            *([_by_place(some, trust_clocks)] if (some := rows.filter(counted)).height else []),
            rows.filter(rest).with_columns(_key=pl.lit(None, dtype=pl.String)),
        ]
    )
    return _split(rows, _instances(rows, trust_clocks))


@cache
def _told_apart() -> tuple[pl.Expr, pl.Expr, pl.Expr]:
    """What is matched by sequence, by place, and not at all."""
    may, sequenced = pl.col("reason") == "", pl.col("_sequenced")
    return may & sequenced, may & ~sequenced, pl.col("reason") != ""


def _is_pair() -> pl.Expr:
    return pl.col("_kind") == "pair"


def _laned(rows: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """Each row's lane, and how many members its instances have, or the reason why it cannot be matched.

    Adds `_error` of its clock, `_kind` (both ends of a send are 'pair'), `_bytes`, `_lane`, `_size`,
    whether that is `assumed`, whether it is `_sequenced`, and `reason`.
    """
    present: set[int] = set(known["rank"].to_list())
    worlds: list[int] = known["world_size"].drop_nulls().to_list()
    # A job that does not say how many ranks it has, has at least those up to the highest here.
    world = max(worlds) if worlds else max([2, *(rank + 1 for rank in present)])
    group = pl.col("group").cast(pl.String)
    names: list[str] = rows["group"].cast(pl.String).drop_nulls().unique().to_list()
    several = len(names) > 1 or _num_memberships(known) > 1
    listed = {name: _members(name) for name in names}
    absent = {
        name: f"ranks {_some(sorted(ranks - present))} of its group are not here"
        for name, ranks in listed.items()
        if ranks - present
    }
    if len(present) < world:
        least = "" if worlds else "at least "
        unknown = f"only {len(present)} of {least}{world} ranks are here and its group is unknown"
    else:
        unknown = "its group is unknown and the job has several" if several else ""
    sized = {name: len(ranks) for name, ranks in listed.items() if ranks}
    size_told = group.replace_strict(sized, default=None, return_dtype=pl.Int64)
    size_told = pl.coalesce(size_told, pl.col("group_size").cast(pl.Int64))
    those_here = pl.max_horizontal(2, pl.col("rank").n_unique().over("group").cast(pl.Int64))
    pair, no_group = pl.col("_kind") == "pair", pl.col("group").is_null()
    return (
        rows.lazy()
        .join(known.lazy().select("rank", _error="clock_error"), on="rank", how="left")
        .with_columns(*_of_a_row())
        .with_columns(
            _size=pl.when(pair).then(2)
            .when(no_group).then(world)
            .otherwise(pl.coalesce(size_told, those_here)),
            assumed=pl.when(pair).then(False).when(no_group).then(not worlds).otherwise(size_told.is_null()),
        )
        .with_columns(
            reason=pl.when("_local").then(pl.lit("it takes part in nothing with other ranks"))
            .when("_alone").then(pl.lit("its peer is unknown"))
            .when(pl.col("_size") == 1).then(pl.lit(""))
            .when(len(present) < 2).then(pl.lit(ONE_RANK))
            .when(pair & ~pl.col("peer").is_in(sorted(present)))
            .then(pl.format("rank {}, its peer, is not here", "peer"))
            .when(pair).then(pl.lit(""))
            .when(no_group).then(pl.lit(unknown))
            .otherwise(group.replace_strict(absent, default="", return_dtype=pl.String))
        )
        .drop("_local", "_alone")
        .collect()
    )  # fmt: skip


@cache
def _of_a_row() -> tuple[pl.Expr, ...]:
    """What a row tells alone, whatever the job: `_kind`, `_bytes`, `_lane`, `_sequenced`, whether it is
    `_local`, and whether it lacks its peer, `_alone`."""
    kind, group = pl.col("kind").cast(pl.String), pl.col("group").cast(pl.String)
    pair, sends = kind.is_in(PAIR), kind == "send"
    ends = (
        pl.when(sends).then(pl.format("{}>{}", "rank", "peer")).otherwise(pl.format("{}>{}", "peer", "rank"))
    )
    length = (
        pl.when(sends)
        .then(pl.coalesce("bytes_in", "bytes_out"))
        .when(pair)
        .then(pl.coalesce("bytes_out", "bytes_in"))
        .otherwise("bytes_in")
    )
    lane = (
        pl.when(pair)
        .then(pl.concat_str(ends, group.fill_null(""), separator=" "))
        .otherwise(group.fill_null(WORLD))
    )
    return (
        pl.when(pair).then(pl.lit("pair")).otherwise(kind).alias("_kind"),
        length.alias("_bytes"),
        lane.alias("_lane"),
        # A send and its receive count on their own.
        (pl.col("sequence").is_not_null() & ~pair).alias("_sequenced"),
        kind.is_in(LOCAL).alias("_local"),
        ((kind == "send-receive") | (pair & pl.col("peer").is_null())).alias("_alone"),
    )


def _num_memberships(known: pl.DataFrame) -> int:
    """How many different sets of ranks the job's process groups join, those of one rank apart."""
    told = known.drop_nulls("groups")
    if told.is_empty():
        return 0
    members = told.select(pl.col("groups").explode(empty_as_null=True).struct.field("ranks"))["ranks"]
    listed = members.filter(members.list.len() > 1).list.sort().cast(pl.List(pl.String))
    return listed.list.join(" ").n_unique()


def _members(group: str) -> set[int]:
    """The ranks that a group's name lists: '0 [0, 1, 2]'."""
    found = LISTED.search(group)
    return {int(rank) for rank in re.findall(r"[0-9]{1,9}", found[0])} if found else set()


def _some(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:6])) + (", …" if len(ranks) > 6 else "")


def _by_sequence(rows: pl.DataFrame) -> pl.DataFrame:
    """Instances by the source's number. Operations issued together share it, and count on within it."""
    here = ["rank", "_lane", "_kind", "sequence"]
    nth, times = pl.int_range(pl.len()).over(here), pl.len().over(here)
    return (
        rows.lazy()
        .sort("arrival", "end", "_row")
        .with_columns(_nth=nth, _times=times)
        .with_columns(_key=pl.format("s|{}|{}|{}|{}/{}", "_lane", "_kind", "sequence", "_nth", "_times"))
        .select(*rows.columns, "_key")
        .collect()
    )


def _by_place(rows: pl.DataFrame, trust_clocks: bool) -> pl.DataFrame:
    """Instances by their place in the lane's order, counted from the start, or else from the end."""
    own = ["_lane", "rank"]
    mine = (
        rows.lazy()
        .sort("arrival", "end", "_row")
        .with_columns(_place=pl.int_range(pl.len()).over(own), _count=pl.len().over(own).cast(pl.Int64))
        .with_columns(_back=pl.col("_count") - pl.col("_place"))
        .collect()
        .lazy()
    )
    fewest, most = pl.col("_count").min(), pl.col("_count").max()
    lanes = (
        mine.group_by("_lane")
        .agg(_fewest=fewest, _most=most, _ranks=pl.col("rank").n_unique(), _equal=fewest == most)
        .collect()
    )
    forward = _agreement(mine, lanes.lazy(), "_place")
    # Where all ranks of each lane have as many, a place is the same from either end.
    back = forward if lanes["_equal"].all() else _agreement(mine, lanes.lazy(), "_back")
    told = lanes.lazy().join(forward, on="_lane").join(back, on="_lane", suffix="_back")
    lanes = told.select(*_order_of_lanes(trust_clocks))
    return mine.join(lanes, on="_lane").with_columns(*_keys()).select(*rows.columns, "_key").collect()


@cache
def _order_of_lanes(trust_clocks: bool) -> tuple[pl.Expr, ...]:
    """Of a lane with the agreement of its ranks: from which end places count, or why from neither."""
    equal = pl.col("_equal")
    told = pl.col("_told") > 0.5
    likely = pl.col("_same") & told & (pl.col("_inside") > 0.5)
    likely_back = pl.col("_same_back") & told & (pl.col("_inside_back") > 0.5)
    if trust_clocks:
        # Off by one, ranks leave before others come: where both ends agree, the possible one is the true one.
        forward = likely & (equal | ~likely_back | (pl.col("_inside") > pl.col("_inside_back")))
        back = likely_back & (~likely | (pl.col("_inside_back") > pl.col("_inside")))
    else:  # a shift by one place would look like a clock offset of one step
        forward, back = pl.col("_same") & told & equal, pl.lit(False)
    why = (
        pl.when(pl.col("_ranks") < 2)
        .then(pl.lit("no other rank recorded it"))
        .when(~told)
        .then(pl.lit("what most of its group's operations do is unknown"))
        .when(equal)
        .then(pl.when("_same").then(pl.lit(CONTRADICT)).otherwise(pl.lit(DIFFER)))
        .otherwise(
            pl.format(
                "ranks recorded between {} and {} operations of its group; which belong together is unclear",
                "_fewest",
                "_most",
            )
        )
    )
    return pl.col("_lane"), forward.alias("_forward"), back.alias("_backward"), why.alias("_why")


@cache
def _keys() -> tuple[pl.Expr, pl.Expr]:
    """What the members of an instance share, and where there is nothing the reason."""
    forward, back = pl.col("_forward"), pl.col("_backward")
    key = (
        pl.when(forward)
        .then(pl.format("p|{}|{}", "_lane", "_place"))
        .when(back)
        .then(pl.format("b|{}|{}", "_lane", "_back"))
    )
    reason = pl.when(key.is_null()).then("_why").otherwise("reason")
    return key.alias("_key"), reason.alias("reason")


def _agreement(mine: pl.LazyFrame, lanes: pl.LazyFrame, place: str) -> pl.LazyFrame:
    """Per lane, whether all ranks agree at every place that all have (`_same`), and the share of those places
    whose kind is told at all (`_told`) and whose times are possible (`_inside`)."""
    of_a_place, of_a_lane = _agreements()
    # All ranks of a lane have its first place, and its last.
    return (
        mine.group_by("_lane", place)
        .agg(*of_a_place)
        .join(lanes.select("_lane", "_ranks"), on="_lane")
        .filter(pl.col("len") == pl.col("_ranks"))
        .group_by("_lane")
        .agg(*of_a_lane)
        .collect()
        .lazy()
    )


@cache
def _agreements() -> tuple[tuple[pl.Expr, ...], tuple[pl.Expr, ...]]:
    """What `_agreement` adds up, of a place and of a lane."""
    known = pl.col("_error").max()
    slack = pl.when(known.is_null()).then(UNKNOWN_ERROR).otherwise(2 * known)
    kinds, possible = (pl.col("_kind") != "unknown").any(), _overrun() <= slack
    return (
        (pl.len(), _agree().alias("_one"), kinds.alias("_kinds"), possible.alias("_possible")),
        (
            pl.col("_one").all().alias("_same"),
            pl.col("_kinds").mean().alias("_told"),
            pl.col("_possible").mean().alias("_inside"),
        ),
    )


@cache
def _agree() -> pl.Expr:
    """Whether the rows of one instance do the same to as many bytes.

    What a row does not say agrees with anything that has the same name: the first operations of a recording
    lose what describes them with their launch.
    """
    kind = pl.col("_kind")
    told = kind.filter(kind != "unknown")
    same_kind = (told.n_unique() <= 1) & ((told.len() == pl.len()) | (pl.col("name").n_unique() == 1))
    ends = ~_is_pair().all() | (pl.col("kind").cast(pl.String).n_unique() == pl.len())
    same_bytes = pl.col("_bytes").drop_nulls().n_unique() <= 1
    return same_kind & ends & (same_bytes | ~kind.is_in([*SAME_BYTES, "pair"]).all())


@cache
def _overrun() -> pl.Expr:
    """How far the times of one instance's rows contradict each other, ns; at most 0 where they do not.

    Nobody leaves a synchronising collective before everybody is there, and no receive ends before its send
    began. One that lost its description is of the kind that the others of its name have.
    """
    sent = pl.col("arrival").filter(pl.col("kind").cast(pl.String) == "send")
    return (
        pl.when(pl.col("_kind").is_in(SYNCHRONISING).any())
        .then(pl.col("arrival").max() - pl.col("end").min())
        .when(_is_pair().any())
        .then(sent.max() - pl.col("end").min())
        .otherwise(0)
    )


def _instances(rows: pl.DataFrame, trust_clocks: bool) -> pl.LazyFrame:
    """One row per instance, by first arrival: what its members share, or why it does not count (`_why`)."""
    shared, why, numbered = _of_an_instance(trust_clocks)
    return (
        rows.lazy()
        .filter(pl.col("_key").is_not_null())
        .group_by("_key")
        .agg(*shared)
        .with_columns(why)
        .sort("_first", "_key")
        .with_columns(*numbered)
    )


@cache
def _of_an_instance(trust_clocks: bool) -> tuple[tuple[pl.Expr, ...], pl.Expr, tuple[pl.Expr, ...]]:
    """What the members of an instance share; why it does not count; its number, and who came last."""
    arrival = pl.col("arrival")
    error = pl.col("_error").max().fill_null(0)
    shared = {
        "members": pl.len().cast(pl.Int32),
        "_size": pl.col("_size").max(),
        "_distinct": pl.col("rank").n_unique(),
        "_agree": _agree(),
        "_contradict": _overrun() > 2 * error,
        "_noise": error,
        "_first": arrival.min(),
        "last_arrival": arrival.max(),
        "lead": arrival.max() - arrival.top_k(2).min(),
        "_last": pl.col("rank").sort_by("arrival", "rank").last(),
        "latency": (pl.col("end") - arrival).min(),
    }
    why = (
        pl.when(pl.col("_distinct") < pl.col("members"))
        .then(pl.lit("one rank appears twice in it"))
        .when((pl.col("_distinct") == 1) & (pl.col("_size") > 1))
        .then(pl.lit("no other rank recorded it"))
        .when(pl.col("_distinct") != pl.col("_size"))
        .then(pl.format("{} ranks recorded it, of the {} in its group", "_distinct", "_size"))
        .when(~pl.col("_agree"))
        .then(pl.lit(DIFFER))
        .when(pl.col("_contradict") & trust_clocks)
        .then(pl.lit(CONTRADICT))
        .otherwise(pl.lit(""))
    )
    counts = pl.col("_why") == ""
    number = pl.when(counts).then(counts.cast(pl.Int64).cum_sum() - 1)
    last = pl.when(pl.col("lead") > pl.col("_noise")).then("_last")
    return (
        tuple(value.alias(name) for name, value in shared.items()),
        why.alias("_why"),
        (number.alias("instance"), last.alias("last_rank")),
    )


SHARED = ("members", "last_arrival", "last_rank", "lead", "latency")


def _split(rows: pl.DataFrame, instances: pl.LazyFrame) -> pl.DataFrame:
    """The rows with what their instance says, and each member's time split at the last arrival."""
    own = [c for c in rows.columns if not c.startswith("_") and c not in ("reason", "assumed")]
    return (
        rows.lazy()
        .join(instances.select("_key", "_why", "_noise", "instance", *SHARED), on="_key", how="left")
        .with_columns(*_parts())
        .sort("_row")
        .select(*own, "reason", "instance", *SHARED, "wait", "transfer", "clock_error", "assumed")
        .collect()
    )


@cache
def _parts() -> tuple[pl.Expr, ...]:
    """What a member takes over from its instance, and how long it waits and transfers."""
    waited = pl.min_horizontal("end", "last_arrival") - pl.col("arrival")
    # Whoever leaves before the last comes did not wait for it: the root of a broadcast, a buffered send.
    left = (pl.col("last_arrival") - pl.col("end") > 2 * pl.col("_noise")) & ~pl.col("_kind").is_in(
        SYNCHRONISING
    )
    matched = pl.col("instance").is_not_null()
    wait = pl.when(matched & ~left).then(waited)
    return (
        *(pl.when(matched).then(c).alias(c) for c in SHARED),
        wait.alias("wait"),
        (pl.col("end") - pl.col("arrival") - wait).alias("transfer"),
        pl.when(matched).then("_noise").alias("clock_error"),
        pl.when(matched).then("assumed").alias("assumed"),
        pl.when(pl.col("_why") != "")
        .then("_why")
        .when(left)
        .then(pl.lit("it left before the last rank came, so it did not wait for that"))
        .otherwise("reason")
        .alias("reason"),
    )
