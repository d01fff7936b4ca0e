"""A running job as its step logs show it: what it does now, and what happened, as news."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from lostflops.errors import NothingThere
from lostflops.recipes.steps.pauses import Pause, cause_of, pauses
from lostflops.units import written_ranks
from lostflops.watch.detection import CHANGE, Detector, LevelChange
from lostflops.watch.steps import FULL, PARTS, ROWS, StepRing, Whole, middle
from lostflops.watch.tailing import Tails

RECENT = 50  # steps that speed, spread and throughput are of
NEW_LOGS_EVERY = 10.0  # s
# s, and usual steps, that a step waits for ranks whose lines have not come
PATIENCE, PATIENT_STEPS = 15.0, 3
STALL_LEAST, STALL_STEPS = 60.0, 20  # s, and usual steps, without a step: the job hangs, or a rank does
SLOW = float(np.exp(CHANGE / 2) - 1)  # a rank that lost less than this since its first change is back
EXPLAINS = 0.5  # of what a step takes longer
FEW = 0.25  # of the ranks: what grew on more of them is not one rank's doing
GROWS = {
    "data": "waits {} longer for data",
    "checkpoint": "saves checkpoints for {} longer",
    "garbage": "collects garbage for {} longer",
    "core_wait": "waits {} longer for a processor core",
    "optimizer": "spends {} longer in the optimizer",
}


@dataclass(frozen=True)
class Happened:
    """Something to tell. `kind` is rank, job, stall, loss, attempt, log or end; `bad` is what alarms are for.

    `at` is when, in UTC, ns; `ratio` is by how much a step became longer, 0.05 for 5 %.
    """

    kind: str
    text: str
    at: int
    step: int | None = None
    rank: int | None = None
    node: str = ""
    ratio: float = 0.0
    bad: bool = False


@dataclass(frozen=True)
class RankNow:
    """A rank over the recent steps: its median step in ns, and how much longer that is than the job's."""

    rank: int
    node: str
    step: int
    duration: float
    longer: float
    slow: float | None  # what it lost since its first change, where it did


@dataclass(frozen=True)
class Now:
    """The job at present. Times are ns; None and NaN are what is not known."""

    ranks: Sequence[RankNow]
    world: int | None
    nodes: int
    step: int | None
    at: int | None  # when that step ended, UTC
    duration: float
    recent: int  # steps that speed, throughput and the median are of
    steps_per_second: float
    tokens_per_second: float | None
    samples_per_second: float | None
    loss: tuple[int, float] | None  # of the last step that told one, the mean of its ranks; or NaN
    loss_before: float | None  # mean of the recent steps before it
    spark: Sequence[float]
    pauses: Sequence[tuple[Pause, str | None]]
    job_slower: float | None
    stalled: bool
    silent: Mapping[int, float]  # ranks that write nothing while others do, and for how many seconds
    ended: bool
    status: int | None
    attempt: int
    notes: Sequence[str]


@dataclass
class Watch:
    """Reads what is new of a run's logs at every `look`, and keeps what it needs of the rest."""

    run: Path
    tails: Tails = field(init=False)
    steps: StepRing = field(default_factory=StepRing)
    detector: Detector = field(default_factory=Detector)
    worse: set[int | None] = field(default_factory=set[int | None])  # ranks, None for the job
    happened: list[Happened] = field(default_factory=list[Happened])
    counts: Counter[str] = field(default_factory=Counter[str])
    notes: list[str] = field(default_factory=list[str])
    stalled: bool = False
    silent: dict[int, float] = field(default_factory=dict[int, float])  # ranks, and for how many seconds
    bad_loss: int | None = None  # the last step whose loss is no number, until one comes whose loss is
    ended: bool = False
    status: int | None = None
    _looked: float = -math.inf
    _grew: float = -math.inf
    _pauses: tuple[int, list[tuple[Pause, str | None]]] = (-1, [])

    def __post_init__(self) -> None:
        """Raises NothingThere where the run has no folder."""
        if not self.run.is_dir():
            raise NothingThere(self.run, "give the folder that `lostflops record` made for the job.")
        self.tails = Tails(self.run)

    def look(self, now: float | None = None) -> list[Happened]:
        """Read what was appended since the last look; what happened meanwhile. `now` is monotonic, in s."""
        now = time.monotonic() if now is None else now
        news: list[Happened] = []
        if now - self._looked >= NEW_LOGS_EVERY or not self.tails.by_rank:
            self._looked = now
            if self.tails.look():
                news.append(self._begun())
            self.steps.reserve(sorted(self.tails.by_rank))
        self.tails.renew()
        first = self._grew == -math.inf
        more = True
        while more:
            more = False
            for tail, lines in self.tails.turn(self._reach):
                more = True
                if lines:
                    self.steps.add(tail.rank, list(lines), tail.wall(0))
                    self._grew = now
            news += self._taken(patient=True)
        if first:
            self._grew = now - self._last_written()
        if now - self._grew >= self._patience(PATIENCE, PATIENT_STEPS) or self._all_ended():
            news += self._taken(patient=False)
        news += self._state(now)
        self.notes += self.tails.notes
        self.tails.notes.clear()
        self.happened += news
        for one in news:
            self.counts[one.kind] += one.bad
        return news

    def finish(self) -> list[Happened]:
        """Take what still waits for ranks that lag: nobody will look again."""
        news = self._taken(patient=False)
        self.happened += news
        return news

    def _reach(self) -> int | None:
        return None if self.steps.first is None else self.steps.reach

    def _last_written(self) -> float:
        """How many seconds before the first look the last line was written.

        Both clocks that know may be wrong, a node's and the file system's: the job hangs where both say so.
        """
        steps = self.steps
        ended = int(steps.end[steps.highest % ROWS].max(initial=0)) if steps.highest >= 0 else 0
        written = max((tail.written for tail in self.tails.by_rank.values()), default=0.0)
        return max(0.0, time.time() - max(ended / 1e9, written)) if ended and written else 0.0

    def _patience(self, least: float, of_steps: int) -> float:
        """Seconds that are long for this job."""
        usual = _typical(self.steps.job[self.steps.rows(RECENT)]) / 1e9
        return max(least, of_steps * usual) if math.isfinite(usual) else least

    def _begun(self) -> Happened:
        self.steps, self.detector = StepRing(), Detector()
        self.worse.clear()
        self.silent.clear()
        self.ended, self.stalled, self.status, self.bad_loss = False, False, None, None
        self._pauses = (-1, [])
        attempt = self.tails.attempt
        return Happened("attempt", f"attempt {attempt} of the job has begun", time.time_ns())

    def _all_ended(self) -> bool:
        return bool(self.tails.by_rank) and all(t.ended for t in self.tails.by_rank.values())

    def _taken(self, patient: bool) -> list[Happened]:
        """Take the steps that are whole; without patience, those too that half of the ranks have."""
        steps, news = self.steps, list[Happened]()
        tails = self.tails.by_rank
        if not tails or steps.first is None:
            return news
        last = np.array([float(tail.last) for tail in tails.values()])
        if last.min() < steps.highest:
            patience, quiet = self._patience(PATIENCE, PATIENT_STEPS), self.tails.quiet()
            silent = [quiet.get(rank, 0.0) >= patience for rank in tails]
            over = [(tail.ended or tail.gone) and not tail.lags for tail in tails.values()]
            last[np.array(silent) | np.array(over)] = np.inf
        whole = int(min(last.min(), steps.highest))
        forced = steps.highest - FULL
        if not patient:
            forced = max(forced, int(min(np.sort(last)[(len(last) - 1) // 2], steps.highest)))
        changes: list[LevelChange] = []
        while steps.next <= max(whole, forced):
            changes += self.detector.take(steps, steps.take())
        news += [self._change(change) for change in self._together(changes)]
        return news + self._loss()

    def _loss(self) -> list[Happened]:
        """Whether the loss is no number in a step that was taken, and whether it is one again."""
        steps, news = self.steps, list[Happened]()
        ready = sorted(step for step in steps.bad_loss if step < steps.next)
        told = {step: steps.bad_loss.pop(step) for step in ready}
        begins = ready[0] if ready and self.bad_loss is None else None
        if ready:
            self.bad_loss = max(ready[-1], self.bad_loss or 0)
        again = self._number_again()
        if begins is not None:
            ranks, value = told[begins]
            lasts = f"since step {begins:,}"
            if again is not None:
                lasts = f"in step {begins:,}" if self.bad_loss == begins else f"from step {begins:,} on"
            text = f"the loss {'is' if again is None else 'was'} {value} {lasts}, "
            text += f"first on {written_ranks(sorted(ranks))}"
            news.append(Happened("loss", text, steps.ended(begins), begins, min(ranks), bad=True))
        if again is not None:
            text = f"the loss is a number again since step {again:,}"
            news.append(Happened("loss", text, steps.ended(again), again))
            self.bad_loss = None
        return news

    def _number_again(self) -> int | None:
        """The first step after the last whose loss is no number that told one."""
        steps = self.steps
        if self.bad_loss is None:
            return None
        rows = steps.rows(FULL)
        rows = rows[(steps.loss[rows, 1] > 0) & (steps.loss[rows, 2] == 0)]
        numbers = (_step_of(int(row), steps.next) for row in rows)
        return next((number for number in numbers if number > (self.bad_loss or 0)), None)

    def _together(self, changes: Sequence[LevelChange]) -> list[LevelChange]:
        """In order, each rank once: where one changed twice between two looks, as it is now."""
        last = {change.column: change for change in changes}
        return sorted(last.values(), key=lambda change: change.step)

    # -- what happened -----------------------------------------------------------------------------------

    def _change(self, change: LevelChange) -> Happened:
        """A change in words, with what the log says of its cause."""
        rank = None if change.column is None else self.steps.ranks[change.column]
        at = self.steps.ended(change.step)
        who = "the job" if rank is None else f"rank {rank} ({self.node(rank)})"
        since = f"since step {change.step:,}"
        bad = change.ratio > 0
        if not bad and change.slower < SLOW and rank in self.worse:
            text = f"{who} is as fast as before {since}"
        else:
            stayed = rank is not None and self._stayed(change)
            than = "slower" if bad else "faster"
            text = f"{who} is {100 * abs(change.ratio):.0f} % {than}{' than the others' * stayed} {since}"
            text += ": they changed, its own steps did not" * stayed
        if bad:
            text += self._cause(change)
        if change.slower < SLOW:
            self.worse.discard(rank)
        elif bad:
            self.worse.add(rank)
        kind = "job" if rank is None else "rank"
        node = "" if rank is None else self.node(rank)
        return Happened(kind, text, at, change.step, rank, node, change.ratio, bad)

    def _around(self, change: LevelChange) -> tuple[Whole, Whole]:
        """The rows of the steps before a change, and of those since."""
        steps = self.steps
        after = np.arange(change.step, steps.next)
        first = max(steps.first or 0, change.step - 2 * len(after), change.step - FULL)
        return np.arange(first, change.step) % ROWS, after % ROWS

    def _stayed(self, change: LevelChange) -> bool:
        """Whether it was the others that changed: the rank's own steps take about as long as before."""
        before, after = self._around(change)
        if not len(before):
            return False
        own = self.steps.duration[:, change.column or 0]
        moved = math.log(_typical(own[after]) / _typical(own[before]))
        return abs(moved) < abs(math.log1p(change.ratio)) / 2

    def _cause(self, change: LevelChange) -> str:
        """Which part of the step grew, and on which ranks, where one explains half of the change."""
        steps = self.steps
        before, after = self._around(change)
        if not len(before) or not len(steps.ranks):
            return ""
        job = change.column is None
        lengths = steps.job if job else steps.duration[:, change.column or 0]
        longer = _typical(lengths[after]) - _typical(lengths[before])
        grown = np.nanmean(steps.parts[:, after], axis=1) - np.nanmean(steps.parts[:, before], axis=1)
        if not job:
            mine = grown[:, change.column or 0]
            part = int(mine.argmax())
            if mine[part] < EXPLAINS * longer:
                return ""
            return f": it {GROWS[PARTS[part]].format(_ms(mine[part]))} per step"
        part, column = np.unravel_index(int(grown.argmax()), grown.shape)
        most = float(grown[part, column])
        if most < EXPLAINS * longer:
            return self._on_which(before, after, longer)
        alike = np.flatnonzero(grown[part] >= EXPLAINS * longer)
        says = GROWS[PARTS[int(part)]].format(_ms(most))
        if len(steps.ranks) == 1:
            return f": it {says} per step"
        if len(alike) > max(1, FEW * len(steps.ranks)):
            return f": {len(alike)} of {len(steps.ranks)} ranks: each {says} per step"
        rank = steps.ranks[int(column)]
        also = f", and {len(alike) - 1} other ranks do" if len(alike) > 1 else ""
        return f": rank {rank} ({self.node(rank)}) {says} per step{also}"

    def _on_which(self, before: Whole, after: Whole, longer: float) -> str:
        """Which ranks' steps took longer, where those of some did not; ranks that wait for others do too."""
        durations = self.steps.duration
        if len(self.steps.ranks) < 2:
            return ""
        grown = np.array([_typical(one[after]) - _typical(one[before]) for one in durations.T])
        slower = np.flatnonzero(grown >= EXPLAINS * longer)
        if not 0 < len(slower) < len(grown):
            return ": the log does not say on which rank"
        return f": on {written_ranks(sorted(self.steps.ranks[column] for column in slower.tolist()))}"

    def _state(self, now: float) -> list[Happened]:
        """Whether the job ended, and whether it hangs."""
        news: list[Happened] = []
        tails = self.tails.by_rank
        if not self.ended and tails and all(t.ended or t.gone for t in tails.values()):
            self.ended = True
            self.status = self.tails.command_ended()
            with_it = "" if self.status is None else f" with status {self.status}"
            end = self.steps.ended(self.steps.highest) if self.steps.highest >= 0 else 0
            news.append(Happened("end", f"the job ended{with_it}", end or time.time_ns()))
        elif not self.ended and (status := self._command_ended(now)) is not None:
            self.ended, self.status = True, status
            silent = [rank for rank, tail in sorted(tails.items()) if not tail.ended]
            of = f"; {written_ranks(silent)} left no last line: killed, or still there" if silent else ""
            text = f"the command ended with status {status}{of}"
            news.append(Happened("end", text, time.time_ns(), bad=status != 0))
        quiet = self.quiet(now)
        stalled = not self.ended and quiet is not None
        if stalled and not self.stalled and quiet is not None:
            news.append(Happened("stall", self._hangs(quiet), time.time_ns(), self.steps.next - 1, bad=True))
        elif self.stalled and not stalled and not self.ended:
            news.append(Happened("stall", "the job goes on", time.time_ns()))
        self.stalled = stalled
        return news + self._silences()

    def _silences(self) -> list[Happened]:
        """Which ranks began to write nothing while others go on, and which write again."""
        silent, tails = self._silent(), self.tails.by_rank
        at, news = time.time_ns(), list[Happened]()
        for rank in sorted(silent.keys() - self.silent):
            last, quiet = tails[rank].last, long(silent[rank])
            text = (
                f"rank {rank} ({self.node(rank)}) wrote no step for {quiet} while others did, {_last(last)}"
            )
            news.append(Happened("stall", text, at, last + 1, rank, self.node(rank), bad=True))
        for rank in sorted(self.silent.keys() - silent.keys()):
            ended = rank not in tails or tails[rank].ended or tails[rank].gone
            if not ended and not self.ended:
                text = f"rank {rank} ({self.node(rank)}) writes steps again"
                news.append(Happened("stall", text, at, rank=rank, node=self.node(rank)))
        self.silent = silent
        return news

    def _silent(self) -> dict[int, float]:
        """Ranks that write nothing while others do, as if they hung or were killed; seconds of it."""
        if self.ended:
            return {}
        most = self._patience(STALL_LEAST, STALL_STEPS)
        return {rank: quiet for rank, quiet in self.tails.quiet().items() if quiet >= most}

    def _command_ended(self, now: float) -> int | None:
        """Asked only where no step came for a while."""
        return self.tails.command_ended() if now - self._grew >= PATIENCE else None

    def age(self, now: float | None = None) -> float:
        """Seconds since a look found a new line."""
        return (time.monotonic() if now is None else now) - self._grew

    def quiet(self, now: float) -> float | None:
        """Seconds without a line in any log, where that is long for this job."""
        if not np.isfinite(self.steps.job[self.steps.rows(RECENT)]).any():
            return None
        quiet = now - self._grew
        return quiet if quiet >= self._patience(STALL_LEAST, STALL_STEPS) else None

    def _hangs(self, quiet: float) -> str:
        last = {rank: tail.last for rank, tail in self.tails.by_rank.items() if not tail.ended}
        furthest = max(last.values(), default=0)
        behind = sorted(rank for rank, step in last.items() if step < furthest)
        usual = _ms(_typical(self.steps.job[self.steps.rows(RECENT)]))
        text = f"no rank finished a step for {long(quiet)} (usual: {usual}); the last was step {furthest:,}"
        if behind and len(behind) < len(last):
            text += f", which {written_ranks(behind)} never finished"
        return text

    def slow(self) -> dict[int | None, float]:
        """What those ranks lost that changed for the worse and are not back; None stands for the job."""
        lost = self.detector.slower()
        columns = {rank: -1 if rank is None else self.steps.place[rank] for rank in self.worse}
        found = {rank: float(lost[column]) for rank, column in columns.items()}
        return {rank: slower for rank, slower in found.items() if slower >= SLOW}

    def node(self, rank: int) -> str:
        tail = self.tails.by_rank.get(rank)
        return tail.node if tail is not None else "?"

    # -- the job now -------------------------------------------------------------------------------------

    def now(self) -> Now:
        """The job over its recent steps."""
        steps, tails = self.steps, self.tails.by_rank
        rows = steps.rows(RECENT)
        timed = rows[~np.isnan(steps.job[rows])]
        spent = float(steps.job[timed].sum()) / 1e9
        tokens, samples = steps.amounts[timed].sum(axis=0).tolist()
        worlds = [tail.who.world for tail in tails.values() if tail.who and tail.who.world]
        told = rows[steps.loss[rows, 1:].any(axis=1)]
        loss = None
        if len(told):
            at = int(told[-1])
            mean = math.nan if steps.loss[at, 2] else float(steps.loss[at, 0] / steps.loss[at, 1])
            loss = (_step_of(at, steps.next), mean)
        before = told[:-1][steps.loss[told[:-1], 2] == 0]
        means = steps.loss[before, 0] / steps.loss[before, 1] if len(before) else None
        last = steps.next - 1 if len(rows) else None
        wide = steps.job[steps.rows(240)]
        slow = self.slow()
        return Now(
            ranks=self._ranks(rows, slow),
            world=max(worlds, default=None),
            nodes=len({tail.node for tail in tails.values()}),
            step=last,
            at=steps.ended(last) if last is not None else None,
            duration=_typical(steps.job[timed]),
            recent=len(timed),
            steps_per_second=len(timed) / spent if spent else math.nan,
            tokens_per_second=tokens / spent if tokens and spent else None,
            samples_per_second=samples / spent if samples and spent else None,
            loss=loss,
            loss_before=None if means is None else float(means.mean()),
            spark=[_typical(part) for part in np.array_split(wide, min(40, max(1, len(wide) // 3)))],
            pauses=self.pauses(),
            job_slower=slow.get(None),
            stalled=self.stalled,
            silent=self.silent,
            ended=self.ended,
            status=self.status,
            attempt=max(0, self.tails.attempt),
            notes=self._notes(),
        )

    def _ranks(self, rows: Whole, slow: Mapping[int | None, float]) -> list[RankNow]:
        steps = self.steps
        if not len(rows) or not len(steps.ranks):
            return []
        durations = steps.duration[rows]
        durations = durations[~np.isnan(durations).all(axis=1)]
        if not len(durations):
            return []
        typical = np.median(durations, axis=0)
        for column in np.flatnonzero(np.isnan(typical)):
            typical[column] = _typical(durations[:, column])
        job = middle(typical)
        tails = self.tails.by_rank
        return [
            RankNow(
                rank=rank,
                node=self.node(rank),
                step=tails[rank].last if rank in tails else -1,
                duration=length,
                longer=length / job - 1,
                slow=slow.get(rank),
            )
            for rank, length in sorted(zip(steps.ranks, typical.tolist(), strict=True))
        ]

    def pauses(self) -> list[tuple[Pause, str | None]]:
        """The pauses that come back in the last steps, with what takes them; looked for every 50 steps."""
        steps = self.steps
        if self._pauses[0] >= 0 and steps.next - self._pauses[0] < RECENT:
            return self._pauses[1]
        rows = steps.rows(FULL)
        rows = rows[~np.isnan(steps.job[rows])]
        found: list[tuple[Pause, str | None]] = []
        if len(rows):
            numbers = np.array([_step_of(int(row), steps.next) for row in rows], dtype=np.int64)
            lengths = steps.job[rows].astype(np.int64)
            most = steps.parts[:, rows].max(axis=2).astype(np.int64)
            taken: Mapping[str, pl.Series] = {name: pl.Series(most[at]) for at, name in enumerate(PARTS)}
            found = [(p, cause_of(taken, p)) for p in pauses(numbers, lengths)]
            found = [(pause, cause) for pause, cause in found if cause is not None or pause.at.sum() >= 8]
        self._pauses = (steps.next, found)
        return found

    def _notes(self) -> list[str]:
        tails = self.tails.by_rank
        torn = sum(tail.torn for tail in tails.values())
        left = [tail for tail in tails.values() if tail.first_read]
        worlds = [tail.who.world for tail in tails.values() if tail.who and tail.who.world]
        notes = list(self.notes)
        if not tails:
            notes.append("no step log lies in it: the folder that `lostflops record` made has them")
        absent = max(worlds, default=0) - len(tails)
        if absent > 0:
            notes.append(f"{absent} of {max(worlds)} ranks have not finished a step yet")
        if left and self.steps.first is not None:
            notes.append(f"steps before {self.steps.first:,} are not looked at: the logs are long")
        if torn:
            notes.append(f"{torn} lines of the logs are cut off")
        if self.steps.late:
            notes.append(f"{self.steps.late:,} lines came too late and are left out")
        return notes


def _step_of(row: int, following: int) -> int:
    """The step that lies in a row, of those before the following one."""
    return following - 1 - (following - 1 - row) % ROWS


def _typical(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else math.nan


def _last(step: int) -> str:
    return f"its last was {step:,}" if step >= 0 else "and none before"


def long(seconds: float) -> str:
    """90 s, 5 min, 3 h, 12 days."""
    for most, one, name in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < most:
            return f"{seconds / one:.0f} {name}"
    return f"{seconds / 86_400:.0f} days"


def _ms(ns: float) -> str:
    from lostflops.finding import milliseconds

    return milliseconds(float(ns))
