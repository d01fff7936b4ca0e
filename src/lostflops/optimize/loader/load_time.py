"""What making a batch takes, and what follows from it for the number of workers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from lostflops.optimize.loader.probe import Seen

WORTH = 0.03  # share of a step below which loading is not worth a worker


@dataclass(frozen=True)
class LoadTime:
    """What making one batch takes in one worker, with nothing beside it. Means over `batches`."""

    batches: int
    batch_seconds: float
    batch_spread: float  # standard deviation / mean
    sample_seconds: float
    slowest_sample_seconds: float
    collate_seconds: float
    receive_seconds: float  # for the training process to take over a batch that is ready
    cpu_share: float  # of the batch's time; above 1 where several threads work, small where it waits
    batch_bytes: int
    worker_bytes: int  # the memory of one worker that it shares with nobody


def predicted_seconds(
    workers: int, step_seconds: float, batch_seconds: float, receive_seconds: float = 0.0
) -> float:
    """Seconds per step: t_step + t_load without workers, else max(t_step + t_receive, t_load / W)."""
    if not workers:
        return step_seconds + batch_seconds
    return max(step_seconds + receive_seconds, batch_seconds / workers)


def workers_wanted(
    step_seconds: float, batch_seconds: float, receive_seconds: float = 0.0, most: int = 1024
) -> int:
    """ceil(t_load / (t_step + t_receive)), at most `most`; 0 where loading is too short for a worker."""
    beside = step_seconds + receive_seconds
    if batch_seconds < WORTH * beside:
        return 0
    # A last worker for a hundredth of a batch is none.
    return most if batch_seconds >= most * beside else math.ceil(batch_seconds / beside - 0.01)


def load_time(seen: Sequence[Seen], receive_seconds: float) -> LoadTime:
    batches = [one.seconds for one in seen]
    samples = [seconds for one in seen for seconds in one.sample_seconds]
    mean = statistics.fmean(batches)
    return LoadTime(
        batches=len(seen),
        batch_seconds=mean,
        batch_spread=statistics.pstdev(batches) / mean if mean else 0.0,
        sample_seconds=statistics.fmean(samples),
        slowest_sample_seconds=max(samples),
        collate_seconds=statistics.fmean(one.collate_seconds for one in seen),
        receive_seconds=receive_seconds,
        cpu_share=sum(one.cpu_seconds for one in seen) / sum(batches) if mean else 0.0,
        batch_bytes=max(one.batch_bytes for one in seen),
        worker_bytes=max(one.private_bytes for one in seen),
    )


def ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds >= 0.0005 else f"{1e6 * seconds:.0f} µs"
