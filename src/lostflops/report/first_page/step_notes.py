"""Which steps a mean leaves out and why, what marks do not cover, and how long steps are, as sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import polars as pl

from lostflops import intervals
from lostflops.causes.names import spoken, without_place
from lostflops.finding import milliseconds, percent
from lostflops.recipes.idle.evaluations import FRAMES, HOST
from lostflops.session import Fold, Session
from lostflops.store.trace import Trace
from lostflops.tables import LEFT_OUT_BECAUSE

from .run import Run

# Why a step is left out, after its number. The order is that in which ranks' reasons for one step are told.
BECAUSE = {
    "recording began in it": "the recording begins in it",
    "recording ended in it": "the recording ends in it",
    "job ended in it": "it holds less work than the others: the job or the recording ended in it",
    "waits at its end": "nothing starts for a long time at its end: the job or the recording was ending",
    "device was behind": "the GPU was still busy with earlier work when the CPU began it",
    "device had no work yet": "the GPU had nothing to do when the CPU began it, unlike in the others",
    "nothing in it": "nothing was launched in it",
    "outlier": "unlike the others",
    "left out on another rank": "not whole on every rank",
}
IDLE_RANK, CUT_RANK = "nothing on its rank", "no whole step on its rank"
CUT = "not recorded from end to end"
DIFFERENT = 0.01  # of a step: host and device lengths that are further apart are told
FEWEST_WITH_INNER = 3  # steps, from which on some are neither the first nor the last
MOST_LISTED = 6
# Steps so many times as long as the median, and as the longest of the others, are told; of so many at least.
MUCH_LONGER, APART, FEWEST_UNEVEN = 2, 1.5, 4
HOW_OFTEN = "how often that comes in the job decides what it costs."

WORTH_TELLING = 0.01  # of what the GPU does while recorded
MARKED = ("profiler", "range")
BESIDE_STEPS = pl.Schema({"rank": pl.Int32, "whole": pl.Int64, "before": pl.Int64, "after": pl.Int64})
UPDATE = r"^Optimizer\.step#"
FEWEST = 4  # marked steps: fewer do not show how often the optimizer runs
AT_MOST = 0.5  # of the marked steps, with an update: from there down they are parts of optimizer steps


def left_out(run: Run, steps: pl.DataFrame, counted: pl.DataFrame) -> Iterator[str]:
    """What became of the steps that something speaks against. `counted`: rank and step of those in means."""
    if run.is_whole:
        return
    doubtful = _doubtful(steps).filter("doubtful")
    unasked = doubtful.join(counted, on=["rank", "step"], how="anti")
    for why, holds in ((IDLE_RANK, "steps and no work"), (CUT_RANK, "no whole step")):
        ranks = unasked.filter(pl.col("why") == why)["rank"].unique().sort().to_list()
        if ranks:
            them = "they are" if len(ranks) > 1 else "it is"
            yield f"The recording of {_called(ranks)} holds {holds}: {them} in no mean."
    of_ranks = pl.col("why").is_in([IDLE_RANK, CUT_RANK])
    doubtful = pl.concat(
        [
            doubtful.filter(~of_ranks),
            doubtful.filter(of_ranks).join(counted, on=["rank", "step"], how="semi"),
        ]
    )
    if doubtful.is_empty():
        return
    out = doubtful.join(counted, on=["rank", "step"], how="anti")
    if out.height:
        yield (
            f"Left out of the mean: {_listed(out, steps, counted)}. "
            f"`--steps {steps['step'].min()}-{steps['step'].max()}` counts them."
        )
    kept = doubtful.join(counted, on=["rank", "step"], how="semi")
    if kept.is_empty():
        return
    which = numbers(kept["step"].unique().sort().to_list())
    one = kept["step"].n_unique() == 1
    if run.selected_steps:
        asked = f"In the mean because `--steps` asks for {'it' if one else 'them'}"
        yield f"{asked}: {_listed(kept, steps, counted)}."
    elif kept["complete"].fill_null(True).all():
        yield (
            f"The GPU was still busy with earlier work when the CPU began {which}. "
            f"{'It counts' if one else 'They count'} "
            f"because there is no other whole step, but may be longer than shown."
        )
    else:
        yield (
            f"No whole step was recorded{_of_ranks(kept, steps)}: {which} "
            f"{'counts' if one else 'count'} as far as recorded."
        )


def _doubtful(steps: pl.DataFrame) -> pl.DataFrame:
    """Steps with `why`: null where there is no reason of their own."""
    why = pl.col("left_out").cast(pl.String)
    cut = ~pl.col("complete").fill_null(True)
    return steps.with_columns(
        why=pl.when(why.is_null() & cut).then(pl.lit(CUT)).otherwise(why),
    ).with_columns(doubtful=pl.col("why").is_not_null())


def _of_ranks(kept: pl.DataFrame, steps: pl.DataFrame) -> str:
    ranks = kept["rank"].unique().sort().to_list()
    if len(ranks) == steps["rank"].n_unique():
        return ""
    return f" on rank {ranks[0]}" if len(ranks) == 1 else f" on {len(ranks)} ranks"


def _listed(out: pl.DataFrame, steps: pl.DataFrame, counted: pl.DataFrame) -> str:
    """Steps by reason: 'step 4 (the recording begins in it), step 7 (240 ms, 15 times the others)'."""
    order = {why: n for n, why in enumerate((*LEFT_OUT_BECAUSE, CUT))}
    rank_of = pl.col("why").replace_strict(order, return_dtype=pl.Int64)
    by_step = out.sort(rank_of, "rank").unique("step", keep="first", maintain_order=True).sort("step")
    parts: list[tuple[int, str]] = []
    for (why,), mine in by_step.partition_by("why", as_dict=True, maintain_order=True).items():
        those: list[int] = mine["step"].to_list()
        if why == "outlier":
            parts += [(n, f"step {n} ({_times(n, steps, counted)})") for n in those[:MOST_LISTED]]
            those = those[MOST_LISTED:]
        if those:
            reason = BECAUSE.get(str(why), str(why))
            if len(those) > 1:
                reason = reason.replace(" it", " them").replace("them holds", "they hold")
            parts.append((those[0], f"{numbers(those)} ({reason})" if reason else numbers(those)))
    return ", ".join(text for _, text in sorted(parts))


def _times(number: int, steps: pl.DataFrame, counted: pl.DataFrame) -> str:
    length = (pl.col("end") - pl.col("start")).alias("length")
    lengths = steps.with_columns(length)
    own = lengths.filter(pl.col("step") == number)["length"].max()
    usual = lengths.join(counted, on=["rank", "step"], how="semi")["length"].median()
    assert isinstance(own, int)
    if not isinstance(usual, float) or usual <= 0:
        return milliseconds(own)
    return f"{milliseconds(own)}, {own / usual:.{0 if own >= 10 * usual else 1}f} times the others"


def numbers(steps: Iterable[int]) -> str:
    """'step 4', 'steps 4 and 8', 'steps 4 to 7 and 9', shortened where they are many."""
    runs: list[list[int]] = []
    for step in steps:
        if runs and step == runs[-1][1] + 1:
            runs[-1][1] = step
        else:
            runs.append([step, step])
    if sum(b - a < 2 for a, b in runs) == len(runs):
        runs = [[n, n] for a, b in runs for n in range(a, b + 1)]
    texts = [str(a) if a == b else f"{a} to {b}" for a, b in runs]
    many = len(runs) > 1 or runs[0][0] != runs[0][1]
    return f"step{'s' * many} {_joined(texts)}"


def _called(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {_joined(list(map(str, ranks)))}"


def _joined(texts: list[str]) -> str:
    """'4', '4 and 8', '4, 6 and 8', shortened where they are many."""
    if len(texts) > MOST_LISTED:
        texts = [*texts[: MOST_LISTED - 1], "more"]
    return ", ".join(texts[:-1]) + " and " + texts[-1] if len(texts) > 1 else texts[0]


def without_common_step(run: Run, counted: pl.DataFrame) -> Iterator[str]:
    """That ranks recorded other steps than others did, so that what they wait for each other is not known."""
    numbered = counted.group_by("rank").agg(pl.col("step").unique().sort()).sort("rank")
    ranks_of = counted.group_by("step").agg(pl.col("rank").n_unique())["rank"]
    if run.is_whole or numbered.height < 2 or (ranks_of == numbered.height).any():
        return
    groups = numbered.group_by("step", maintain_order=True).agg("rank")
    told = [
        f"{_called(ranks)} {'have' if len(ranks) > 1 else 'has'} {numbers(those)}"
        for those, ranks in groups.iter_rows()
    ]
    yield (
        f"No step was recorded on all ranks: {_joined(told)}. How long ranks wait for each other is then not "
        "known: record the same steps on all."
    )


def uneven(
    run: Run, steps: pl.DataFrame, counted: pl.DataFrame, evaluations: pl.DataFrame | None = None
) -> Iterator[str]:
    """Which counted steps are far longer than the others, and no outliers as they come back or do more.

    `evaluations` is the table of `in_evaluations`.
    """
    length = (pl.col("end") - pl.col("start")).alias("length")
    each = steps.join(counted, on=["rank", "step"], how="semi").select("rank", "step", length)
    mine = each.group_by("step").agg(pl.col("length").max())
    usual = mine["length"].median()
    if run.is_whole or mine.height < FEWEST_UNEVEN or not isinstance(usual, float):
        return
    long = mine.filter(pl.col("length") > MUCH_LONGER * usual).sort("step")
    others = mine.filter(pl.col("length") <= MUCH_LONGER * usual)["length"].max()
    if long.is_empty() or not isinstance(others, int) or long["length"].min() < APART * others:  # pyright: ignore[reportOperatorIssue]
        return
    low, high = long["length"].min(), long["length"].max()
    assert isinstance(low, int) and isinstance(high, int)
    took = milliseconds(high) if high < 1.1 * low else f"{milliseconds(low)} to {milliseconds(high)}"
    which, one = numbers(long["step"].to_list()), long.height == 1
    if apart := _on_ranks(each.filter(pl.col("length") > MUCH_LONGER * usual)):
        yield (
            f"A step takes {took} that is {milliseconds(usual)} otherwise (median): {apart}. It counts in "
            "the mean: it does more, or may come back."
        )
        return
    why = evaluate(long, usual, evaluations)
    yield (
        f"{which[:1].upper()}{which[1:]} take{'s' * one} {took}, the others {milliseconds(usual)} (median)"
        f"{why}. {'It counts' if one else 'They count'} in the mean: "
        + (HOW_OFTEN if why else f"{'it does' if one else 'they do'} more, or may come back.")
    )


def evaluate(long: pl.DataFrame, usual: float, evaluations: pl.DataFrame | None) -> str:
    """That long steps hold an evaluation, where that is most of what they are longer."""
    if evaluations is None:
        return ""
    inside = evaluations.filter(account=HOST).group_by("step").agg(pl.col("ns").max(), pl.col("name").first())
    held = long.join(inside, on="step", how="inner")
    if held.height < long.height or (2 * held["ns"] < held["length"] - usual).any():
        return ""
    # On the CPU it also waits for work that was launched before: it makes a step no longer than that step is.
    takes = held.select(pl.min_horizontal("ns", (pl.col("length") - usual).cast(pl.Int64))).to_series()
    by, mean = str(held["name"][0]), milliseconds(int(takes.sum()) // held.height)
    who = "the evaluation" if by in FRAMES else without_place(spoken(by))
    return f": {who} takes {mean} of {'it' if held.height == 1 else 'each'}"


def _on_ranks(long: pl.DataFrame) -> str:
    """Which ranks have which of some long steps, where each has one: 'step 6 on rank 0, step 7 on ranks 1
    and 2'. One pause lengthens the step that ends after it, which need not be one number on all ranks."""
    if long["rank"].is_duplicated().any() or long["step"].n_unique() < 2:
        return ""
    by_step = long.sort("step", "rank").group_by("step", maintain_order=True).agg("rank")
    return ", ".join(f"step {step} on {_called(ranks)}" for step, ranks in by_step.iter_rows())


def tell_the_period(steps: pl.DataFrame, counted: pl.DataFrame) -> bool:
    """Whether counted steps show how long one takes: all whole, not a single one that the GPU is late in."""
    cut = _doubtful(steps).filter(pl.col("doubtful") & ~pl.col("why").is_in(["outlier", "nothing in it"]))
    if cut.join(counted, on=["rank", "step"], how="semi").height:
        return False
    return (
        _both_lengths(steps, counted).filter((pl.col("many") == 1) & (pl.col("apart") > DIFFERENT)).is_empty()
    )


def _both_lengths(steps: pl.DataFrame, counted: pl.DataFrame) -> pl.DataFrame:
    """Of each rank's `many` counted steps the mean lengths on host and device, and how `apart` they are.

    At its ends a recording makes them differ where neither gets `ahead`: that is by how much the device's are
    longer between them.
    """
    mine = steps.join(counted, on=["rank", "step"], how="semi").filter(
        pl.col("host_start").is_not_null(), pl.col("host_end").is_not_null()
    )
    host, device = pl.col("host_end") - pl.col("host_start"), pl.col("end") - pl.col("start")
    step = pl.col("step")
    inner = ((step > step.min()) & (step < step.max())) | (pl.len() < FEWEST_WITH_INNER)
    return (
        mine.group_by("rank")
        .agg(
            host=host.mean(),
            device=device.mean(),
            many=pl.len(),
            step=step.first(),
            ahead=(device - host).filter(inner).mean(),
        )
        .with_columns(apart=(pl.col("device") - pl.col("host")).abs() / pl.col("device"))
        .sort("apart", "rank", descending=[True, False])
    )


def lengths(steps: pl.DataFrame, counted: pl.DataFrame) -> Iterator[str]:
    """A note where the host's steps and the device's differ: the host ran ahead, or the device caught up."""
    by_rank = _both_lengths(steps, counted)
    if by_rank.is_empty():
        return
    worst = by_rank.row(0, named=True)
    if worst["apart"] <= DIFFERENT:
        return
    on = f" on rank {worst['rank']}" if by_rank.height > 1 else ""
    took = f"takes the CPU {milliseconds(worst['host'])} and the GPU {milliseconds(worst['device'])}{on}"
    if worst["many"] == 1:
        yield (
            f"Step {worst['step']} {took}. The page counts GPU time. The GPU falls behind or catches up in "
            "this step, so other steps may be longer or shorter."
        )
    elif worst["device"] > worst["host"] and worst["ahead"] <= DIFFERENT * worst["device"]:
        yield (
            f"On average a step {took}: the GPU ends its last step after the CPU, and the page counts GPU "
            "time."
        )
    elif worst["device"] > worst["host"]:
        yield f"On average a step {took}: the CPU runs ahead, and the page counts GPU time."
    else:
        yield f"On average a step {took}: the GPU was behind and catches up, and the page counts GPU time."


def beside_steps(trace: Trace, counted: pl.DataFrame) -> pl.DataFrame:
    """How long each rank's device works in all, before its first marked step and after its last, ns."""
    steps = trace.table("steps")
    work = [
        table.select("rank", "start", "end").filter(pl.col("end") > pl.col("start"))
        for name in ("kernels", "copies")
        if (table := trace.table(name)) is not None
    ]
    if steps is None or not work:
        return BESIDE_STEPS.to_frame()
    marked = steps.filter(pl.col("source").cast(pl.String).is_in(MARKED)).collect()
    if marked.is_empty():
        return BESIDE_STEPS.to_frame()
    busy = intervals.union(pl.concat(work), ["rank"]).collect()
    ends = marked.group_by("rank").agg(first=pl.col("start").min(), last=pl.col("end").max())
    length = pl.col("end") - pl.col("start")
    return (
        busy.join(ends, on="rank")
        .group_by("rank")
        .agg(
            whole=length.sum(),
            before=(pl.col("end").clip(None, pl.col("first")) - pl.col("start")).clip(0).sum(),
            after=(pl.col("end") - pl.col("start").clip(pl.col("last"))).clip(0).sum(),
        )
        .select(pl.col(c).cast(t) for c, t in BESIDE_STEPS.items())
    )


BESIDE = Fold(beside_steps, of_all_steps=True)


def uncovered(session: Session, steps: pl.DataFrame) -> Iterator[str]:
    """How long the GPU works before the first marked step and after the last, where that is worth a word."""
    told = session.of_each_group(BESIDE, steps.select("rank", "step").unique())
    by_rank = pl.concat([BESIDE_STEPS.to_frame(), *told]).sort(
        pl.col("before") + pl.col("after"), "rank", descending=[True, False]
    )
    if by_rank.is_empty():  # no step is marked, or no work takes any time
        return
    rank, whole, before, after = by_rank.row(0)
    if before + after < WORTH_TELLING * whole:
        return
    of = f" of rank {rank}" if by_rank.height > 1 else ""
    parts = ((before, "before the first step"), (after, f"after the last{'' if before else ' step'}"))
    said = " and ".join(f"for {milliseconds(ns)} {when}" for ns, when in parts if ns)
    yield f"The GPU{of} works {said} ({percent(before + after, whole)} of its work): that is in no account."


def _gradients(trace: Trace, windows: pl.DataFrame) -> int:
    """How many operators of a backward pass begin in these host windows of a rank."""
    operators = trace.table("operators")
    if operators is None:
        return 0
    backward = operators.filter(pl.col("phase").cast(pl.String) == "backward").select("rank", at="start")
    inside = (
        backward.sort("at")
        .join_asof(windows.lazy().sort("at"), on="at", by="rank", strategy="backward", check_sortedness=False)
        .filter(pl.col("at") < pl.col("host_end"))
    )
    return int(inside.select(pl.len()).collect().item())


def without_update(trace: Trace, steps: pl.DataFrame) -> Iterator[str]:
    """That most marked steps hold no optimizer step, as where each micro-batch is marked."""
    ranges = trace.table("ranges")
    marked = steps.filter(
        pl.col("source").cast(pl.String).is_in(MARKED), pl.col("complete").fill_null(True)
    ).drop_nulls("host_start")
    if ranges is None or marked.is_empty():
        return
    updates = (
        ranges.filter(pl.col("name").cast(pl.String).str.contains(UPDATE))
        .select("rank", at="start")
        .sort("at")
        .collect()
    )
    windows = marked.select("rank", "step", "host_end", at="host_start").sort("at")
    hit = (
        updates.join_asof(windows, on="at", by="rank", strategy="backward", check_sortedness=False)
        .filter(pl.col("at") < pl.col("host_end"))
        .select("rank", "step")
        .unique()
    )
    with_one, many = hit.group_by("rank").len(), marked.group_by("rank").agg(many=pl.len())
    of_rank = with_one.join(many, on="rank").filter(pl.col("many") >= FEWEST)
    if of_rank.is_empty() or of_rank.select((pl.col("len") > AT_MOST * pl.col("many")).any()).item():
        return
    rank, updated, of = of_rank.sort("rank").row(0)
    mine = windows.filter(pl.col("rank") == rank)
    without, having = (mine.join(hit, on=["rank", "step"], how=how) for how in ("anti", "semi"))
    if _gradients(trace, having) and not _gradients(trace, without):
        yield (
            f"{of - updated} of {of} marked steps update nothing and compute no gradients, as evaluations "
            "do. They count in the mean."
        )
        return
    yield (
        f"The optimizer runs in {updated} of {of} marked steps: what the page calls a step is a part of an "
        "optimizer step, such as a micro-batch."
    )
