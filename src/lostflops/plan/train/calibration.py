"""The sustained rate of a recorded run, in place of the assumed one.

The operations of a step, counted from the model and the layout that the run had, over the time its ranks
computed. Everything that compute waits for stays out of it, and is predicted as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from lostflops.errors import BadOption
from lostflops.plan import hardware

from . import activation_memory, layer_time, layout
from .job import Prediction, Training, local_tokens

ENOUGH = 3  # steps


@dataclass(frozen=True)
class MeasuredRun:
    """A run's steps: how many, and the medians over ranks and steps. `spread` is half of the middle half."""

    run: str
    steps: int
    ranks: int
    compute_ns: float
    step_ns: float
    spread: float


def measured(run: str, rows: Sequence[tuple[int, int, int, int]]) -> MeasuredRun:
    """From rows of rank, step, nanoseconds of compute and of the whole step."""
    computed = sorted(compute for _, _, compute, _ in rows if compute > 0)
    steps = len({step for _, step, compute, _ in rows if compute > 0})
    if steps < ENOUGH:
        raise BadOption(
            f"The run has {steps} steps in which a GPU computes; its rate needs {ENOUGH}.",
            "record more steps.",
        )
    middle = median(computed)
    quarter = len(computed) // 4
    spread = (computed[-1 - quarter] - computed[quarter]) / 2 / middle
    ranks = len({rank for rank, _, _, _ in rows})
    return MeasuredRun(run, steps, ranks, middle, median(whole for *_, whole in rows), spread)


def operations(training: Training) -> float:
    """Of one step on the mean rank, FP8 ones by what they take: forward, backward, recomputation, head."""
    t = training
    unit = hardware.one_rate(t.gpu, 1.0, "")
    total = 0.0
    for number in range(t.shape.layers):
        work = layer_time.work(t.shape, number, t.layout, t.sequence, t.microbatch, t.lora, t.executed)
        forward = layer_time.forward(work, unit, t.layout, fp8=t.fp8).compute
        total += forward + layer_time.backward(work, unit, t.layout, fp8=t.fp8, reduces=False).compute
        kept = activation_memory.recomputed_share(t.shape, number) * work.linear
        total += {"none": 0.0, "alternate": kept, "selective": forward - work.attention, "full": forward}[
            t.checkpointing
        ]
    head = 2 * t.shape.vocabulary * t.shape.hidden * local_tokens(t) / t.layout.tensor
    total += head * (3 if t.lora is None else 2)
    return total * t.microbatches / t.layout.pipeline


def calibrated(training: Training, run: MeasuredRun) -> tuple[Training, str]:
    """The job with the run's rate, and a sentence on how far the prediction is then from the run.

    Raises BadOption when the rate is above the GPU's peak: the run was then of another job.
    """
    layout.check(training.shape, training.layout, training.sequence)
    rate = operations(training) / run.compute_ns * 1e9
    peak = training.gpu.peak
    if rate > peak:
        raise BadOption(
            f"In the run's time this job needs {rate / 1e12:,.0f} TFLOP/s; a {training.gpu.name} has at most "
            f"{peak / 1e12:,.0f}.",
            "describe the job that was recorded: its model, sequence, microbatch, layout and GPU.",
        )
    source = f"{hardware.SUSTAINED_RATE} from the run"
    known = replace(training, gpu=hardware.one_rate(training.gpu, rate, source))
    step = Prediction(known).step_ns
    return known, (
        f"Calibrated with {run.steps} steps on {run.ranks} {'rank' if run.ranks == 1 else 'ranks'}: "
        f"compute {run.compute_ns / 1e6:,.1f} ms (±{run.spread:.0%}), "
        f"step {run.step_ns / 1e6:,.1f} ms measured, {step / 1e6:,.1f} predicted "
        f"({step / run.step_ns - 1:+.1%})."
    )
