"""Match one collective over the ranks that took part, and split its time on each into wait and transfer.

A collective begins to move data when its last participant arrives. What a rank spends in it before that is
waiting for others, what it spends after is transfer, whatever the kernel's own duration says.

Ranks run the collectives of one group in one order, so instances are told by the group and the place in that
order, never by time: by the source's sequence number where there is one, else by counting, from the start of
the recording or, when ranks began at different places, from its end. A match must agree in kind and bytes, and
no member of a synchronising collective may leave before the last has come.
"""

from __future__ import annotations

import polars as pl

# Nobody can leave these before everybody has arrived. The root of a broadcast can.
SYNCHRONISING = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "barrier")
# All ranks move the same bytes in these; an all-to-all may split unevenly.
SAME_BYTES = ("all-reduce", "all-gather", "reduce-scatter", "broadcast", "reduce")
# Shifting clocks needs a reason: an offset no noise explains.
SMALLEST_OFFSET = 1_000_000
OFFSET_OVER_ERROR = 10

WORLD = "all ranks"


def matches(collectives: pl.LazyFrame, ranks: pl.LazyFrame, *, trust_clocks: bool = True) -> pl.DataFrame:
    """Every collective of every rank, with its instance, wait and transfer where the ranks could be matched.

    Adds to `collectives`: instance, members, last_arrival, last_rank, latency, wait, transfer and reason. Wait
    and transfer add up to end - arrival; they are null, and `reason` says why, where there is no match. The
    last rank is null when it leads by less than the clock error. `latency` is the shortest stay of any member,
    which needs no common clock. Without `trust_clocks`, times of different ranks are not compared, and ranks must
    have recorded equally many collectives.
    """
    rows = collectives.collect().with_row_index("_row")
    known = ranks.select("rank", "world_size", "clock_error").unique("rank").collect()
    if rows.is_empty():
        return _finish(rows.with_columns(_key=pl.lit(None, dtype=pl.String), reason=pl.lit("")), 0)
    present = set(known["rank"].to_list())
    world = known["world_size"].max()
    error = known["clock_error"].max()
    rows = _grouped(rows, present, int(world) if isinstance(world, int) else None)
    rows = pl.concat(
        [_by_sequence(rows), _by_place(rows, trust_clocks), _pairs(rows), _unmatchable(rows)]
    ).sort("_row")
    noise = error if isinstance(error, int) else 0
    return _finish(_plausible(rows, noise, trust_clocks), noise)


def _grouped(rows: pl.DataFrame, present: set[int], world: int | None) -> pl.DataFrame:
    """Name each row's group, or say why it cannot be matched in `reason`."""
    if len(present) < 2:
        text = "only one rank is here; waiting cannot be told from transfer"
        return rows.with_columns(_group=pl.lit(None, dtype=pl.String), reason=pl.lit(text))
    listed = pl.col("group").cast(pl.String)
    groups = rows["group"].unique().cast(pl.String).to_list()
    several = len({g for g in groups if g is not None}) > 1
    missing: dict[str, str] = {}
    for group in groups:
        members = _members(group)
        absent = sorted(members - present) if members else []
        if absent:
            missing[str(group)] = f"ranks {_some(absent)} of its group are not here"
    whole = world is None or len(present) >= world
    if not whole:
        text = f"only {len(present)} of {world} ranks are here and its group is unknown"
        unknown = pl.lit(text)
    elif several:
        unknown = pl.lit("its group is unknown and the job has several")
    else:
        unknown = pl.lit("")
    p2p = pl.col("kind").cast(pl.String).is_in(["send", "receive"])
    return rows.with_columns(
        _group=listed.fill_null(WORLD),
        reason=pl.when(p2p)
        .then(pl.when(pl.col("peer").is_null()).then(pl.lit("its peer is unknown")).otherwise(pl.lit("")))
        .when(listed.is_null())
        .then(unknown)
        .otherwise(listed.replace_strict(missing, default="", return_dtype=pl.String)),
    )


def _members(group: str | None) -> set[int]:
    """The ranks that a group's name lists: '0 [0, 1, 2]'."""
    if group is None or not group.endswith("]") or "[" not in group:
        return set()
    inside = group[group.rindex("[") + 1 : -1]
    parts = [p.strip() for p in inside.split(",")]
    return {int(p) for p in parts} if all(p.isdigit() for p in parts) else set()


def _some(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:6])) + (", …" if len(ranks) > 6 else "")


def _is_pair() -> pl.Expr:
    return pl.col("kind").cast(pl.String).is_in(["send", "receive"])


def _by_sequence(rows: pl.DataFrame) -> pl.DataFrame:
    mine = rows.filter((pl.col("reason") == "") & pl.col("sequence").is_not_null() & ~_is_pair())
    return mine.with_columns(
        _key=pl.format("s|{}|{}|{}", pl.col("_group"), pl.col("kind").cast(pl.String), pl.col("sequence"))
    )


def _by_place(rows: pl.DataFrame, trust_clocks: bool) -> pl.DataFrame:
    """Instances by their place in the group's order, counted from the start, or else from the end."""
    mine = rows.filter((pl.col("reason") == "") & pl.col("sequence").is_null() & ~_is_pair())
    if mine.is_empty():
        return mine.with_columns(_key=pl.lit(None, dtype=pl.String))
    mine = mine.sort("arrival", "_row").with_columns(
        _place=pl.int_range(pl.len()).over("_group", "rank"),
        _count=pl.len().over("_group", "rank"),
    )
    mine = mine.with_columns(_back=pl.col("_count") - pl.col("_place"))
    verdict = _agreement(mine, "_place", trust_clocks).join(
        _agreement(mine, "_back", trust_clocks).rename({"_good": "_good_back"}), on="_group"
    )
    counts = mine.group_by("_group").agg(
        _fewest=pl.col("_count").min(), _most=pl.col("_count").max(), _ranks=pl.col("rank").n_unique()
    )
    mine = mine.join(verdict, on="_group", maintain_order="left").join(
        counts, on="_group", maintain_order="left"
    )
    key = (
        pl.when(pl.col("_good"))
        .then(pl.format("p|{}|{}", "_group", "_place"))
        .when(pl.col("_good_back"))
        .then(pl.format("b|{}|{}", "_group", "_back"))
    )
    why = (
        pl.when(pl.col("_ranks") < 2)
        .then(pl.lit("only one rank of its group recorded it"))
        .when(pl.col("_fewest") != pl.col("_most"))
        .then(
            pl.format(
                "ranks recorded between {} and {} collectives of its group, and neither end lines up",
                "_fewest",
                "_most",
            )
        )
        .otherwise(pl.lit("the ranks' collectives differ in kind, bytes or order"))
    )
    return (
        mine.with_columns(_key=key)
        .with_columns(reason=pl.when(pl.col("_key").is_null()).then(why).otherwise(pl.lit("")))
        .select(*rows.columns, "_key")
    )


def _agreement(mine: pl.DataFrame, place: str, trust_clocks: bool) -> pl.DataFrame:
    """Per group, whether the ranks agree in kind and bytes at every place that all of them have.

    What a row does not say agrees with anything, as long as the kernel has the same name and most places do
    say their kind: the first collectives of a recording lose their metadata with their launch.
    """
    members = mine.group_by("_group").agg(_ranks=pl.col("rank").n_unique())
    kind = pl.col("kind").cast(pl.String)
    told = kind.filter(kind != "unknown")
    same_kind = (told.n_unique() <= 1) & ((told.len() == pl.len()) | (pl.col("name").n_unique() == 1))
    same_bytes = (pl.col("bytes_in").drop_nulls().n_unique() <= 1) | ~kind.is_in(SAME_BYTES).all()
    places = (
        mine.group_by("_group", place)
        .agg(
            pl.len(),
            pl.col("_count").max(),
            _same=same_kind & same_bytes,
            _told=told.len() > 0,
            _inside=(pl.col("arrival").max() <= pl.col("end").min() + SMALLEST_OFFSET)
            | ~kind.is_in(SYNCHRONISING).all(),
        )
        .join(members, on="_group")
        .filter((pl.col("len") == pl.col("_ranks")) & (pl.col("_ranks") > 1))
    )
    if trust_clocks:
        good = pl.col("_same").all() & (pl.col("_told").mean() > 0.5) & (pl.col("_inside").mean() > 0.5)
    else:  # a shift by one place would look like a clock offset of one step
        good = pl.col("_same").all() & (pl.col("_told").mean() > 0.5) & (pl.col("_count").n_unique() == 1)
    return (
        members.select("_group")
        .join(
            places.group_by("_group").agg(_good=good),
            on="_group",
            how="left",
        )
        .with_columns(pl.col("_good").fill_null(False))
    )


def _pairs(rows: pl.DataFrame) -> pl.DataFrame:
    """Sends and their receives: the k-th from one rank to another."""
    mine = rows.filter((pl.col("reason") == "") & _is_pair()).sort("arrival", "_row")
    sends = pl.col("kind").cast(pl.String) == "send"
    mine = mine.with_columns(
        _from=pl.when(sends).then("rank").otherwise("peer"), _to=pl.when(sends).then("peer").otherwise("rank")
    )
    mine = mine.with_columns(_nth=pl.int_range(pl.len()).over("_from", "_to", "kind"))
    return mine.with_columns(_key=pl.format("x|{}|{}|{}", "_from", "_to", "_nth")).select(
        *rows.columns, "_key"
    )


def _unmatchable(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("reason") != "").with_columns(_key=pl.lit(None, dtype=pl.String))


def _plausible(rows: pl.DataFrame, error: int, trust_clocks: bool) -> pl.DataFrame:
    """Drop instances with one member, two rows of one rank, or times that contradict each other."""
    checked = (
        rows.filter(pl.col("_key").is_not_null())
        .group_by("_key")
        .agg(
            _members=pl.len(),
            _distinct=pl.col("rank").n_unique(),
            _early=(pl.col("arrival").max() > pl.col("end").min() + 2 * error)
            & pl.col("kind").cast(pl.String).is_in(SYNCHRONISING).all(),
        )
    )
    rows = rows.join(checked, on="_key", how="left", maintain_order="left")
    why = (
        pl.when(pl.col("_key").is_null())
        .then(pl.col("reason"))
        .when(pl.col("_members") < 2)
        .then(pl.lit("no other rank recorded it"))
        .when(pl.col("_members") != pl.col("_distinct"))
        .then(pl.lit("one rank appears twice in it"))
        .when(pl.col("_early") & trust_clocks)
        .then(pl.lit("the ranks' times contradict each other: one leaves before another has come"))
        .otherwise(pl.lit(""))
    )
    return rows.with_columns(reason=why).with_columns(
        _key=pl.when(pl.col("reason") == "").then(pl.col("_key"))
    )


def _finish(rows: pl.DataFrame, error: int) -> pl.DataFrame:
    """Number the instances and split each member's time."""
    matched = pl.col("_key").is_not_null()
    stay = pl.col("end") - pl.col("arrival")
    rows = (
        rows.with_columns(_when=pl.col("arrival").min().over("_key"))
        .with_columns(
            instance=pl.when(matched).then(pl.struct("_when", "_key").rank("dense").cast(pl.Int64) - 1)
        )
        .with_columns(
            members=pl.when(matched).then(pl.len().over("_key").cast(pl.Int32)),
            last_arrival=pl.when(matched).then(pl.col("arrival").max().over("_key")),
            _second=pl.col("arrival").top_k(2).min().over("_key"),
            latency=pl.when(matched).then(stay.min().over("_key")),
        )
    )
    # The rank ids are dense over matched rows only: unmatched ones took part in the ranking above.
    first = rows["instance"].min()
    shift = first if isinstance(first, int) else 0
    leads = pl.col("last_arrival") - pl.col("_second") > error
    last = pl.col("rank").sort_by("arrival").last().over("_key")
    wait = (pl.min_horizontal("end", "last_arrival") - pl.col("arrival")).clip(lower_bound=0)
    return (
        rows.with_columns(
            instance=pl.col("instance") - shift,
            last_rank=pl.when(matched & leads).then(last),
            wait=pl.when(matched).then(wait),
        )
        .with_columns(transfer=stay - pl.col("wait"))
        .sort("_row")
        .drop("_row", "_key", "_group", "_when", "_second", "_members", "_distinct", "_early", strict=False)
    )


def clock_offsets(collectives: pl.LazyFrame, ranks: pl.LazyFrame) -> pl.DataFrame:
    """Per rank, the ns to add to its times, and the error that remains: rank, offset, error.

    All members of a synchronising collective leave at nearly the same moment, so the median of how far a rank's
    ends lie from the middle of each instance is its clock's offset. An offset is only given where it exceeds
    what scatter explains; the error is 1.4826 times the median absolute deviation. Ranks without matched
    collectives are absent.
    """
    rows = matches(collectives, ranks, trust_clocks=False)
    usable = rows.filter(
        pl.col("instance").is_not_null() & pl.col("kind").cast(pl.String).is_in(SYNCHRONISING)
    )
    apart = usable.with_columns(_apart=pl.col("end") - pl.col("end").median().over("instance"))
    offset = apart.group_by("rank").agg(_offset=pl.col("_apart").median(), _n=pl.len())
    spread = (
        apart.join(offset, on="rank")
        .group_by("rank")
        .agg(error=(1.4826 * (pl.col("_apart") - pl.col("_offset")).abs().median()).ceil().cast(pl.Int64))
    )
    found = offset.join(spread, on="rank").sort("rank")
    large = (pl.col("_offset").abs() > SMALLEST_OFFSET) & (
        pl.col("_offset").abs() > OFFSET_OVER_ERROR * pl.col("error")
    )
    return found.select(
        "rank",
        offset=pl.when(large).then(-pl.col("_offset").round().cast(pl.Int64)).otherwise(0),
        error=pl.max_horizontal(
            "error", pl.when(large).then(0).otherwise(pl.col("_offset").abs().ceil().cast(pl.Int64))
        ),
    )
