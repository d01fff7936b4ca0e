"""Match one collective over the ranks that took part, and split its time on each into wait and transfer.

A collective begins to move data when its last participant arrives. What a rank spends in it before that is
waiting for others, what it spends after is transfer, whatever the kernel's own duration says.

Ranks run the operations of one lane, a process group or the two ends of a send, in one order. So instances
are told by the lane and the place in that order, never by time: by the source's sequence number where there
is one, else by counting, from the start of the recording or, when ranks began at different places, from its
end. An instance counts only when all members are there and agree in kind and bytes, and when no member of a
synchronising collective leaves before the last has come.
"""

from __future__ import annotations

import re

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
    rows = pl.concat(
        [
            _by_sequence(rows.filter((pl.col("reason") == "") & pl.col("_sequenced"))),
            _by_place(rows.filter((pl.col("reason") == "") & ~pl.col("_sequenced")), trust_clocks),
            rows.filter(pl.col("reason") != "").with_columns(_key=pl.lit(None, dtype=pl.String)),
        ]
    )
    return _split(rows, _instances(rows, trust_clocks))


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
    kind = pl.col("kind").cast(pl.String)
    pair = kind.is_in(PAIR)
    sends = kind == "send"
    ends = (
        pl.when(sends).then(pl.format("{}>{}", "rank", "peer")).otherwise(pl.format("{}>{}", "peer", "rank"))
    )
    if len(present) < world:
        least = "" if worlds else "at least "
        unknown = f"only {len(present)} of {least}{world} ranks are here and its group is unknown"
    else:
        unknown = "its group is unknown and the job has several" if several else ""
    alone = pl.col("_size") == 1
    sized = {name: len(ranks) for name, ranks in listed.items() if ranks}
    size_told = group.replace_strict(sized, default=None, return_dtype=pl.Int64)
    size_told = pl.coalesce(size_told, pl.col("group_size").cast(pl.Int64))
    return (
        rows.join(known.select("rank", _error="clock_error"), on="rank", how="left")
        .with_columns(
            _kind=pl.when(pair).then(pl.lit("pair")).otherwise(kind),
            _bytes=pl.when(sends).then(pl.coalesce("bytes_in", "bytes_out"))
            .when(pair).then(pl.coalesce("bytes_out", "bytes_in"))
            .otherwise("bytes_in"),
            _lane=pl.when(pair).then(pl.concat_str(ends, group.fill_null(""), separator=" "))
            .otherwise(group.fill_null(WORLD)),
            _size=pl.when(pair).then(2)
            .when(group.is_null()).then(world)
            .otherwise(
                pl.coalesce(
                    size_told, pl.max_horizontal(2, pl.col("rank").n_unique().over("group").cast(pl.Int64))
                )
            ),
            assumed=pl.when(pair).then(False)
            .when(group.is_null()).then(not worlds)
            .otherwise(size_told.is_null()),
            # A send and its receive count on their own.
            _sequenced=pl.col("sequence").is_not_null() & ~pair,
        )
        .with_columns(
            reason=pl.when(kind.is_in(LOCAL)).then(pl.lit("it takes part in nothing with other ranks"))
            .when((kind == "send-receive") | (pair & pl.col("peer").is_null()))
            .then(pl.lit("its peer is unknown"))
            .when(alone).then(pl.lit(""))
            .when(len(present) < 2).then(pl.lit(ONE_RANK))
            .when(pair & ~pl.col("peer").is_in(sorted(present)))
            .then(pl.format("rank {}, its peer, is not here", "peer"))
            .when(pair).then(pl.lit(""))
            .when(group.is_null()).then(pl.lit(unknown))
            .otherwise(group.replace_strict(absent, default="", return_dtype=pl.String))
        )
    )  # fmt: skip


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
        rows.sort("arrival", "end", "_row")
        .with_columns(_nth=nth, _times=times)
        .with_columns(_key=pl.format("s|{}|{}|{}|{}/{}", "_lane", "_kind", "sequence", "_nth", "_times"))
        .select(*rows.columns, "_key")
    )


def _by_place(rows: pl.DataFrame, trust_clocks: bool) -> pl.DataFrame:
    """Instances by their place in the lane's order, counted from the start, or else from the end."""
    own = ["_lane", "rank"]
    mine = (
        rows.sort("arrival", "end", "_row")
        .with_columns(_place=pl.int_range(pl.len()).over(own), _count=pl.len().over(own).cast(pl.Int64))
        .with_columns(_back=pl.col("_count") - pl.col("_place"))
    )
    lanes = mine.group_by("_lane").agg(
        _fewest=pl.col("_count").min(), _most=pl.col("_count").max(), _ranks=pl.col("rank").n_unique()
    )
    lanes = lanes.join(_agreement(mine, lanes, "_place"), on="_lane").join(
        _agreement(mine, lanes, "_back"), on="_lane", suffix="_back"
    )
    equal = pl.col("_fewest") == pl.col("_most")
    told = pl.col("_told") > 0.5
    likely = pl.col("_same") & told & (pl.col("_inside") > 0.5)
    likely_back = pl.col("_same_back") & told & (pl.col("_inside_back") > 0.5)
    if trust_clocks:
        # Off by one, ranks leave before others come: where both ends agree, the possible one is the true one.
        forward = likely & (equal | ~likely_back | (pl.col("_inside") > pl.col("_inside_back")))
        back = likely_back & (~likely | (pl.col("_inside_back") > pl.col("_inside")))
    else:  # a shift by one place would look like a clock offset of one step
        forward, back = pl.col("_same") & told & equal, pl.lit(False)
    lanes = lanes.select(
        "_lane",
        _forward=forward,
        _backward=back,
        _why=pl.when(pl.col("_ranks") < 2)
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
        ),
    )
    return (
        mine.join(lanes, on="_lane")
        .with_columns(
            _key=pl.when("_forward")
            .then(pl.format("p|{}|{}", "_lane", "_place"))
            .when("_backward")
            .then(pl.format("b|{}|{}", "_lane", "_back"))
        )
        .with_columns(reason=pl.when(pl.col("_key").is_null()).then("_why").otherwise("reason"))
        .select(*rows.columns, "_key")
    )


def _agreement(mine: pl.DataFrame, lanes: pl.DataFrame, place: str) -> pl.DataFrame:
    """Per lane, whether all ranks agree at every place that all have (`_same`), and the share of those places
    whose kind is told at all (`_told`) and whose times are possible (`_inside`)."""
    known = pl.col("_error").max()
    slack = pl.when(known.is_null()).then(UNKNOWN_ERROR).otherwise(2 * known)
    # All ranks of a lane have its first place, and its last.
    return (
        mine.group_by("_lane", place)
        .agg(
            pl.len(),
            _one=_agree(),
            _kinds=(pl.col("_kind") != "unknown").any(),
            _possible=_overrun() <= slack,
        )
        .join(lanes.select("_lane", "_ranks"), on="_lane")
        .filter(pl.col("len") == pl.col("_ranks"))
        .group_by("_lane")
        .agg(_same=pl.col("_one").all(), _told=pl.col("_kinds").mean(), _inside=pl.col("_possible").mean())
    )


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


def _instances(rows: pl.DataFrame, trust_clocks: bool) -> pl.DataFrame:
    """One row per instance, by first arrival: what its members share, or why it does not count (`_why`)."""
    arrival = pl.col("arrival")
    error = pl.col("_error").max().fill_null(0)
    found = (
        rows.filter(pl.col("_key").is_not_null())
        .group_by("_key")
        .agg(
            members=pl.len().cast(pl.Int32),
            _size=pl.col("_size").max(),
            _distinct=pl.col("rank").n_unique(),
            _agree=_agree(),
            _contradict=_overrun() > 2 * error,
            _noise=error,
            _first=arrival.min(),
            last_arrival=arrival.max(),
            lead=arrival.max() - arrival.top_k(2).min(),
            _last=pl.col("rank").sort_by("arrival", "rank").last(),
            latency=(pl.col("end") - arrival).min(),
        )
        .with_columns(
            _why=pl.when(pl.col("_distinct") < pl.col("members"))
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
        .sort("_first", "_key")
    )
    counts = pl.col("_why") == ""
    leads = pl.col("lead") > pl.col("_noise")
    return found.with_columns(
        instance=pl.when(counts).then(counts.cast(pl.Int64).cum_sum() - 1),
        last_rank=pl.when(leads).then("_last"),
    )


def _split(rows: pl.DataFrame, instances: pl.DataFrame) -> pl.DataFrame:
    """The rows with what their instance says, and each member's time split at the last arrival."""
    own = [c for c in rows.columns if not c.startswith("_") and c not in ("reason", "assumed")]
    shared = ["members", "last_arrival", "last_rank", "lead", "latency"]
    stay = pl.col("end") - pl.col("arrival")
    waited = pl.min_horizontal("end", "last_arrival") - pl.col("arrival")
    # Whoever leaves before the last comes did not wait for it: the root of a broadcast, a buffered send.
    left = (pl.col("last_arrival") - pl.col("end") > 2 * pl.col("_noise")) & ~pl.col("_kind").is_in(
        SYNCHRONISING
    )
    matched = pl.col("instance").is_not_null()
    return (
        rows.join(
            instances.select("_key", "_why", "_noise", "instance", *shared),
            on="_key",
            how="left",
        )
        .with_columns(
            *(pl.when(matched).then(c).alias(c) for c in shared),
            wait=pl.when(matched & ~left).then(waited),
            clock_error=pl.when(matched).then("_noise"),
            assumed=pl.when(matched).then("assumed"),
            reason=pl.when(pl.col("_why") != "")
            .then("_why")
            .when(left)
            .then(pl.lit("it left before the last rank came, so it did not wait for that"))
            .otherwise("reason"),
        )
        .with_columns(transfer=stay - pl.col("wait"))
        .sort("_row")
        .select(*own, "reason", "instance", *shared, "wait", "transfer", "clock_error", "assumed")
    )
