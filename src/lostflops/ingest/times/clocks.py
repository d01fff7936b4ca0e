"""Measure how far the ranks' clocks are apart, from the collectives that they left together.

All members of a synchronising collective leave at nearly the same moment, whenever they came. So the median
of how far a clock's ends lie from the middle of each collective is its offset, and their scatter its error. A
clock that drifts against the others scatters more: the offset is that of the middle of the recording.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence

import polars as pl

from lostflops.errors import LostflopsError
from lostflops.intervals.matching import SYNCHRONISING, WORLD, matches

# Shifting clocks needs a reason: an offset that no noise explains, and more than ranks take to leave one
# collective.
SMALLEST_OFFSET = 20_000
OFFSET_OVER_ERROR = 5
# Processes of one host read one clock. Profilers convert it in each process, to within microseconds.
SAME_HOST_ERROR = 10_000
# Ranks of one host that leave collectives further apart than this, as far each time, have no clock in common.
ONE_CLOCK = 100_000
# The spread of few values is underestimated more often than not: with fewer than FEW the largest deviation
# stands for it, which covers the truth in 19 of 20 cases from 4 on (tests/ingest/test_clocks.py).
FEW, FEWEST = 12, 4
LARGEST_DRIFT = 2e-4  # of the time: crystals are ten times better
FEWEST_MET, MOSTLY = 3, 0.5  # operations, and the share of them in which all members are at it at once


def clock_offsets(collectives: pl.LazyFrame, ranks: pl.LazyFrame) -> pl.DataFrame:
    """Per rank, the ns to add to its times, and the error that remains: rank, offset, error.

    An offset is given only where no scatter explains it; else the error covers it. Ranks of one host share a
    clock, unless numbered collectives show that they do not. Ranks without matched collectives are absent,
    and those that no groups connect are aligned apart.
    """
    who = (
        ranks.unique("rank", keep="first")
        .sort("rank")
        .select(
            "rank",
            _clock=pl.when(pl.col("host").is_not_null())
            .then(pl.format("host {}", "host"))
            .otherwise(pl.format("rank {}", "rank")),
        )
        .collect()
    )
    alike = who.select("rank", offset=pl.lit(0, pl.Int64), error=pl.lit(SAME_HOST_ERROR, pl.Int64))
    if _on_one_host(who) and not (who.height > 1 and _are_numbered(collectives)):
        return alike
    ends = (
        matches(collectives, ranks, trust_clocks=False)
        .filter(pl.col("instance").is_not_null() & pl.col("kind").cast(pl.String).is_in(SYNCHRONISING))
        .select(
            "rank", "instance", "end", "latency", "sequence",
            _group=pl.col("group").cast(pl.String).fill_null(WORLD),
        )
    )  # fmt: skip
    apart = _hosts_of_several_clocks(ends, who)
    alone = pl.format("rank {}", "rank")
    who = who.with_columns(_clock=pl.when(pl.col("_clock").is_in(apart)).then(alone).otherwise("_clock"))
    if _on_one_host(who):
        return alike
    ends = ends.join(who, on="rank").filter(pl.col("_clock").n_unique().over("instance") > 1)
    offsets: dict[str, int] = dict.fromkeys(ends["_clock"].unique().to_list(), 0)
    errors: dict[str, int] = {}
    # The middle of clocks that are far apart is a middle of few; once they are aligned it is that of all.
    for _ in range(2 if offsets else 0):
        moved = pl.col("_clock").replace_strict(offsets, return_dtype=pl.Int64)
        steps, errors = _along_groups(_links(ends.with_columns(end=pl.col("end") - moved)))
        offsets = {clock: offset + steps[clock] for clock, offset in offsets.items()}
    told: list[tuple[int, int, int]] = []
    for rank, clock in who.filter(pl.col("_clock").is_in(list(offsets))).iter_rows():
        offset, error = offsets[clock], max(errors[clock], SAME_HOST_ERROR if clock.startswith("host") else 0)
        if abs(offset) > max(SMALLEST_OFFSET, OFFSET_OVER_ERROR * error):
            told.append((rank, -offset, error))
        else:
            told.append((rank, 0, max(error, abs(offset))))
    schema = {"rank": pl.Int32, "offset": pl.Int64, "error": pl.Int64}
    return pl.DataFrame(told, schema=schema, orient="row")


def require_meetings(
    collectives: pl.LazyFrame, ranks: pl.LazyFrame, unnamed: Collection[int | None], sources: Sequence[str]
) -> None:
    """Raise where a rank that its file does not name is hardly ever in an operation while the others are,
    whatever their clocks show and however they drift: it is of another job."""
    if not unnamed or len(sources) < 2:
        return
    instance, of = "instance", ["rank", "group"]
    members = (
        matches(collectives, ranks, trust_clocks=False)
        .filter(pl.col(instance).is_not_null() & pl.col("kind").cast(pl.String).is_in(SYNCHRONISING))
        .select("rank", "arrival", "end", instance, group=pl.col("group").cast(pl.String).fill_null(WORLD))
        .with_columns(apart=pl.col("end") - pl.col("end").median().over(instance))
        .with_columns(since=(pl.col("end") - pl.col("end").mean().over(of)).cast(pl.Float64))
        .with_columns(middle=pl.col("apart").median().over(of))
    )
    drift = ((pl.col("apart") - pl.col("middle")) * pl.col("since")).sum() / (pl.col("since") ** 2).sum()
    drifts = pl.when(drift.abs() <= LARGEST_DRIFT).then(drift).otherwise(0.0).over(of)
    off = pl.col("middle") + drifts * pl.col("since")
    came, left = (pl.col(time) - off for time in ("arrival", "end"))
    meets = (came.max() <= left.min()).over(instance)
    each = members.with_columns(meets=meets).group_by("rank").agg(pl.len(), pl.col("meets").mean())
    never = each.filter(pl.col("len") >= FEWEST_MET, pl.col("meets") < MOSTLY)
    if not never["rank"].is_in([*unnamed]).any():
        return
    raise LostflopsError(
        f"{', '.join(sources[:2])} are not ranks of one job: they name no ranks, and however their clocks "
        "are aligned, most of their collectives do not run at the same time.",
        "give the files of one job. If these are, begin their names with `rank0`, `rank1` and so on.",
    )


def _on_one_host(who: pl.DataFrame) -> bool:
    return who["_clock"].n_unique() == 1 and who["_clock"][0].startswith("host")


def _are_numbered(collectives: pl.LazyFrame) -> bool:
    """Whether the source tells which collectives of several ranks are one."""
    return bool(collectives.select(pl.col("sequence").count()).collect().item())


def _hosts_of_several_clocks(ends: pl.DataFrame, who: pl.DataFrame) -> list[str]:
    """Hosts whose ranks leave numbered collectives as far apart each time as no ranks of one clock do.

    Those are containers that share a name, or a profiler converts the clock wrongly.
    """
    on_one = ends.filter(pl.col("sequence").is_not_null()).join(who, on="rank")
    among = ["_clock", "instance"]
    middle = pl.col("end").median().over(among)
    told = (
        on_one.filter(pl.len().over(among) > 1)
        .with_columns(_apart=pl.col("end") - middle)
        .group_by("_clock", "rank")
        .agg(
            pl.len(),
            off=pl.col("_apart").median().abs(),
            scatter=(pl.col("_apart") - pl.col("_apart").median()).abs().max(),
        )
    )
    wrong = (pl.col("len") >= FEWEST) & (
        pl.col("off") > pl.max_horizontal(pl.lit(ONE_CLOCK), OFFSET_OVER_ERROR * pl.col("scatter"))
    )
    return told.filter(wrong)["_clock"].to_list()


def _links(ends: pl.DataFrame) -> pl.DataFrame:
    """How far each clock lies from the middle of each group's instances, and how much that scatters."""
    apart = ends.with_columns(_apart=pl.col("end") - pl.col("end").median().over("instance"))
    between = ["_group", "_clock"]
    apart = apart.with_columns(_middle=pl.col("_apart").median().over(between))
    deviation = (pl.col("_apart") - pl.col("_middle")).abs()
    many = pl.col("instance").n_unique()
    return apart.group_by(between).agg(
        middle=pl.col("_middle").first().round().cast(pl.Int64),
        # Of one or two nothing tells how exactly they end together, only that it is within their time.
        error=pl.when(many >= FEW)
        .then(1.4826 * deviation.median())
        .when(many >= FEWEST)
        .then(deviation.max())
        .otherwise(deviation.max() + pl.col("latency").median())
        .ceil()
        .cast(pl.Int64),
    )


def _along_groups(links: pl.DataFrame) -> tuple[dict[str, int], dict[str, int]]:
    """Offset and error of every clock, from groups that share clocks: errors add up along the best way.

    The middle of one group says nothing of another's, so offsets are carried from the largest group over the
    clocks that belong to several. Some clock has to be right: the one in the middle, so that few are moved.
    """
    by_group: dict[str, list[tuple[str, int, int]]] = {}
    by_clock: dict[str, list[tuple[str, int, int]]] = {}
    for group, clock, middle, error in links.iter_rows():
        by_group.setdefault(group, []).append((clock, middle, error))
        by_clock.setdefault(clock, []).append((group, -middle, error))
    offsets: dict[str, int] = {}
    errors: dict[str, int] = {}
    done: set[str] = set()
    for start in sorted(by_group, key=lambda g: (-len(by_group[g]), g)):
        reached: dict[str, int] = {}
        nearest = [] if start in done else [(0, True, start, 0)]
        while nearest:
            error, is_group, name, offset = heapq.heappop(nearest)
            if name in (done if is_group else errors):
                continue
            if is_group:
                done.add(name)
            else:
                reached[name], errors[name] = offset, error
            for other, apart, scatter in (by_group if is_group else by_clock)[name]:
                heapq.heappush(nearest, (error + scatter, not is_group, other, offset + apart))
        for clock, offset in reached.items():
            offsets[clock] = offset - sorted(reached.values())[(len(reached) - 1) // 2]
    return offsets, errors
