"""What a change would gain: the recorded job replayed with and without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import polars as pl

from lostflops.store.trace import CLOSED, OPENED, Trace
from lostflops.units import milliseconds

from .critical_path import CriticalPath, critical_path
from .dependencies.edges import BY_GUESS, Edges, Int, joined
from .edit import REMOVED, Edit, Edited, Known, as_one, in_steps
from .edits.on_host.again import computed_again
from .graph import NEVER, Graph
from .modules import module_at
from .recorded import RecordedJob, recorded
from .step_times import StepPoints, step_points
from .trust import Trust, trust

Ask = Callable[[str], pl.DataFrame | None]
"""A recipe's table on the trace, or None where it cannot be given."""


UNSURE = 0.10  # of a gain, by which predictions of simulated jobs are off in one of ten: benchmarks/README.md
SHORTER = 0.01  # a share of a step that an edit has to take off the others for the first to be like them
ONE_STEP = 1.5  # times what ranks gain unlike in one step, that they do in all where they keep in step
UNLIKE = 0.25  # of what a rank gains, that another gains less where they still may keep in step
STEADY = 3  # steps from which on what lies before them is changed with them


class Leniency(NamedTuple):
    """Whether a replay keeps what no rule explains, and the edges that only times or order suggest."""

    residual: bool
    guesses: bool


VARIANTS = tuple(Leniency(residual, guesses) for guesses in (True, False) for residual in (True, False))
"""All of them count for the interval of a prediction; the first gives its middle."""


@dataclass(frozen=True)
class PredictedStep:
    """What a mean step would take with an edit made, ns, between `low_ns` and `high_ns`.

    `bound_ns` is the shortest it could be if all that the edit removes were gained. `refused` says why
    nothing is predicted, and then all of them are None; `doubts` is what the replay does not know.
    """

    edit: str
    says: str
    predicted_ns: int | None = None
    low_ns: int | None = None
    high_ns: int | None = None
    bound_ns: int | None = None
    refused: str = ""
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Replay:
    """A trace ready for questions: its graph, its steps, and how far its replay may be trusted."""

    job: RecordedJob
    known: Known
    trust: Trust

    @classmethod
    def of(cls, trace: Trace, ask: Ask) -> Replay:
        """The replay of a trace; `ask` gives what recipes say of it."""
        matched = ask("communication_matches")
        counted = ask("counted_steps")
        job = recorded(trace, matched)
        empty = pl.DataFrame(schema={"rank": pl.Int32, "step": pl.Int64, "start": pl.Int64, "end": pl.Int64})
        steps = step_points(job, empty if counted is None else counted)
        ranks = trace.table("ranks")
        assert ranks is not None
        told = ranks.select("world_size", "gpu").collect()
        worlds = told["world_size"].drop_nulls()
        world = max(worlds.to_list()) if worlds.len() else None
        every = step_points(job, job.steps)
        named, stages = partial(_named, trace), partial(_stages, ask)
        gpus = tuple(told["gpu"].drop_nulls().cast(pl.String).unique().sort().to_list())
        known = Known(
            steps, every, ask("host_spans"), matched, named, stages, partial(ask, "pipeline_passes"), gpus,
            partial(computed_again, trace), partial(module_at, trace),
        )  # fmt: skip
        return cls(job, known, trust(job, known, world))

    def predicted(self, edits: Sequence[Edit]) -> PredictedStep:
        """What a mean step would take with the edits made, one after the other."""
        text, says = ", ".join(e.text for e in edits), "; ".join(e.says for e in edits)
        if why := self._refused(edits):
            return PredictedStep(text, says, refused=why)
        job, steps = self.job, self.known.steps
        measured = steps.mean(job.measured)
        gains, removed, doubts = list[float](), 0, list[str]()
        for variant, unchanged in self._unchanged.items():
            made = self._made(self._lags(variant), edits)
            if isinstance(made, str):
                return PredictedStep(text, says, refused=made)
            removed, doubts = made.removed, made.doubts
            now = float(unchanged.mean())
            for lengths, times in self._lengths(made):
                if self.trust.communication_edits and (why := self._out_of_step(unchanged - lengths)):
                    return PredictedStep(text, says, refused=why)
                # Where its guesses were left out, what an edit would remove of them stays out.
                whole, settled = self._means(unchanged, lengths, times)
                gains += [now - settled, now - whole, *gained_apart(steps, unchanged - lengths)]
            if any(each.may_gain_nothing for each in made.edits):
                gains.append(0.0)
        predicted = measured - gains[0]
        spread = max(max(self.trust.error, self.trust.spread) * measured, UNSURE * abs(gains[0]))
        low = min(measured - gain for gain in gains) - spread
        high = max(measured - gain for gain in gains) + spread
        # Nothing gains more than all that the edit removes, however much steps differ.
        bound = measured - min(measured, removed / max(1, len(steps.step)) * self._ranks_per_step())
        predicted = max(predicted, bound)
        return PredictedStep(
            text,
            says,
            predicted_ns=round(predicted),
            low_ns=round(min(max(low, bound), predicted)),
            high_ns=round(max(high, predicted)),
            bound_ns=round(bound),
            doubts=tuple(dict.fromkeys(doubts)),
        )

    def times(self, edits: Sequence[Edit]) -> Int | str:
        """When each point comes with the edits made, or why that is not predicted."""
        if why := self._refused(edits):
            return why
        made = self._made(self._lags(VARIANTS[0]), edits)
        if isinstance(made, str):
            return made
        if any(each.retimed for each in made.edits):
            return "in another order of passes nothing says when each kernel would run"
        return self._times(made.lags, made.edits)

    @cached_property
    def critical_path(self) -> CriticalPath:
        """The longest chain of the counted steps over all ranks, and the slack of what is off it."""
        return critical_path(self.job, self.known)

    @cached_property
    def _unchanged(self) -> dict[Leniency, Int]:
        """The lengths of the counted steps in each variant of the unchanged job."""
        guesses = bool(np.isin(self.job.edges.kind, BY_GUESS).any())
        return {
            variant: self.known.steps.lengths(self.job.replayed(self._lags(variant)))
            for variant in VARIANTS
            if variant.guesses or guesses
        }

    def _lags(self, variant: Leniency) -> Int:
        lags = self.job.lags() if variant.residual else self.job.lags(above=-1)
        if variant.guesses:
            return lags
        return np.where(np.isin(self.job.edges.kind, BY_GUESS), REMOVED, lags)

    def _means(self, before: Int, after: Int, times: Int | None) -> tuple[float, float]:
        """The mean step with an edit made, and again with the first step as long as the others.

        `before` and `after` are the lengths of the counted steps without the edit and with it, and `times`
        when points come with it, where that is told.

        How ranks and queues stood when the recording began comes of what was before it, which an edit cannot
        change: a rank that was late then makes the others wait in the first step, and a device that had
        nothing to do waits for the host. Where an edit shortens the others, and the first stays longer than
        any of them by no more than ranks were apart, or than the host comes to be ahead, that is what is left
        in it.
        """
        steps = self.known.steps
        mean = float(after.mean())
        first = steps.step == steps.step.min()
        if first.all():
            return mean, mean
        of_step = [after[steps.step == number].mean() for number in np.unique(steps.step)]
        shortened = after[~first].mean() < (1 - SHORTER) * before[~first].mean()
        longer = of_step[0] - max(of_step[1:])
        if not shortened or longer <= SHORTER * of_step[0]:
            return mean, mean
        if longer > np.ptp(steps.host_begin[first]) and (
            times is None or longer > self._further_ahead(times)
        ):
            return mean, mean
        return mean, float(after[~first].mean())

    def _refused(self, edits: Sequence[Edit]) -> str:
        """Why edits of these kinds cannot be predicted on this job, or nothing."""
        trust = self.trust
        if trust.reason:
            return trust.reason
        if trust.other_edits and not all(e.scales for e in edits):
            return trust.other_edits
        if trust.host_edits and any(e.on_host for e in edits):
            return trust.host_edits
        return trust.communication_edits if any(e.of_communication for e in edits) else ""

    def _out_of_step(self, gain: Int) -> str:
        """Why nothing is predicted where it is not known when ranks wait for each other, and one is to gain
        more of each of these steps than another; empty where all gain alike."""
        rank = np.unique(self.known.steps.rank, return_inverse=True)[1]
        each = np.bincount(rank, weights=gain) / np.bincount(rank)
        least, most = float(each.min()), float(each.max())
        if most < 0:
            return self.trust.communication_edits
        if most - least <= max(UNLIKE * most, self.trust.error * self.known.steps.mean(self.job.measured)):
            return ""
        return (
            f"ranks would gain between {milliseconds(round(least))} and {milliseconds(round(most))}, and "
            f"{self.trust.communication_edits}"
        )

    def _ranks_per_step(self) -> int:
        """What one rank loses, all others may wait for: a mean step gains at most what all lose together."""
        return max(1, len(np.unique(self.known.steps.rank)))

    def _made(self, lags: Int, edits: Sequence[Edit]) -> str | _Made:
        """The job with all edits made, or why one cannot be."""
        made, removed, doubts, longer = list[Edited](), 0, list[str](), list[Int]()
        for edit in as_one(edits):
            one = edit.apply(self.job, lags, self.known)
            if one.refused:
                return one.refused
            # What lies outside the steps stays as it was: where they begin is no part of what is asked.
            lags = np.where(self._inside, one.lags, lags)
            if one.longer is not None:
                longer.append(np.where(self._inside, one.longer, 0))
            removed += one.removed
            doubts += one.doubts
            made.append(one)
        whole = np.sum(longer, axis=0) if longer else None
        slower = None if whole is None else np.where(lags == REMOVED, lags, lags + whole)
        return _Made(lags, slower, made, removed, doubts)

    def _lengths(self, made: _Made) -> Iterator[tuple[Int, Int | None]]:
        """The counted steps with the edits made, the likeliest first, then what else they may be; and when
        points come then, None where edits change lengths beside that."""
        for lags in (made.lags,) if made.slower is None else (made.lags, made.slower):
            times = self._times(lags, made.edits)
            lengths = self.known.steps.lengths(times)
            changes = [each.retimed(times) for each in made.edits if each.retimed]
            if not changes:
                yield lengths, times
            for change in zip(*changes, strict=True):
                yield lengths + np.sum(change, axis=0), None

    def _further_ahead(self, times: Int) -> int:
        """How much later than it was recorded the device comes to what the host launches first in the last
        step, ns, when points come at these times; 0 where ranks differ in which step that is."""
        job = self.job
        numbers = np.unique(self.known.steps.step)
        if len(numbers) < STEADY:
            return 0
        last = job.steps.filter(pl.col("step") == numbers[-1]).select("rank", OPENED, CLOSED).rows()
        least = list[int]()
        for rank, opened, closed in last:
            rows, launched, _ = job.launched(rank)
            mine = (launched >= opened) & (launched < closed)
            if not mine.any():
                return 0
            first = rows[mine][np.argmin(launched[mine])]
            call = 2 * int(job.operations["call"][int(first)])
            now, then = (int(at[2 * first] - at[call]) for at in (times, job.measured))
            least.append(now - then)
        return max(0, min(least, default=0))

    @cached_property
    def _inside(self) -> np.ndarray:
        """Which edges an edit changes; one flag each.

        Where several steps count, all that was recorded on all ranks: what a step begins with is what the one
        before left. Of one or two steps the work before would move where they begin, so only theirs.
        """
        target = self.job.edges.target
        if len(np.unique(self.known.steps.step)) >= STEADY:
            return self._on_all_ranks(target)
        is_join = target >= 2 * self.job.operations.height
        return is_join | in_steps(self.job, self.known.steps, target)

    def _on_all_ranks(self, points: Int) -> np.ndarray:
        """Which points come when all ranks are recorded. Steps that one rank lacks cannot be changed on it:
        changed on the others, these would wait for it in the first step that it has."""
        steps, of = self.job.steps, self.job.operation_of(points)
        first = steps.group_by("rank").agg(pl.col("step").min())["step"].max()
        since = np.full(len(points), NEVER)
        for rank, at in (
            steps.filter(pl.col("step") == first, pl.col("step") > pl.col("step").min())
            .select("rank", OPENED)
            .iter_rows()
        ):
            since[self.job.ranks[of] == rank] = at
        return self.job.measured[points] >= since

    def _times(self, lags: Int, made: Sequence[Edited]) -> Int:
        job, more, points = self.job, list[Edges](), len(self.job.measured)
        for each in made:
            more += [_numbered(edges, len(job.measured), points) for edges in each.added]
            points += each.points
        added = joined(more)
        if not len(added.source):
            return job.replayed(lags)
        edges = job.edges
        graph = Graph.of(
            points,
            np.concatenate([edges.source, added.source]),
            np.concatenate([edges.target, added.target]),
        )
        earliest = np.full(points, NEVER)
        earliest[: len(job.earliest)] = job.earliest
        return graph.times(np.concatenate([lags, added.lag]), earliest)[: len(job.measured)]


@dataclass(frozen=True, eq=False)
class _Made:
    """A job with edits made: its lags, what they may be at worst, what each edit did, and what all remove."""

    lags: Int
    slower: Int | None
    edits: list[Edited]
    removed: int
    doubts: list[str]


def gained_apart(steps: StepPoints, gain: Int) -> tuple[float, ...]:
    """What the ranks gain of a mean step that gain least and most, ns, where that differs by an end.

    Ranks that keep in step gain alike in the long run, however unlike in the first and the last step of a
    recording: what a rank does at its end nobody waits for any more. Ranks that never meet gain unlike in
    every step.
    """
    number, rank = (np.unique(of, return_inverse=True)[1] for of in (steps.step, steps.rank))
    each = np.zeros((number.max() + 1, rank.max() + 1))
    each[number, rank] = gain
    whole, most = each.sum(axis=0), np.ptp(each, axis=1).max()
    counts = np.bincount(rank)
    if np.ptp(counts) or np.ptp(whole) > ONE_STEP * most:
        return ()
    return float(whole.min()) / counts[0], float(whole.max()) / counts[0]


def _numbered(edges: Edges, own: int, first: int) -> Edges:
    """The edges with points that an edit added, which it numbers from `own` on, numbered from `first` on."""
    source, target = (np.where(p >= own, p - own + first, p) for p in (edges.source, edges.target))
    return Edges(source, target, edges.lag, edges.kind)


def _stages(ask: Ask) -> dict[int, int]:
    """The pipeline stage of each rank, as far as it is known."""
    table = ask("stragglers")
    if table is None:
        return {}
    ranks = table.filter(pl.col("part") == "rank").drop_nulls(["rank", "stage"])
    return dict(ranks.select("rank", "stage").iter_rows())


def _named(trace: Trace, text: str) -> pl.DataFrame:
    """When host threads were in a range, operator or frame whose name holds the text."""
    wanted = pl.col("name").cast(pl.String).str.contains(text, literal=True)
    found = [
        table.filter(wanted).select("rank", "thread", "start", "end").collect()
        for name in ("ranges", "operators", "frames")
        if (table := trace.table(name)) is not None
    ]
    nothing = pl.DataFrame(schema={"rank": pl.Int32, "thread": pl.Int64, "start": pl.Int64, "end": pl.Int64})
    return pl.concat([nothing, *found]).drop_nulls().unique(maintain_order=True)
