"""Whether a replay may be believed: what it misses of the recording when no residual helps it.

The limits are those of the table in docs/replay.md. A replay that misses the recording by more than a
twentieth predicts nothing: the rules do not explain the job.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from lostflops.finding import percent
from lostflops.units import milliseconds

from .dependencies.edges import ON_HOST, Int, Kind
from .dependencies.operations import BEGINS, CALL, ENDS, STRETCH
from .edit import Known
from .host_time import within
from .recorded import SMALL, RecordedJob
from .step_times import StepPoints

GOOD, LEAST = 0.03, 0.05
FEWEST_ROWS = 50
NAMELESS = ["idle.other_host_work", "idle.unexplained", "idle.dependency", "idle.unrecorded"]
KERNEL_CALL = "Launch(Kernel|Cooperative)"
NOT_LAUNCHED_MOST = 0.35
MATCHED_LEAST = 0.80
OPAQUE_GOOD, OPAQUE_MOST = 0.15, 0.40


@dataclass(frozen=True)
class PathShares:
    """What the critical path of a rank's counted steps is made of, as shares that add up to 1.

    `host` is calls and operators, `opaque` host time between them, `device` kernels, copies and what is
    between them, `transfer` collectives after the last rank came, `residual` what no rule explains, and
    `unexplained` waits for nothing known.
    """

    host: float
    opaque: float
    device: float
    transfer: float
    residual: float
    unexplained: float


@dataclass(frozen=True, eq=False)
class Trust:
    """How a replay of the unchanged job without residuals compares with the recording.

    `measured_ns` and `replayed_ns` are a mean step's, `error` the largest share by which a rank's steps
    together differ, and `spread` the standard error of the mean step, as a share of it: what a second
    recording may differ by. `reason` says why nothing may be predicted, or is empty; `doubts` what makes it
    less sure.
    """

    measured_ns: int
    replayed_ns: int
    error: float
    spread: float
    reason: str
    doubts: tuple[str, ...]
    steps: pl.DataFrame
    path: PathShares
    host_edits: str  # why edits of host time are refused, or empty
    communication_edits: str  # the same for edits of what passes between ranks
    other_edits: str  # the same for all but those that only make recorded work shorter

    @property
    def trusted(self) -> bool:
        return not self.reason


def trust(job: RecordedJob, known: Known, world: int | None) -> Trust:
    """The measures, taken over the steps that count. `world` is how many ranks the job has, if known."""
    steps, matched = known.steps, known.matched
    measured = steps.lengths(job.measured)
    small, none = (steps.lengths(job.replayed(job.lags(above=above))) for above in (SMALL, -1))
    table = pl.DataFrame(
        {"rank": steps.rank, "step": steps.step, "measured": measured, "replayed": none, "small": small}
    )
    of_rank = table.group_by("rank").agg(pl.col("measured", "replayed", "small").sum()).sort("rank")
    whole = of_rank["measured"].to_numpy().astype(float)
    errors = [np.abs(of_rank[c].to_numpy() - whole) / np.maximum(whole, 1) for c in ("replayed", "small")]
    error = float(max((e.max() for e in errors if len(e)), default=0.0))
    worst = int(of_rank["rank"][int(np.argmax(np.maximum(*errors)))]) if len(whole) else 0
    path = path_shares(job, steps, known.host_spans)
    unmatched = _unmatched(job, steps, matched, world)
    reason = _refused(job, steps, error, worst, path)
    if not reason and cpu_only(job):
        reason = unmatched  # where a transfer is waited for, only its own times say
    return Trust(
        measured_ns=round(float(measured.mean())) if len(measured) else 0,
        replayed_ns=round(float(none.mean())) if len(none) else 0,
        error=error,
        spread=_spread(table),
        reason=reason,
        doubts=_doubts(job, steps, error, path),
        steps=table.drop("small"),
        path=path,
        host_edits=_no_host_edits(job, path),
        communication_edits=unmatched,
        other_edits="no steps were found, and the whole recording counts as one"
        if _without_steps(job)
        else "",
    )


def _no_host_edits(job: RecordedJob, path: PathShares) -> str:
    """Why it is not known enough what the host does, or nothing."""
    if path.opaque > OPAQUE_MOST:
        return f"{whole_percent(path.opaque)} of the critical path is host time between operators and calls"
    if (share := _without_launch(job)) > NOT_LAUNCHED_MOST:
        return f"{whole_percent(share)} of the GPU work was launched before the recording began"
    return ""


def _without_launch(job: RecordedJob) -> float:
    """The share of the device's rows whose launch is not there."""
    device = job.operations.filter(pl.col("on_device"))
    return device["call"].null_count() / device.height if device.height and not cpu_only(job) else 0.0


def _without_steps(job: RecordedJob) -> bool:
    return job.steps.height > 0 and bool((job.steps["source"] == "whole trace").all())


def _unmatched(job: RecordedJob, steps: StepPoints, matched: pl.DataFrame | None, world: int | None) -> str:
    """Why it is not known enough which ranks wait for which, or nothing."""
    operations = job.operations.filter(pl.col("communication").fill_null(False))
    ranks = job.operations["rank"].n_unique()
    if not operations.height:
        return ""
    if world is not None and ranks < world:
        return f"{ranks} of the job's {world} ranks were recorded, and nothing tells what the others wait for"
    if ranks == 1:
        return "one rank was recorded, whose communication holds what it waited for others"
    if matched is None:
        return "which communication of different ranks belongs together is not known"
    length = pl.col("end") - pl.col("start")
    # What came before the first step, or after the last, is given as it was.
    windows = pl.DataFrame(
        {"rank": steps.rank, "from": steps.begins(job.measured), "to": steps.ends(job.measured)}
    )
    around = windows.group_by("rank").agg(pl.col("from").min(), pl.col("to").max())
    inside = matched.join(around, on="rank").filter(
        pl.col("end") > pl.col("from"), pl.col("start") < pl.col("to")
    )
    told = inside.select(all=length.sum(), told=length.filter(pl.col("instance").is_not_null()).sum()).row(0)
    share = (told[1] or 0) / told[0] if told[0] else 1.0
    if share < MATCHED_LEAST:
        return f"{whole_percent(1 - share)} of the time in communication could not be matched over ranks"
    return ""


def cpu_only(job: RecordedJob) -> bool:
    """Whether nothing but communication ran beside the hosts' threads."""
    computes = pl.col("on_device") & ~pl.col("communication").fill_null(False)
    return not job.operations.select(computes.any()).item()


def _spread(steps: pl.DataFrame) -> float:
    """The standard error of the mean step as a share of it, from how steps of all ranks together differ."""
    means = steps.group_by("step").agg(pl.col("measured").mean())["measured"]
    deviation, mean = means.std(), means.mean()
    if not isinstance(deviation, float) or not isinstance(mean, float) or not mean:
        return 0.0
    return deviation / mean / float(np.sqrt(means.len()))


def _refused(job: RecordedJob, steps: StepPoints, error: float, rank: int, path: PathShares) -> str:
    operations = job.operations
    device = operations.filter(pl.col("on_device"))
    if not len(steps.step):
        return "no step was recorded"
    if not cpu_only(job) and device.height < FEWEST_ROWS:
        return f"{device.height} kernels and copies are too few to tell what waits for what"
    if not cpu_only(job):
        unlaunched = _without_launch(job)
        if unlaunched > NOT_LAUNCHED_MOST and not _queued_before(device):
            return (
                f"{whole_percent(unlaunched)} of the GPU work has no launch in the recording; "
                "record the CPU's side too (`activities=[CPU, CUDA]`)"
            )
    if (lost := _lost_launches(operations, device)) > LEAST:
        launches = f"{whole_percent(lost)} of the kernel launches"
        if 2 * (unlaunched := _without_launch(job)) >= lost:
            return (
                f"{launches} have no kernel that names them, and {whole_percent(unlaunched)} of the GPU work "
                "names no launch"
            )
        return f"{launches} have no kernel: GPU work was not recorded"
    if error > LEAST:
        return (
            "without what no rule explains, the replay misses the recorded steps of "
            f"rank {rank} by {percent(error, 1)}{_why(job)}"
        )
    for share, what in (
        (path.residual, "device time that no rule explains"),
        (path.unexplained, "waits of the host for nothing that was recorded"),
    ):
        if share > LEAST:
            return f"{whole_percent(share)} of the critical path is {what}"
    return ""


def _lost_launches(operations: pl.DataFrame, device: pl.DataFrame) -> float:
    """The share of calls that launch kernels whose kernel is not there.

    What was called after the last row's call, while the device still ran, was queued at the end.
    """
    calls = operations.filter((pl.col("what") == CALL) & pl.col("name").str.contains(KERNEL_CALL))
    called = pl.col("operation").is_in(device["call"].drop_nulls().unique().implode())
    until = (
        operations.filter(called)
        .group_by("rank")
        .agg(_last=pl.col("start").max())
        .join(device.group_by("rank").agg(_ran=pl.col("end").max()), on="rank")
    )
    queued = (pl.col("start") > pl.col("_last")) & (pl.col("end") <= pl.col("_ran"))
    reached = calls.join(until, on="rank", how="left").filter(queued.not_().fill_null(True))
    return 1 - reached.filter(called).height / reached.height if reached.height else 0.0


def _queued_before(device: pl.DataFrame) -> bool:
    """Whether what has no launch all began before what has one: it was queued before the recording began."""
    unlaunched = device.filter(pl.col("call").is_null())
    first = (
        device.filter(pl.col("call").is_not_null())
        .group_by("rank", "stream")
        .agg(first=pl.col("start").min())
    )
    late = unlaunched.join(first, on=["rank", "stream"], how="left")
    late = late.filter((pl.col("start") > pl.col("first")).fill_null(True))
    return late.height <= LEAST * max(1, unlaunched.height)


def _why(job: RecordedJob) -> str:
    """What the largest residual is, as far as its place tells."""
    worst = int(np.argmax(job.residual)) if len(job.residual) else 0
    row = int(job.edges.target[worst]) // 2
    if row >= job.operations.height:
        return ""
    name, ns = job.operations["name"][row], int(job.residual[worst])
    short = name if len(name) <= 40 else name[:39] + "…"
    waited = f"; the longest is {milliseconds(ns)} before '{short}'"
    return f"{waited}: the GPU may have run work that was not recorded"


def _doubts(job: RecordedJob, steps: StepPoints, error: float, path: PathShares) -> tuple[str, ...]:
    found = list[str]()
    if error > GOOD:
        found.append(f"the replay misses recorded steps by {percent(error, 1)}")
    if path.opaque > OPAQUE_GOOD:
        found.append(
            f"{whole_percent(path.opaque)} of the critical path is host time between operators and calls"
        )
    if _without_steps(job):
        found.append("no steps were found: the whole recording counts as one")
    elif len(np.unique(steps.step)) < 3:
        found.append("fewer than three steps count")
    if (
        any(not usual.told for usual in job.usual.values())
        and job.operations["call"].is_not_null().any()
        and not cpu_only(job)
    ):
        found.append("too few launches to tell the usual delay of one: those of an H100 were taken")
    return tuple(found)


def critical_edges(job: RecordedJob, steps: StepPoints) -> Int:
    """The edges of the critical path through the counted steps, from first to last: each point on it came
    when the one before let it."""
    if not len(steps.step):
        return np.zeros(0, np.int64)
    ends = job.measured[steps.end]
    last = int(np.argmax(ends.max(axis=1)))
    first = int(steps.begins(job.measured).min())
    edges = job.graph.path(job.lags(), job.measured, int(steps.end[last, np.argmax(ends[last])]))
    return edges[job.measured[job.edges.target[edges]] > first]


def path_shares(job: RecordedJob, steps: StepPoints, spans: pl.DataFrame | None) -> PathShares:
    """What the critical path is made of that leads to the end of the last counted step.

    `spans` is when host threads were at what has a name.
    """
    if not len(steps.step):
        return PathShares(0, 0, 0, 0, 0, 0)
    lags = job.lags()
    edges = critical_edges(job, steps)
    kind, lag = job.edges.kind[edges], np.clip(job.edges.lag[edges], 0, None)
    residual = int(job.residual[edges].sum())
    operation = job.operation_of(job.edges.target[edges])
    unexplained = job.unexplained[operation] & np.isin(kind, [Kind.OWN, Kind.SYNC])
    program = np.isin(kind, [Kind.PROGRAM, Kind.HANDOVER])
    named = np.zeros(len(edges), np.int64)
    if spans is not None:
        named = within(job, lags, spans.filter(~pl.col("account").is_in(NAMELESS)))[edges]
    opaque = program & ~inside_operators(job)[operation]
    without_name = np.where(opaque, np.clip(lag - named, 0, None), 0)
    transfer = kind == Kind.TRANSFER
    on_host = np.isin(kind, ON_HOST)
    whole = max(1, int(lag.sum()) + residual)
    parts = [
        lag[on_host & ~unexplained].sum() - without_name.sum(),
        without_name.sum(),
        lag[~on_host & ~transfer & ~unexplained].sum(),
        lag[transfer].sum(),
        residual,
        lag[unexplained].sum(),
    ]
    return PathShares(*(float(part) / whole for part in parts))


def whole_percent(share: float) -> str:
    """A share to the full per cent: '49 %'."""
    return f"{100 * share:.0f} %"


def inside_operators(job: RecordedJob) -> np.ndarray:
    """For each operation whether the host time right before it lies inside an operator; one flag each."""
    what = job.operations["what"].fill_null(CALL).to_numpy()
    depth = np.cumsum((what == BEGINS).astype(np.int64) - (what == ENDS))
    before = np.r_[0, depth[:-1]]
    return (before > 0) | (what == STRETCH)
