"""The longest chain of a job's counted steps over all ranks: what it is made of, and what else has slack.

Every nanosecond from the begin of the first step to the end of the last is one edge's of the chain, and so of
one account, operator, module and rank: their shares add up. Whatever is not on the chain may take longer by
its slack before a step does. An edit of it alone gains nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from .dependencies.edges import ON_HOST, Int, Kind
from .dependencies.operations import BEGINS, CALL, ENDS, STRETCH
from .edit import Known, in_steps
from .host_time import within
from .recorded import RecordedJob
from .step_times import StepPoints

BY = ("account", "operator", "module", "rank")
OTHER_HOST, LAUNCHING = "idle.other_host_work", "idle.launch_bound"
WAITED, BETWEEN, UNEXPLAINED = "idle.host_synchronisation", "idle.dependency", "idle.unexplained"
SCHEMA = {
    "by": pl.String, "what": pl.String, "path": pl.Int64, "time": pl.Int64, "slack": pl.Int64,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """The chain: its length in ns over so many steps, and a row for each account, operator, module and rank.

    `rows` has `by` (one of BY), `what` (null where it is not known), `path` (ns of the chain that are its),
    `time` (ns that it takes in all, on the chain or not) and `slack`: by how much what of it is off the chain
    can at least get longer before the last step ends later, null where all of it is on the chain.
    """

    length: int
    steps: int
    rows: pl.DataFrame

    def of(self, by: str) -> pl.DataFrame:
        """The rows of one of BY, what the chain holds most of first."""
        return self.rows.filter(by=by).sort("path", "time", "what", descending=[True, True, False])


def critical_path(job: RecordedJob, known: Known) -> CriticalPath:
    """The path of the recorded job, with all its residuals, up to the end of its last counted step."""
    steps = known.steps
    if not len(steps.step):
        return CriticalPath(0, 0, pl.DataFrame(schema=SCHEMA))
    end, begin = _last(job, steps), int(steps.begins(job.measured).min())
    lags, edges = job.lags(), job.edges
    on_path = np.zeros(len(lags), bool)
    chain = job.graph.path(lags, job.measured, end)
    spent = np.clip(lags, 0, None)
    # Where a call returned before the clock of the device says that its work ended, none counts that twice.
    reached = np.maximum(np.maximum.accumulate(job.measured[edges.target[chain]]), begin)
    spent[chain] = np.diff(reached, prepend=begin)
    on_path[chain[spent[chain] > 0]] = True
    latest = job.graph.latest(lags, _no_later(job, steps, begin, end))
    slack = np.clip(latest[edges.target] - lags - job.measured[edges.source], 0, None)
    parts = pl.concat(
        [
            part.with_columns(
                on_path=pl.Series(on_path[part["edge"].to_numpy()]),
                slack=pl.Series(slack[part["edge"].to_numpy()]),
                rank=pl.Series(job.ranks[job.operation_of(edges.target[part["edge"].to_numpy()])]),
                operation=pl.Series(_of(job, part["edge"].to_numpy())),
            )
            for part in _parts(job, known, spent, on_path)
        ]
    )
    parts = _named(job, known, parts)
    rows = pl.concat([_summed(parts, by) for by in BY])
    return CriticalPath(int(parts.filter("on_path")["ns"].sum()), len(np.unique(steps.step)), rows)


def _last(job: RecordedJob, steps: StepPoints) -> int:
    """The point at which the last counted step ends."""
    ends = job.measured[steps.end]
    last = int(np.argmax(ends.max(axis=1)))
    return int(steps.end[last, np.argmax(ends[last])])


def _no_later(job: RecordedJob, steps: StepPoints, begin: int, end: int) -> Int:
    """How late each point may come: the ends of the last step no later than the last of them. What nothing
    there waits for may take all of the steps' time once more."""
    until = int(job.measured[end])
    bound = np.full(len(job.measured), 2 * until - begin, np.int64)
    bound[steps.end[steps.step == steps.step.max()].ravel()] = until
    bound[end] = until
    return bound


def _of(job: RecordedJob, edge: Int) -> Int:
    """The operation whose time an edge is: what runs, or what is waited for by a host."""
    edges = job.edges
    source, target = edges.source[edge], edges.target[edge]
    runs = np.isin(edges.kind[edge], [Kind.DEVICE, Kind.CONTENDED, Kind.OWN, Kind.BESIDE])
    return job.operation_of(np.where(runs, source, target))


def _parts(job: RecordedJob, known: Known, spent: Int, on_path: np.ndarray) -> Sequence[pl.DataFrame]:
    """Times of edges inside the counted steps, each with its account: edge, ns, account. No ns is in two.

    `spent` is each edge's time.
    """
    edges = job.edges
    spent = np.where(on_path | in_steps(job, known.steps, edges.target), spent, 0)
    waited = np.minimum(job.residual, spent)
    left = spent - waited
    found = [_part(waited, UNEXPLAINED)]
    of = _of(job, np.arange(len(spent)))
    what = job.operations["what"].fill_null(CALL).to_numpy()[of]
    name = job.operations["name"].fill_null("").str.starts_with("c10d::").to_numpy()[of]
    works = (edges.kind == Kind.OWN) & (what == STRETCH) & ~name
    host = np.isin(edges.kind, ON_HOST) & ~works
    spans = known.host_spans
    for account in [] if spans is None else spans["account"].unique().sort().to_list():
        assert spans is not None
        if account in (OTHER_HOST, UNEXPLAINED):
            continue
        part = np.minimum(
            within(job, np.where(host, left, 0), spans.filter(pl.col("account") == account)), left
        )
        found.append(_part(part, account))
        left = left - part
    calls = np.zeros(job.operations.height, bool)
    calls[job.operations["call"].drop_nulls().to_numpy()] = True
    launches = (host & (edges.kind == Kind.OWN) & calls[of]) | (edges.kind == Kind.LAUNCH)
    copies = job.operations["copy"].fill_null(False).to_numpy()[of]
    runs = works | np.isin(edges.kind, [Kind.DEVICE, Kind.CONTENDED, Kind.BESIDE])
    moves = runs & job.communicates[of]
    account = np.select(
        [edges.kind == Kind.TRANSFER, moves, runs & copies, runs, launches, host, edges.kind == Kind.SYNC],
        [
            "communication.transfer", "communication.exposed", "copy", "compute", LAUNCHING, OTHER_HOST,
            WAITED,
        ],
        BETWEEN,
    )  # fmt: skip
    some = np.flatnonzero(left)
    found.append(pl.DataFrame({"edge": some, "ns": left[some], "account": account[some].astype(str)}))
    return found


def _part(ns: Int, account: str) -> pl.DataFrame:
    some = np.flatnonzero(ns > 0)
    return pl.DataFrame({"edge": some, "ns": ns[some]}).with_columns(account=pl.lit(account))


def _named(job: RecordedJob, known: Known, parts: pl.DataFrame) -> pl.DataFrame:
    """The parts with the operator and module of each, null where it has none."""
    operation = parts["operation"].to_numpy()
    launched = job.operations["operator"].gather(parts["operation"])
    inside = _outermost(job)
    outer = job.operations["name"].gather(pl.Series(np.maximum(inside, 0))[operation])
    has = pl.Series((inside >= 0)[operation])
    what = pl.select(
        operator=pl.when(pl.Series(job.on_device[operation])).then(launched).when(has).then(outer)
    ).to_series()
    if known.modules is None:
        return parts.with_columns(operator=what, module=pl.lit(None, pl.String))
    distinct = parts.select("operation").unique().sort("operation")
    rows = job.operations[distinct["operation"].to_numpy()]
    # A device row is of the module that its call was in.
    call = rows["call"].fill_null(rows["operation"])
    began = job.operations[call.to_numpy()].select("rank", pl.col("thread").fill_null(-1), "start")
    module = distinct.with_columns(module=known.modules(began))
    return parts.with_columns(operator=what).join(module, on="operation", how="left", maintain_order="left")


def _outermost(job: RecordedJob) -> Int:
    """For each host operation the begin of the operator around it, or a stretch itself; else -1."""
    what = job.operations["what"].fill_null(CALL).to_numpy()
    number = np.arange(len(what))
    marks = np.where(what == BEGINS, number, np.where(what == ENDS, -1, -2))
    at = np.maximum.accumulate(np.where(marks >= -1, number, -1))
    found = np.where(at >= 0, marks[np.maximum(at, 0)], -1)
    # An end is still of the operator that it ends.
    ended = (what == ENDS) & (number > 0)
    before = np.r_[-1, found[:-1]]
    return np.where(what == STRETCH, number, np.where(ended, before, found))


def _summed(parts: pl.DataFrame, by: str) -> pl.DataFrame:
    off = ~pl.col("on_path")
    return (
        parts.group_by(by)
        .agg(
            path=pl.col("ns").filter("on_path").sum(),
            time=pl.col("ns").sum(),
            slack=pl.col("slack").filter(off).min(),
        )
        .select(
            by=pl.lit(by),
            what=pl.col(by).cast(pl.String),
            path="path",
            time="time",
            slack="slack",
        )
        .select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())
    )
