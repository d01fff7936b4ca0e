"""Which of a job's process groups ran the operations that name none, as gloo's do, where times leave but one.

Operations of one kind and size are of one group, and the n-th on each of its ranks belong together: all have
as many, and nobody leaves a synchronising one before everybody has come. Groups that contradict that are out.
Of the others the largest is the one, for no part of it can contradict what it agrees with; but its parts may
meet by chance, so where it has some, all of its ranks have to leave together as well. And where now this part
comes last, now that, the ranks of one leave so much later as the last of all comes later, or do not.
"""

from __future__ import annotations

import polars as pl

ALIKE = ("kind", "bytes_in")
FEWEST = 4  # operations that are alike, from which on times say enough
LEFT_APART = 20_000  # ns, by which the ranks of a whole group may leave apart,
OF_STAY = 0.25  # or this share of their stay,
SELDOM = 0.05  # and of the operations, in which they may beyond that
VARIES = 5_000  # ns, by which the last of all comes later than the last of a part now and then, that tells
ERRORS, ROUNDED = 2.0, 0.05  # standard errors, within which a slope may be another, and beside those


def with_groups(
    given: pl.DataFrame, known: pl.DataFrame, *, synchronising: tuple[str, ...], unknown_error: int
) -> pl.DataFrame:
    """`given` with the group and its size of operations that name none, where that is certain.

    Where no clock error is known, times may contradict each other by `unknown_error`, ns.
    """
    of_none = pl.col("group").is_null() & pl.col("kind").cast(pl.String).is_in(synchronising)
    rows = given.with_row_index("row").filter(of_none)
    sets = _sets(known)
    if rows.is_empty() or sets["set"].n_unique() < 2:
        return given
    same = _numbered(rows, known)
    fits = sets.join(_not_contradicted(same, sets, unknown_error), on=["set", "label", "size"])
    of_all = _the_largest(_waited_for(fits, same))
    told = same.join(of_all, on=["rank", *ALIKE]).select("row", "label", "size")
    if told.is_empty():
        return given
    size = given.schema["group_size"]
    found = given.with_row_index("row").join(told, on="row", how="left", maintain_order="left")
    return found.with_columns(
        pl.coalesce(pl.col("group").cast(pl.String), "label").cast(given.schema["group"]),
        pl.coalesce("group_size", pl.col("size").cast(size)),
    ).drop("row", "label", "size")


def _numbered(rows: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """Operations by rank, with which of its like each is, and by how much its rank's times may be wrong."""
    error = known.select("rank", slack=2 * pl.col("clock_error"))
    same = rows.select(
        "row",
        "rank",
        "arrival",
        "end",
        kind=pl.col("kind").cast(pl.String),
        bytes_in=pl.col("bytes_in").fill_null(-1),
    ).join(error, on="rank", how="left")
    ordered = same.sort("arrival", "end", "row")
    return ordered.with_columns(nth=pl.int_range(pl.len()).over("rank", *ALIKE))


def _not_contradicted(same: pl.DataFrame, sets: pl.DataFrame, unknown_error: int) -> pl.DataFrame:
    """The groups that times leave to operations that are alike, and how often their ranks leave apart."""
    stays = pl.col("end") - pl.col("arrival")
    each = (
        same.join(sets, on="rank")
        .group_by("set", "label", "size", *ALIKE, "nth")
        .agg(
            whole=pl.len() == pl.col("size").first(),
            over=pl.col("arrival").max() - pl.col("end").min(),
            slack=pl.col("slack").fill_null(unknown_error).max(),
            apart=pl.col("end").max() - pl.col("end").min()
            > pl.max_horizontal(LEFT_APART, OF_STAY * stays.min()),
        )
    )
    return (
        each.group_by("set", "label", "size", *ALIKE)
        .agg(
            fits=(pl.col("whole") & (pl.col("over") <= pl.col("slack"))).all() & (pl.len() >= FEWEST),
            apart=pl.col("apart").mean(),
        )
        .filter("fits")
    )


def _waited_for(fits: pl.DataFrame, same: pl.DataFrame) -> pl.DataFrame:
    """The groups that are left, of a rank and of operations that are alike, where one holds another.

    With `later`, by how much the last rank of all comes after the last of the part, the part's ranks leave
    later by as much if they wait for all, and not at all if they wait for each other. Where it is as much
    each time, and the part leaves sooner by about that, it may be either.
    """
    one = ["set", *ALIKE]
    each = (
        fits.join(same, on=["rank", *ALIKE])
        .group_by(*one, "size", "nth")
        .agg(pl.col("rank"), last=pl.col("arrival").max(), left=pl.col("end").max())
    )
    ranks = fits.select(*one, "size", "rank").unique()
    held = ranks.join(ranks, on=["rank", *ALIKE], suffix="_whole").filter(
        pl.col("size") < pl.col("size_whole")
    )
    held = held.group_by(*one, "size", "set_whole").len().filter(pl.col("len") == pl.col("size"))
    whole = each.select(*ALIKE, "nth", set_whole="set", last_whole="last", left_whole="left")
    later, stay = pl.col("last_whole") - pl.col("last"), pl.col("left") - pl.col("last")
    slope, count = pl.cov(later, stay) / later.var(), pl.len()
    unexplained = (stay.var() - slope**2 * later.var()).clip(0)
    told = (
        held.join(each.drop("rank", "size"), on=one)
        .join(whole, on=["set_whole", *ALIKE, "nth"])
        .group_by(*one, "set_whole")
        .agg(
            slope=slope,
            error=ROUNDED + ERRORS * (unexplained / later.var() / (count - 2)).sqrt(),
            varies=later.std() > VARIES,
            either=(later.mean() > VARIES)
            & (2 * (pl.col("left_whole") - pl.col("left")).mean() > later.mean()),
        )
    )
    either = ~pl.col("varies") & pl.col("either")
    whole_only = pl.col("varies") & (pl.col("slope") > pl.col("error"))
    part_only = pl.col("varies") & (pl.col("slope") < 1 - pl.col("error"))
    no_part = told.filter(whole_only | either).select(one)
    no_whole = told.filter(part_only | either).select(*ALIKE, set="set_whole")
    return fits.join(pl.concat([no_part, no_whole.select(one)]), on=one, how="anti")


def _the_largest(fits: pl.DataFrame) -> pl.DataFrame:
    """Of the groups that times leave, the one that is certain, by rank and kind of operation."""
    of_rank = fits.with_columns(
        parts=pl.len().over("rank", *ALIKE) > 1,
        largest=pl.col("size") == pl.col("size").max().over("rank", *ALIKE),
    )
    only = of_rank.filter("largest").filter(pl.len().over("rank", *ALIKE) == 1)
    sure = only.filter(~pl.col("parts") | (pl.col("apart") <= SELDOM))
    of_all = sure.filter(pl.len().over("set", *ALIKE) == pl.col("size"))
    return of_all.select("rank", *ALIKE, "label", "size")


def _sets(known: pl.DataFrame) -> pl.DataFrame:
    """The sets of ranks that the job's groups join, those of one rank apart: each rank of each, with what the
    set is called in tables, and its size. None that has ranks that are not here."""
    told = known.drop_nulls("groups").filter(pl.col("groups").list.len() > 0)
    if told.is_empty():  # its lists may be of no kind then
        return pl.DataFrame(schema={"set": pl.String, "label": pl.String, "size": pl.Int64, "rank": pl.Int32})
    each = told.select(pl.col("groups").explode(empty_as_null=True).struct.unnest()).select(
        "name", ranks=pl.col("ranks").list.unique().list.sort()
    )
    texts = pl.col("ranks").cast(pl.List(pl.String)).list.join(", ")
    sets = (
        each.filter(pl.col("ranks").list.len() > 1)
        .with_columns(set=texts)
        .group_by("set", "ranks")
        .agg(name=pl.col("name").fill_null("").min())
        .with_columns(
            label=pl.col("name") + " [" + pl.col("set") + "]", size=pl.col("ranks").list.len().cast(pl.Int64)
        )
    )
    of_ranks = (
        sets.explode("ranks")
        .rename({"ranks": "rank"})
        .with_columns(pl.col("rank").cast(known.schema["rank"]))
    )
    here = of_ranks.join(known.select("rank"), on="rank", how="semi")
    return here.filter(pl.len().over("set") == pl.col("size")).select("set", "label", "size", "rank")
