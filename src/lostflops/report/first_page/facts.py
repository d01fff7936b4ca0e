"""What a run achieves, as far as its recording tells: rates, utilisation, memory, and what computes longest.

What cannot be known is left out: nothing here is a guess.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import polars as pl

from lostflops.finding import milliseconds, percent
from lostflops.recipes.host_steps import in_host_steps
from lostflops.report.words.safe import one_line
from lostflops.session import Answer
from lostflops.store.trace import CLOSED, OPENED, Trace
from lostflops.units import three_figures, written

from .budget import Budget
from .run import Run

MOST_TOP = 3
UNLIKE = 0.1  # of the mean step: where the rate is of others than the page shows, it says so
BUSY = 0.005  # of a core: less is shown as no load
NEARLY_FULL = 0.95  # of a GPU's memory: from there on, allocations may fail or wait
HELD = 0.01  # of the samples: reasons that held clocks down for less are not shown

# Kernels of softmax, those apart that a loss runs; and the shares of compute from which on those of attention
# without a kernel of its own are told.
SOFTMAX = r"(?i)softmax"
OF_A_LOSS = r"(?i)log_?softmax|softmax_warp_\w+<[^>]*, true, (?:true|false)>|cross_entropy|nll"
SOFTMAX_FROM, BETWEEN_FROM = 0.05, 0.3
# What a compiler fuses, and what else is neither matrix work nor the update; and the shares of compute from
# which on work in fp64, one such kernel, and all that could be fused are told.
FUSIBLE = ("elementwise", "reduction", "norm", "copy")
BESIDE_PRODUCTS = (*FUSIBLE, "other", "unclassified")
DOUBLE_FROM, ONE_KERNEL_FROM, FUSIBLE_FROM = 0.05, 0.25, 0.33
COMPILED = "triton_"  # how names of kernels begin that a compiler made


@dataclass(frozen=True)
class Fact:
    """One number: how it is shown, and where it comes from."""

    name: str  # stable, in snake_case
    label: str
    value: float
    unit: str
    shown: str
    basis: str
    is_throughput: bool = False  # what a second brings: one line of the page has all of them


SIDE_BY_SIDE = 0.01  # of compute: kernels that add up to so much more run side by side


@dataclass(frozen=True)
class Top:
    """A kernel, or on a CPU an operator, and its part of the compute time."""

    name: str
    ns_per_step: float
    share: float  # of the time of all kernels that are not communication, added up
    overlaps: bool = False  # whether such kernels run side by side, so that they add up to more than compute


@dataclass(frozen=True)
class FactLine:
    """A line under the ledger. One that ends with a name may be cut; any other goes on in the next line."""

    label: str
    text: str
    may_be_cut: bool = False


@dataclass(frozen=True)
class Facts:
    """What stands under the ledger."""

    numbers: tuple[Fact, ...] = ()
    top: tuple[Top, ...] = ()
    roofs: tuple[FactLine, ...] = ()  # where the peak goes, in words


def known(
    trace: Trace,
    run: Run,
    spent: Budget | None,
    counted: pl.DataFrame,
    answers: Mapping[str, Answer],
    tell_the_period: bool = True,
) -> Facts:
    """`counted` holds rank, step, start and end of the steps that count in means.

    Where these do not `tell_the_period`, nothing is worked out from their length.
    """
    numbers: list[Fact] = []
    timed = spent if tell_the_period and not run.is_whole else None
    rate = _steps_per_second(run, timed, answers)
    if rate is not None:
        numbers.append(rate)
        numbers += _inputs(trace, counted, rate.value)
    if timed is not None:
        numbers += _utilisation(run, answers)
    numbers += _memory(trace)
    numbers += _clocks(answers)
    numbers += _cores(trace)
    return Facts(tuple(numbers), tuple(_top(answers, spent)))


def _steps_per_second(run: Run, spent: Budget | None, answers: Mapping[str, Answer]) -> Fact | None:
    """From the step log, which holds rare pauses too and steps that recording did not make longer."""
    length, basis = None, ""
    if "step_log_summary" in answers:
        log = answers["step_log_summary"].table.filter(pl.col("median").is_not_null())
        mean = log["mean"].mean()
        if isinstance(mean, float) and mean > 0:
            length, basis = mean, "mean step of the step log, without those recorded in full"
    if length is None and spent is not None and spent.mean > 0:
        length, basis = spent.mean, f"mean step {run.windows}"
    if length is None:
        return None
    rate = 1e9 / length
    said = f"{three_figures(rate)} steps/s"
    if spent is None:  # beside a median, which rare pauses do not reach
        said += " (mean of the step log)"
    elif abs(spent.mean - length) > UNLIKE * length:  # not one over the step of the page
        said += " (mean of the steps outside the recorded ones)"
    return Fact("steps_per_second", "throughput", rate, "steps/s", said, basis, is_throughput=True)


def _inputs(trace: Trace, counted: pl.DataFrame, steps_per_second: float) -> Iterator[Fact]:
    """Tokens or images per second of a rank."""
    found = inputs(trace, counted)
    if found is not None:
        rate = found.per_step * steps_per_second
        yield Fact(
            f"{found.what}_per_second_of_a_rank",
            found.what,
            rate,
            f"{found.what}/s",
            f"{three_figures(rate)} {found.what}/s per rank{', prompts included' if found.generates else ''}",
            f"{found.per_step:,} {found.what} per step: {found.operator} of {found.shapes}",
            is_throughput=True,
        )


@dataclass(frozen=True)
class Inputs:
    """What a step of a rank takes in: how many tokens or images, and in what shape or in how many."""

    what: str
    per_step: int
    operator: str
    shapes: str
    generates: bool = False  # token by token, after a prompt


def inputs(trace: Trace, counted: pl.DataFrame) -> Inputs | None:
    """Tokens, from what an embedding looks up; else images, from a convolution; None where neither tells."""
    operators, steps = trace.table("operators"), trace.table("steps")
    if operators is None or steps is None or counted.is_empty():
        return None
    name, shapes = pl.col("name").cast(pl.String), pl.col("shapes").cast(pl.String)
    calls = (
        operators.filter(
            name.is_in(["aten::embedding", "aten::conv2d"])
            & pl.col("phase").cast(pl.String).is_in(["forward"]).fill_null(True)
        )
        .select("rank", "start", name, shapes, "sequence")
        .sort("rank", "start")
        .collect()
    )
    here = steps.join(counted.lazy(), on=["rank", "step"], how="semi").collect()
    windows = here.select("rank", "step", opened=OPENED, closed=CLOSED)
    within = in_host_steps(calls.lazy(), windows.lazy()).collect()
    sure = not here["host_start"].null_count()
    for kind, what, size in (
        ("aten::embedding", "tokens", _tokens),
        ("aten::conv2d", "images", _images),
    ):
        each = _per_step(within.filter(pl.col("name") == kind), size, windows if sure else None)
        if each is not None:
            return Inputs(what, each[0], kind, *each[1:])
    return None


def _per_step(calls: pl.DataFrame, size: Any, windows: pl.DataFrame | None) -> tuple[int, str, bool] | None:
    """How many inputs a step of a rank takes, in what shapes, and whether single ones follow on several, and
    nothing is learned: the mean of these steps.

    Without steps, the host is not known to keep to them, and may be ahead; then most have to take the same.

    What runs with gradients off (a teacher, a reference model, generation) takes in what another call learns
    from, or makes it: it counts only where nothing is learned.
    """
    if calls.is_empty():
        return None
    kinds = calls["shapes"].unique().drop_nulls().to_list()
    known = {shapes: found for shapes in kinds if (found := size(shapes)) is not None}
    if not known:
        return None
    widest = max(weight for weight, _, _ in known.values())
    numbers = {shapes: number for shapes, (weight, number, _) in known.items() if weight == widest}
    calls = calls.filter(pl.col("shapes").is_in(list(numbers)))
    learned = calls.drop_nulls("sequence")
    calls = calls if learned.is_empty() else learned
    each = (
        calls.with_columns(_number=pl.col("shapes").replace_strict(numbers, return_dtype=pl.Int64))
        .group_by("rank", "step")
        .agg(pl.col("_number").sum())["_number"]
    )
    if windows is not None:
        per_step = each.sum() / windows.join(calls, on="rank", how="semi").height
    else:
        per_step = each.median()
        if not isinstance(per_step, float) or (each == per_step).mean() < 0.5:  # pyright: ignore[reportOperatorIssue]
            return None
    extents = [known[text][2] for text in calls["shapes"].unique()]
    shapes = {" × ".join(f"{extent:,}" for extent in each) for each in extents}
    lengths = {each[-1] for each in extents}
    generates = learned.is_empty() and 1 in lengths and len(lengths) > 1
    return round(per_step), shapes.pop() if len(shapes) == 1 else f"{len(shapes)} shapes", generates


def _shapes(text: str) -> list[Any]:
    try:
        shapes: Any = json.loads(text)
    except ValueError:
        return []
    return shapes if isinstance(shapes, list) else []  # pyright: ignore[reportUnknownVariableType]


def _tokens(text: str) -> tuple[int, int, list[int]] | None:
    """Rows of the table, tokens that are looked up, and their shape: the vocabulary has the most rows."""
    shapes = _shapes(text)
    if len(shapes) < 2 or len(shapes[0]) != 2 or len(shapes[1]) != 2 or not prod(shapes[1]):
        return None
    return shapes[0][0], prod(shapes[1]), shapes[1]


def _images(text: str) -> tuple[int, int, list[int]] | None:
    """The convolution that takes pictures has few channels, and is told from others by their size."""
    shapes = _shapes(text)
    if len(shapes) < 2 or len(shapes[0]) != 4 or shapes[0][1] not in (1, 3, 4) or not prod(shapes[0]):
        return None
    return prod(shapes[0][2:]), shapes[0][0], shapes[0]


def _utilisation(run: Run, answers: Mapping[str, Answer]) -> Iterator[Fact]:
    """FLOPs of matrix work per second over what the GPU can do, where all of it is known on every rank."""
    answer = answers.get("model_flops")
    if answer is None or run.device_kind != "gpu" or set(answer.table["rank"]) != set(run.ranks):
        return
    table = answer.table
    peaks = table.select("peak", "precision").unique()
    if peaks.height > 1 or table["hfu"].null_count():
        return
    peak, precision = peaks.row(0)
    of = f"of {peak:,.0f} TFLOP/s ({precision}, dense)"
    steps = pl.col("step_time") / pl.col("step_time").sum()
    mfu, hfu = table.select(mfu=(steps * pl.col("mfu")).sum(), hfu=(steps * pl.col("hfu")).sum()).row(0)
    flops = table["hardware_flops"].mean()
    basis = (
        f"{flops:.3g} FLOPs per step and rank from the shapes of matrix products and attention, masks not "
        "regarded"
    )
    if table["mfu"].null_count():
        shown = f"{percent(hfu, 1)} {of}"
        yield Fact("flops_utilisation", "HFU", hfu, "1", shown, f"{basis}; recomputation counts")
        return
    again = f"; HFU {percent(hfu, 1)}, recomputation counted" if hfu > mfu else ""
    yield Fact("model_flops_utilisation", "MFU", mfu, "1", f"{percent(mfu, 1)} {of}{again}", basis)


def _memory(trace: Trace) -> Iterator[Fact]:
    """The most that was held at once: by PyTorch's allocator, else as the driver counts it."""
    allocations, counters, ranks = (trace.table(t) for t in ("allocations", "counters", "ranks"))
    size = None
    if ranks is not None:
        sizes = ranks.select("memory_bytes").collect()["memory_bytes"].drop_nulls().unique()
        size = sizes[0] if sizes.len() == 1 else None
    of = f" of {written(size)}" if size else ""
    if allocations is not None:
        on_gpu = allocations.filter(pl.col("device").is_not_null() & pl.col("allocated").is_not_null())
        by_rank = on_gpu.group_by("rank").agg(pl.col("allocated", "reserved").max()).collect()
        if by_rank.height:
            rank, most, reserved = by_rank.sort("allocated", "rank", descending=[True, False]).row(0)
            held = f", {written(reserved)} reserved" if reserved else ""
            on = f" (rank {rank})" if by_rank.height > 1 else ""
            yield Fact("peak_memory", "peak memory", most, "B", f"{written(most)} allocated{held}{of}{on}",
                       "allocations of PyTorch's allocator while recording")  # fmt: skip
            return
    if counters is None:
        return
    metric = pl.col("metric").cast(pl.String)
    for name, key, label, basis in (
        ("gpu_memory_used", "peak_gpu_memory", "peak GPU memory", "the monitor's samples of the driver"),
        ("rank_resident", "peak_process_memory", "peak process memory", "the monitor's samples"),
    ):
        most = counters.filter(metric == name).select(pl.col("value").max()).collect().item()
        if most:
            total = (
                counters.filter(metric == "gpu_memory_total").select(pl.col("value").max()).collect().item()
            )
            among = f" of {written(total)}" if total and name == "gpu_memory_used" else ""
            among += ", nearly full" if among and most >= NEARLY_FULL * total else ""
            yield Fact(key, label, most, "B", f"{written(most)}{among}", basis)


def _clocks(answers: Mapping[str, Answer]) -> Iterator[Fact]:
    """The clock of the GPU that ran slowest, and what held it down."""
    if "gpu_clocks" not in answers:
        return
    table = answers["gpu_clocks"].table.filter(pl.col("clock").is_not_null() & (pl.col("highest") > 0))
    if table.is_empty():
        return
    worst = table.sort(pl.col("clock") / pl.col("highest"), "rank", "device").row(0, named=True)
    held = [
        f"{words} {percent(worst[kind], worst['sampled'])} of the time"
        for kind, words in (
            ("power", "at its power limit"),
            ("heat", "slowed by heat"),
            ("hardware", "slowed by the board"),
        )
        if worst["sampled"] and worst[kind] >= HELD * worst["sampled"]
    ]
    on = f" (GPU {worst['device']} of rank {worst['rank']}, the slowest)" if table.height > 1 else ""
    said = f"mean {worst['clock']:,.0f} of {worst['highest']:,.0f} MHz{on}"
    yield Fact(
        "gpu_clock", "GPU clock", worst["clock"], "MHz", ", ".join([said, *held]), "the monitor's samples"
    )


def _cores(trace: Trace) -> Iterator[Fact]:
    """How busy the cores were, over the monitor's samples."""
    counters = trace.table("counters")
    if counters is None:
        return
    ns = pl.col("end") - pl.col("start")
    busy = (
        counters.filter((pl.col("metric").cast(pl.String) == "cpu_busy") & (ns > 0))
        .group_by("rank", "instance")
        .agg(pl.col("value").sum(), seconds=ns.sum() / 1e9)
        .select(share=pl.col("value") / pl.col("seconds"))
        .collect()["share"]
    )
    if busy.is_empty() or not isinstance(mean := busy.mean(), float) or mean < BUSY:
        return
    many = f"{busy.len()} cores" if busy.len() > 1 else "one core"
    least = busy.min()
    each = (
        f", the least busy {percent(float(least), 1)}"
        if isinstance(least, float) and mean - least > 0.1
        else ""
    )
    yield Fact(
        "cores_busy", "CPU", mean, "1", f"{percent(mean, 1)} of {many} busy{each}", "the monitor's samples"
    )


def _top(answers: Mapping[str, Answer], spent: Budget | None) -> Iterator[Top]:
    """What computes longest inside steps, names taken together over ranks."""
    answer = answers.get("kernel_summary")
    if (
        answer is None
        or spent is None
        or not {"family", "name", "rank", "per_step"} <= set(answer.table.columns)
    ):
        return
    compute = answer.table.filter(pl.col("family").cast(pl.String) != "communication")
    ranks = max(1, answer.table.drop_nulls("per_step")["rank"].n_unique())  # those with steps that count
    whole = compute["per_step"].fill_null(0).sum()
    if not whole:
        return
    by_name = (
        compute.group_by(pl.col("name").cast(pl.String))
        .agg(pl.col("per_step").sum())
        .sort("per_step", "name", descending=[True, False])
        .head(MOST_TOP)
    )
    overlaps = whole / ranks > (1 + SIDE_BY_SIDE) * spent.of("compute") / max(1, spent.num_windows)
    for name, ns in by_name.iter_rows():
        if ns:
            yield Top(name, ns / ranks, ns / whole, overlaps)


def mean_kernel(answers: Sequence[Answer]) -> float | None:
    """How long a kernel takes that computes, ns; None where none runs."""
    table = next((a.table for a in answers if a.recipe.name == "kernel_summary"), None)
    if table is None or not {"family", "time", "calls"} <= set(table.columns):
        return None
    compute = table.filter(pl.col("family").cast(pl.String) != "communication")
    calls = int(compute["calls"].sum())
    return int(compute["time"].sum()) / calls if calls else None


def attention_by_hand(answers: Sequence[Answer]) -> float | None:
    """What share of compute is elementwise work and reductions where softmax runs between matrix products and
    no kernel is of attention; None for others, and where that is little."""
    table = next((a.table for a in answers if a.recipe.name == "kernel_summary"), None)
    if table is None or not {"family", "time", "name"} <= set(table.columns):
        return None
    family, name, time = pl.col("family").cast(pl.String), pl.col("name").cast(pl.String), pl.col("time")
    softmax = name.str.contains(SOFTMAX) & ~name.str.contains(OF_A_LOSS)
    whole, of_softmax, between, products, attention = table.filter(family != "communication").select(
        time.sum(),
        softmax=time.filter(softmax).sum(),
        between=time.filter(softmax | family.is_in(["elementwise", "reduction"])).sum(),
        products=time.filter(family == "gemm").sum(),
        attention=time.filter(family == "attention").sum(),
    ).row(0)  # fmt: skip
    if attention or not products or of_softmax < SOFTMAX_FROM * whole or between < BETWEEN_FROM * whole:
        return None
    return between / whole


def beside_products(answers: Sequence[Answer]) -> str:
    """What takes much of compute and is neither matrix work nor the update: a sentence's end; "" for little,
    and for jobs without matrix products.

    Arithmetic in fp64 from a twentieth of compute on, work that a compiler fuses from a third on, where
    nothing is compiled, and one kernel from a quarter on.
    """
    table = next((a.table for a in answers if a.recipe.name == "kernel_summary"), None)
    if table is None or not {"family", "precision", "time", "name"} <= set(table.columns):
        return ""
    rows = table.select("time", *(pl.col(c).cast(pl.String) for c in ("family", "precision", "name"))).filter(
        pl.col("family") != "communication"
    )
    whole, beside = int(rows["time"].sum()), rows.filter(pl.col("family").is_in(BESIDE_PRODUCTS))
    if "gemm" not in rows["family"]:
        return ""
    double = int(beside.filter(precision="fp64")["time"].sum())
    if double > DOUBLE_FROM * whole:
        return (
            f"{percent(double, whole)} of compute is arithmetic in fp64 outside matrix products: find the "
            "tensor that is float64, and cast it with `.float()`."
        )
    between = int(beside.filter(pl.col("family").is_in(FUSIBLE))["time"].sum())
    if between > FUSIBLE_FROM * whole and not rows["name"].str.starts_with(COMPILED).any():
        return (
            f"{percent(between, whole)} of compute is elementwise work, reductions, norms and copies: "
            "`torch.compile` fuses those."
        )
    most = beside.group_by("name").agg(pl.col("time").sum()).sort("time", "name", descending=[True, False])
    if most.height and most["time"][0] > ONE_KERNEL_FROM * whole:
        name, time = most["name"][0], most["time"][0]
        return f"one kernel, `{one_line(name, 60)}`, takes {percent(time, whole)} of compute."
    return ""


def lines(facts: Facts, on_host: bool) -> list[FactLine]:
    """What stands under the ledger: few lines, one for all rates."""
    rates = [fact.shown for fact in facts.numbers if fact.is_throughput]
    told = [FactLine("throughput", " · ".join(rates))] if rates else []
    told += [FactLine(fact.label, fact.shown) for fact in facts.numbers if not fact.is_throughput]
    label = f"top {'operator' if on_host else 'kernel'}{'s' * (len(facts.top) > 1)}"
    for top in facts.top:
        of = f"{'operator' if on_host else 'kernel'} time, some side by side" if top.overlaps else "compute"
        text = f"{milliseconds(top.ns_per_step)} ({percent(top.share, 1)} of {of})  {top.name}"
        told.append(FactLine(label, text, may_be_cut=True))
        label = ""
    return [*told, *facts.roofs]
