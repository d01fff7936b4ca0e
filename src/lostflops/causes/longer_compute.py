"""Why a rank computes longer than the others: a slower device, more work, or more tokens for its experts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import polars as pl

from lostflops.finding import milliseconds, percent
from lostflops.recipes.compute.of_ranks import SIZED
from lostflops.recipes.needless.outside_passes import OPERATOR

from .given import Given, has_stages
from .purposes import CONTEXT, EXCHANGE, EXPERTS, RING

SAME_FLOPS = 0.001  # two ranks ask for the same work within this share
ALIKE = 0.1  # kernels of two ranks take as long as each other within this share
SAME_WORK = 0.8  # of a rank's kernel time in kernels that the others run as often
# Kernels whose grid does not tell how much they are given.
GROUPED = r"(?i)group(?:ed)?_?(?:gemm|problem|mm)|ptr_?array|\bmoe|_moe"
FINELY = 1.2  # times as long, below which a tenth is too coarse a step
SHAPE = r"\[\d[\d, ]*\]"  # of one tensor, in the text of all of an operator's
RESIZED = 0.1  # of a rank's kernels, that the others run as often on smaller grids
MUCH = 0.1  # by how much a rank may launch more than another that does as much
MOST = 0.5  # of what a rank computes (longer), that is in kernels of experts, or in others
ATTENTION = "attention"
ENOUGH = 0.25  # of what the others compute, beside attention, that tells a device's pace
DENSE = 1 / 3  # of the others' kernels of a family, whose grids tell how much they do, that tells it as well
LATER = 1.2  # times the first rank's attention: that of the last rank of a ring, where attention is causal
DOCUMENTS = "longer documents packed into its batches"
ADVICE = (
    "Even out the tokens per expert: the router's auxiliary loss or bias, a capacity per expert, or busy "
    "experts on ranks of their own."
)

IF_EXPERTS = f"Where it is the experts, {ADVICE[0].lower()}{ADVICE[1:]}"


def outside_alone(rank: int, given: Given) -> int:
    """What a mean step of the rank holds beyond the median of the others of a CPU's operators outside of
    passes that train, ns, where that is most of what it computes longer; else 0."""
    sums = given.outside.filter(kind=OPERATOR).group_by("rank").agg(pl.col("ns").sum())
    outside = {at: ns // given.steps[at] for at, ns in sums.iter_rows() if at in given.steps}
    others = [at for at in given.meet(rank) if at != rank]
    if rank not in outside or not others:
        return 0
    more, longer = (
        round(each.get(rank, 0) - median(each.get(at, 0) for at in others))
        for each in (outside, given.by_rank("compute"))
    )
    return more if more > 0 and more >= MOST * longer else 0


def has_experts(given: Given) -> bool:
    """Whether the ranks run kernels of experts at all, or exchange rows, which may be tokens for experts."""
    exchanges = given.purposes.get(EXPERTS) or given.purposes.get(EXCHANGE)
    return bool(exchanges) or bool(given.work["kernel"].str.contains(GROUPED).any())


def of_experts(rank: int, given: Given) -> bool:
    """Whether most of what the rank computes longer than the others is in kernels of its experts.

    Those multiply one matrix per expert, and so for as long as they are given tokens: sequences of one length
    do not make them even.
    """
    steps = given.steps
    each = pl.col("time") / pl.col("rank").replace_strict(dict(steps), default=1, return_dtype=pl.Int64)
    spent = given.work.with_columns(each=each, experts=pl.col("kernel").str.contains(GROUPED))
    beside = [r for r in steps if r != rank]
    more: dict[bool, float] = {}
    for experts in (True, False):
        sums = spent.filter(experts=experts).group_by("rank").agg(pl.col("each").sum())
        by_rank = dict(sums.iter_rows())
        usual = pl.Series([by_rank.get(r, 0.0) for r in beside]).median() or 0.0
        more[experts] = max(0.0, by_rank.get(rank, 0.0) - float(usual))  # pyright: ignore[reportArgumentType]
    return bool(beside) and more[True] > MOST * sum(more.values())


def slower_compute(rank: int, given: Given) -> tuple[str, bool] | None:
    """Why a rank computes longer, in words, and whether its device is to blame.

    The same kernels on the same grids, as often as on the other ranks, are the same work: taking longer they
    run on a slower device. Others, or more of them, are more work. So are the same ones where operators ask
    for more FLOPs or kernels of some names run on other grids, for many kernels have one grid for any amount.
    None where kernels do not tell.
    """
    work = given.work
    mine = work.filter(pl.col("rank") == rank)
    others = work.filter(pl.col("rank") != rank)
    if mine.is_empty() or others.is_empty():
        return None
    gpus = other_gpu(rank, given)
    if gpus and not _flops_more(rank, given):
        return f"it runs on {gpus[0]}, the others on {gpus[1]}", True
    if later := later_part(rank, given):
        return later, False
    steps, ranks = given.steps, others["rank"].n_unique()
    usual = (
        others.group_by("family", "kernel")
        .agg(pl.col("calls", "time").median(), on=pl.col("rank").n_unique())
        .filter(2 * pl.col("on") >= ranks)
        .select("family", "kernel", their_calls="calls", their_time="time")
    )
    both = mine.join(usual, on=["family", "kernel"])
    alike = (pl.col("calls") - pl.col("their_calls")).abs() <= 0.02 * pl.col("their_calls")
    same = both.filter(alike)
    calls, theirs = int(mine["calls"].sum()) / steps[rank], _calls(others, steps)
    kind = "operators" if given.on_host else "kernels"
    if int(same["time"].sum()) >= SAME_WORK * int(mine["time"].sum()) and same["their_time"].sum():
        families = (
            same.group_by("family")
            .agg(
                pl.col("time", "their_time").sum(),
                sized=pl.col("kernel").str.contains(SIZED, literal=True).any(),
            )
            .with_columns(
                more=pl.col("time") - pl.col("their_time"), ratio=pl.col("time") / pl.col("their_time")
            )
            .sort("more", "family", descending=[True, False])
        )
        most = families.row(0, named=True)
        if most["ratio"] <= 1 + ALIKE / 2:
            return None
        # Without shapes, operators of one name may be of any size.
        sized = not given.on_host or most["sized"]
        those = f"the same {kind} there" if sized else f"{kind} of the same names there"
        said = f"its {most['family']} {kind} take {_times(most['ratio'])} times as long as {those}"
        experts = same.filter(pl.col("kernel").str.contains(GROUPED))
        of_family = same.filter(pl.col("family").eq_missing(most["family"]))
        # Few other kernels may be of the experts' family: those of all families tell a device's pace as well.
        slow = _all_slower(of_family) or (experts.height > 0 and _all_slower(same))
        if not slow and of_experts(rank, given) and experts["their_time"].sum():
            ratio = int(experts["time"].sum()) / float(experts["their_time"].sum())
            said = f"the {kind} of its experts take {_times(ratio)} times as long as {those}"
        if more := _asks_for_more(rank, given):
            return f"{said}, {more}: it has more work, such as {_such(rank, given)}", False
        if not given.on_host and most["family"] == ATTENTION and _others_keep_pace(families):
            return f"{said}, and all others as long as theirs: it has more work, such as {DOCUMENTS}", False
        return said, slow
    if calls > (1 + ALIKE) * theirs:
        return f"it runs {_times(calls / theirs)} times as many {kind} per step", False
    inputs = _inputs(work) if given.on_host else {}
    beside = median([n / steps[r] for r, n in inputs.items() if r != rank] or [0])
    if rank in inputs and beside:
        ratio = inputs[rank] / steps[rank] / beside
        if ratio > 1 + ALIKE:
            larger = f"the inputs of its operators are {_times(ratio)} times as large as theirs"
            return f"{larger}: it has more work, such as {_such(rank, given)}", False
        if more := _flops_more(rank, given):  # weights that all ranks have make the inputs of products alike
            return f"{more.removeprefix('and ')}: it has more work, such as {_such(rank, given)}", False
        return "it takes longer for inputs that are no larger than theirs", True
    return (
        f"it runs other or larger {kind} than they do: it has more work, such as {_such(rank, given)}",
        False,
    )


def later_part(rank: int, given: Given) -> str:
    """That attention takes longer on each rank of a ring than on the one before, in words; empty elsewhere.

    So does causal attention where each rank has one part of a sequence: the last sees all of it. Nothing else
    takes longer on the later ranks, as it would on slower devices.
    """
    if not {RING, CONTEXT} & set(given.purposes):
        return ""
    by_family = given.work.group_by("rank", attends=pl.col("family") == ATTENTION).agg(pl.col("time").sum())
    each: dict[bool, dict[int, float]] = {True: {}, False: {}}
    for at, attends, time in by_family.drop_nulls().sort("rank").iter_rows():
        if at in given.steps:
            each[attends][at] = time / given.steps[at]
    attention, rest = (list(each[attends].values()) for attends in (True, False))
    many = len(attention)
    rings = [
        size
        for size in range(2, many + 1)
        if many % size == 0
        and all(attention[n] < attention[n + 1] for n in range(many - 1) if (n + 1) % size)
        and all(attention[n + size - 1] >= LATER * attention[n] for n in range(0, many, size))
    ]
    if many != len(given.steps) or not rings or not rest or max(rest) > (1 + ALIKE / 2) * min(rest):
        return ""
    ranks, size = list(each[True]), rings[-1]
    place = ranks.index(rank) if rank in ranks else 0
    if 2 * (place % size + 1) <= size:
        return ""  # of the first half of its ring
    first = ranks[place - place % size]
    last = ranks[place - place % size + size - 1]
    return (
        f"attention takes {milliseconds(round(each[True][first]))} per step on rank {first} and "
        f"{milliseconds(round(each[True][last]))} on rank {last}, more on each rank of the ring than on the "
        "one before: it is causal, and each has one part of a sequence"
    )


def _others_keep_pace(families: pl.DataFrame) -> bool:
    """Whether the kernels beside attention take as long as on the other ranks, and are enough to tell.

    A slower device is so for all kernels. Attention alone costs more for the same shapes where what is packed
    into a batch has longer documents in it.
    """
    beside = families.filter(pl.col("family") != ATTENTION)
    time, theirs, whole = (
        int(frame[column].sum() or 0)
        for frame, column in ((beside, "time"), (beside, "their_time"), (families, "their_time"))
    )
    return theirs >= ENOUGH * whole and time <= (1 + ALIKE / 2) * theirs


def _such(rank: int, given: Given) -> str:
    """What may be more on one rank than on the others."""
    if of_experts(rank, given):
        return "more tokens for its experts"
    return "more layers, the embedding or the LM head" if has_stages(given) else "longer sequences"


def _times(ratio: float) -> str:
    """How many times as long: what is hardly longer with one digit more, as 1.05 is not 1.1."""
    return f"{ratio:.3g}" if ratio < FINELY else f"{ratio:.2g}"


def other_gpu(rank: int, given: Given) -> tuple[str, str] | None:
    """The GPU of a rank, and that of all ranks that it is compared with, where these have another."""
    there = {given.gpus.get(other, "") for other in given.work["rank"].unique() if other != rank}
    mine = given.gpus.get(rank, "")
    theirs = there.pop() if len(there) == 1 else ""
    return (mine, theirs) if mine and theirs and mine != theirs else None


def _flops_more(rank: int, given: Given) -> str:
    """How a rank's operators ask for more than the others'; empty where they do not, or do not tell."""
    beside = [each / given.steps[r] for r, each in given.flops.items() if r != rank and r in given.steps]
    if rank in given.flops and rank in given.steps and beside and (usual := median(beside)):
        ratio = given.flops[rank] / given.steps[rank] / usual
        if ratio > 1 + ALIKE:
            return f"and its operators ask for {_times(ratio)} times as many FLOPs"
    return ""


def _asks_for_more(rank: int, given: Given) -> str:
    """How a rank whose kernels seem the others' shows that it has more to do; empty where it does not."""
    if more := _flops_more(rank, given):
        return more
    larger = 0.0 if given.on_host else _on_larger_grids(rank, given.work)
    return f"and {percent(larger, 1)} of its kernels run on larger grids" if larger >= RESIZED else ""


def _on_larger_grids(rank: int, work: pl.DataFrame) -> float:
    """The share of a rank's kernels, by calls, whose name the others run as often on smaller grids."""
    parts = pl.col("kernel").str.split_exact(SIZED, 1).struct
    blocks = parts[1].cast(pl.Float64, strict=False) * pl.col("calls")
    each = work.group_by("rank", name=parts[0]).agg(pl.col("calls").sum(), blocks=blocks.sum())
    usual = each.filter(pl.col("rank") != rank).group_by("name").agg(pl.col("calls", "blocks").median())
    mine = each.filter(pl.col("rank") == rank).join(usual, on="name", how="left", suffix="_usual")
    as_often = (pl.col("calls") - pl.col("calls_usual")).abs() <= 0.02 * pl.col("calls_usual")
    larger = as_often & (pl.col("blocks") > (1 + ALIKE / 2) * pl.col("blocks_usual"))
    return mine.select(pl.col("calls").filter(larger.fill_null(False)).sum() / pl.col("calls").sum()).item()


def _inputs(work: pl.DataFrame) -> dict[int, float]:
    """How many elements the inputs of each rank's operators have, where their shapes were recorded."""
    elements = pl.element().cast(pl.Float64).product()
    sizes = (
        work.select(pl.col("kernel").unique())
        .with_columns(shape=pl.col("kernel").str.split_exact(SIZED, 1).struct[1].str.extract_all(SHAPE))
        .explode("shape")
        .drop_nulls("shape")
        .with_columns(size=pl.col("shape").str.extract_all(r"\d+").list.eval(elements).list.first())
        .group_by("kernel")
        .agg(pl.col("size").sum())
    )
    by_rank = work.join(sizes, on="kernel").group_by("rank").agg((pl.col("size") * pl.col("calls")).sum())
    return dict(by_rank.iter_rows())


def _all_slower(same: pl.DataFrame) -> bool:
    """Whether nearly all kernels of a family take longer, as on a slower device.

    Where some keep their pace, the others were given more to do: a grouped matrix product has one grid for
    any number of tokens. Where such take no more times as long than the others do, it is the device for both.
    """
    slower = pl.col("time") > (1 + ALIKE / 2) * pl.col("their_time")
    fixed = ~pl.col("kernel").str.contains(GROUPED)
    slow, theirs, whole, time, all_time = same.select(
        pl.col("their_time").filter(slower & fixed).sum(),
        pl.col("their_time").filter(fixed).sum().alias("of_fixed"),
        pl.col("their_time").sum().alias("all"),
        pl.col("time").filter(fixed).sum().alias("fixed_time"),
        pl.col("time").sum().alias("all_time"),
    ).row(0)
    tells = theirs >= DENSE * whole and slow >= SAME_WORK * theirs
    as_slow = tells and all_time * theirs <= (1 + ALIKE / 2) * time * whole
    return bool(slow >= SAME_WORK * whole or as_slow)


def _calls(others: pl.DataFrame, steps: Mapping[int, int]) -> float:
    per_rank = others.group_by("rank").agg(pl.col("calls").sum())
    each = [calls / steps[rank] for rank, calls in per_rank.iter_rows()]
    return float(pl.Series(each).median() or 1)  # pyright: ignore[reportArgumentType]


def mostly(rank: int, given: Given) -> str:
    """The kind of kernels in which a rank computes most of what it computes longer; empty where none is."""
    steps = given.steps
    sums = given.work.group_by("rank", "family").agg(pl.col("time").sum()).drop_nulls("family")
    each = {(r, family): time / steps[r] for r, family, time in sums.iter_rows() if r in steps}
    families, beside = {family for _, family in each}, [r for r in steps if r != rank]
    if not beside or not families:
        return ""
    more = {f: each.get((rank, f), 0.0) - median([each.get((r, f), 0.0) for r in beside]) for f in families}
    most = max(more, key=lambda family: (more[family], family))
    if 2 * more[most] <= sum(ns for ns in more.values() if ns > 0):
        return ""
    kind = "operators" if given.on_host else "kernels"
    return f"its {most} {kind} take {milliseconds(round(more[most]))} more per step than the others'"


def device_is_slow(rank: int, given: Given) -> bool:
    """Whether a rank computes longer for its device is slow, and not for it has more to do."""
    found = slower_compute(rank, given)
    return found is not None and found[1]


def slow_device(given: Given) -> str:
    """What to do about a rank whose device is slow."""
    if len({*given.gpus.values()}) > 1:
        return (
            "Give the slower GPUs less to do (smaller batches, with gradients weighted by tokens), or run "
            "the job on GPUs of one kind: data-parallel ranks are as fast as the slowest."
        )
    if given.on_host:
        return "Give each process cores of its own (`torchrun --numa-binding=node`), or less work."
    return (
        "Look at GPU clocks, heat and power (`nvidia-smi -q -d PERFORMANCE`), and at what else runs on the "
        "host; if a swap shows that the slowness stays with the node, leave it out (`srun --exclude`)."
    )


def asks_alike(given: Given) -> bool:
    """Whether the operators of all ranks ask for as many FLOPs per step, as far as their shapes tell."""
    each = [given.flops[rank] / steps for rank, steps in given.steps.items() if rank in given.flops]
    return len(each) == len(given.steps) and 0 < max(each) <= (1 + SAME_FLOPS) * min(each)


def asks_for_more_in_turn(ranks: Sequence[int], given: Given) -> str:
    """How the first of ranks that compute longer in turn has more to do in a step; empty where one has
    no more than the others in any, as far as shapes tell."""
    each = [given.beyond_least.get(rank, 0.0) for rank in ranks]
    if not each or min(each) <= ALIKE:
        return ""
    return (
        f"in one of the steps its operators ask for {_times(1 + each[0])} times as many FLOPs as those of "
        "the rank that asks for least: it has more work"
    )


def no_more_to_do(given: Given, longer: int) -> bool:
    """Whether what ranks in turn compute longer, ns in a mean step, is the same work that takes longer.

    Operators of all ranks ask for as many FLOPs in each step. What those of attention do for documents of
    unlike lengths no shape tells: where it takes that long, it may be more work.
    """
    each = given.beyond_least
    attending = given.work.filter(family=ATTENTION)["time"].sum() / max(1, given.num_steps)
    alike = set(each) >= set(given.steps) and max(each.values(), default=1.0) <= SAME_FLOPS
    return alike and 2 * attending < longer


def launches_as_many(rank: int, given: Given) -> bool:
    """Whether the rank runs as many kernels as the others: then its CPU is slower, and not its program."""
    calls = dict(given.work.group_by("rank").agg(pl.col("calls").sum()).iter_rows())
    each = {r: calls.get(r, 0) / steps for r, steps in given.steps.items()}
    beside = pl.Series([each[r] for r in each if r != rank], dtype=pl.Float64).median()
    return isinstance(beside, float) and beside > 0 and each.get(rank, 0.0) <= (1 + MUCH) * beside
