"""Recordings that are not of one run at one time: what ranks wait for each other then means nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from lostflops.causes.names import called
from lostflops.intervals.matching import CONTRADICT, DIFFER, NOBODY_ELSE, PAIR
from lostflops.store.trace import NO_LINK, Quality, Trace

OF_OTHER_TIMES = "recordings of different times"
FEWEST = 3  # operations of a rank that tell of others


def of_other_times(quality: Sequence[Quality]) -> Iterator[str]:
    """That ranks were never recorded at the same time."""
    for fact in quality:
        if fact.name == OF_OTHER_TIMES:
            yield f"{fact.text[0].upper()}{fact.text[1:]}."


def of_several_jobs(quality: Sequence[Quality]) -> Iterator[str]:
    """That nothing shows the files to be of one job."""
    for fact in quality:
        if fact.name == NO_LINK:
            yield f"Nothing shows that these files are of one job: {fact.text}."


def of_other_runs(trace: Trace, matches: pl.DataFrame) -> Iterator[str]:
    """That ranks have no operation in common with those that their groups name, or none at the same time."""
    shared = matches.filter(
        ~pl.col("kind").cast(pl.String).is_in(PAIR), pl.col("group_size").fill_null(2) > 1
    )
    reason = pl.col("reason").cast(pl.String)
    each = (
        shared.filter(_with_others(trace, shared))
        .group_by("rank")
        .agg(
            pl.len(),
            alone=(reason == NOBODY_ELSE).sum(),
            contradict=reason.is_in([CONTRADICT, DIFFER]).sum(),
            differ=(reason == DIFFER).sum(),
            kinds=pl.col("kind").cast(pl.String).unique().sort(),
        )
        .filter(pl.col("len") >= FEWEST)
        .sort("rank")
    )
    if each.is_empty():
        return
    alone = each.filter(pl.col("alone") == pl.col("len"))["rank"].to_list()
    if alone and len(alone) < each.height:
        who, many = called(alone), len(alone) > 1
        yield (
            f"{who[0].upper()}{who[1:]} took part in no operation that the other ranks of "
            f"{'their' if many else 'its'} groups recorded: "
            f"{'these files are' if many else 'this file is'} of other steps or of another run. "
            "How long ranks wait for each other is not known."
        )
    elif alone:
        yield (
            "The ranks recorded no operation together, though their groups name each other: their files are "
            "of other steps or of other runs. How long ranks wait for each other is not known."
        )
    elif each.select((pl.col("contradict") == pl.col("len")).all()).item():
        differ = bool(each["differ"].sum())
        if differ and each["kinds"].n_unique() == 1:
            return  # by bytes alone, which may differ by rank
        if shared["sequence"].null_count() == shared.height and _of_other_steps(trace):
            yield (
                "The ranks recorded other steps, and their operations have no numbers: which of them belong "
                "together is not known. How long ranks wait for each other is not known."
            )
            return
        yield (
            f"The ranks' {'operations differ throughout' if differ else 'times contradict each other'}: "
            f"{'each group ran others on some of its ranks' if differ else 'some leave before others come'}. "
            f"Their files are not of one run{'' if differ else ', or a clock is wrong'}. How long ranks wait "
            "for each other is not known."
        )


def _of_other_steps(trace: Trace) -> bool:
    """Whether ranks begin with steps of other numbers and end with others, too, so that counting their
    operations from neither end tells which belong together."""
    steps = trace.table("steps")
    if steps is None:
        return False
    each = steps.group_by("rank").agg(first=pl.col("step").min(), last=pl.col("step").max()).collect()
    return each["first"].n_unique() > 1 and each["last"].n_unique() > 1


def _with_others(trace: Trace, rows: pl.DataFrame) -> pl.Series:
    """Whether each operation is of a group in which another rank of this recording is."""
    ranks = trace.table("ranks")
    nowhere = pl.Series([False] * rows.height, dtype=pl.Boolean)
    if ranks is None:
        return nowhere
    here = ranks.select("rank", "groups", "world_size").collect()
    groups = here.select("rank", "groups").explode("groups").drop_nulls().unnest("groups")
    others = (
        groups.explode("ranks")
        .filter(pl.col("ranks").is_in(here["rank"].implode()), pl.col("ranks") != pl.col("rank"))
        .select("rank", group="name", _others=True)
        .unique()
    )
    world = here["world_size"].max()
    whole = rows["group_size"].eq_missing(world) if world is not None else nowhere
    name = pl.col("group").cast(pl.String).str.extract(r"^(.*?)(?: \[[\d, ]*\])?$")
    told = rows.select("rank", group=name).join(
        others, on=["rank", "group"], how="left", maintain_order="left"
    )
    return told["_others"].fill_null(False) | whole
