"""Why a pipelined step is longer than its stages' work.

The schedule's part is that of filling and draining a pipeline of unequal stages; where all are equal it is
the (p - 1) / (v m) of "Efficient Large-Scale Language Model Training on GPU Clusters" (SC 2021).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Split:
    """The parts of a step, in the unit that they were given in; they add up to it.

    `useful` is the mean of what the stages compute, `imbalance` how much longer the slowest does, `schedule`
    the waiting of fill and drain, and `rest` everything else: exposed transfers, the optimizer.
    """

    step: float
    useful: float
    imbalance: float
    schedule: float

    @property
    def rest(self) -> float:
        return self.step - self.useful - self.imbalance - self.schedule


def split(step: float, computes: npt.ArrayLike, microbatches: int, chunks: int = 1) -> Split:
    """The parts of a step of which each stage computed so long."""
    stages = np.asarray(computes, np.float64)
    slowest, useful = float(stages.max()), float(stages.mean())
    schedule = (float(stages.sum()) - slowest) / (microbatches * chunks)
    return Split(step, useful, slowest - useful, schedule)
