"""All ranks of a job at once: each goes on until it needs one that is not there yet.

Times do not depend on the order in which ranks are advanced, so any will do. What comes out is small, the end
of every collective for every rank: with those each rank can be run again by itself, row by row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.running.calls import CallsOfJob, KnownCalls, kept
from lostflops.lab.simulate.running.rank import RunningRank, StepMarks
from lostflops.lab.simulate.running.recorder import Recorder
from lostflops.lab.simulate.strategies.step import program

KeptCalls = list[tuple[int, int, int]]


@dataclass(frozen=True)
class RankSteps:
    """Where the steps of one rank begin and end, ns: on the host, and with what they cost the device."""

    step: tuple[int, ...]
    start: tuple[int, ...]
    end: tuple[int, ...]


@dataclass(frozen=True)
class RanJob:
    """A job that ran: the calls of every rank, in the order of its program, and its steps."""

    calls: Sequence[KeptCalls]
    steps: Sequence[RankSteps]

    def mean_step(self, first: int) -> float:
        """The length of a step from number `first` on, over all ranks."""
        lengths = [
            end - start
            for steps in self.steps
            for step, start, end in zip(steps.step, steps.start, steps.end, strict=True)
            if step >= first
        ]
        return sum(lengths) / len(lengths)


def ran(job: SimulatedJob) -> RanJob:
    """Run all ranks of a job to their end."""
    ready = deque(range(job.ranks))
    calls = CallsOfJob(job.network, job.costs, job.noise, ready.extend)
    ranks = [_rank(job, rank, calls) for rank in range(job.ranks)]
    ended = 0
    while ready:
        rank = ranks[ready.popleft()]
        if rank.advance():
            ended += 1
        elif rank.waits_for is not None:
            if rank.waits_for.is_whole:  # it came to be while the rank gave up
                ready.append(rank.rank)
            else:
                rank.waits_for.waiting.append(rank.rank)
    assert ended == job.ranks, f"{job.ranks - ended} ranks wait for each other"
    return RanJob(
        [kept(calls.of_rank.get(rank.rank, []), rank.rank) for rank in ranks],
        [steps_of(rank) for rank in ranks],
    )


def ran_alone(job: SimulatedJob, rank: int, calls: KeptCalls, recorder: Recorder) -> RankSteps:
    """Run one rank again, with every row, where the ends of its calls are known."""
    running = _rank(job, rank, KnownCalls(calls), recorder)
    ended = running.advance()
    assert ended
    return steps_of(running)


def _rank(
    job: SimulatedJob, rank: int, calls: CallsOfJob | KnownCalls, recorder: Recorder | None = None
) -> RunningRank:
    return RunningRank(
        rank, program(job, rank), job.costs, calls, job.noise, lambda step: job.slowness(rank, step), recorder
    )


def steps_of(rank: RunningRank) -> RankSteps:
    """A step begins when the host begins it, or when the device has done the work of the one before.

    It ends where the next begins; the last with its own work.
    """
    begins: list[int] = []
    done = before = -1
    for marks in rank.steps:
        before = max(marks.begin, done, before)
        begins.append(before)
        done = _done(rank, marks)
    last = rank.steps[-1]
    return RankSteps(
        tuple(marks.step for marks in rank.steps), tuple(begins), (*begins[1:], max(last.end, done))
    )


def _done(rank: RunningRank, marks: StepMarks) -> int:
    """When the device has done all that was launched up to the end of a step."""
    ends = [rank.known(tail) for tail in marks.tails]
    return max((end for end in ends if end is not None), default=-1)
