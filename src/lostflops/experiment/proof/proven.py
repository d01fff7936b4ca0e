"""All that is known of a change: the verdict with its interval, and what else changed with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from .differences import UnlikeSetting
from .paired import Estimate, MorePairs, Verdict, more_pairs, none_larger
from .parity import LossParity, MemoryParity
from .prediction import PredictedChange
from .values import Values

SCHEMA = 1


@dataclass(frozen=True)
class DrawnOrder:
    """Which side of each finished pair started first, and the seed that drew it."""

    seed: int
    first: Sequence[str]


@dataclass(frozen=True)
class Proven:
    """What starts of both sides tell.

    `ratio` is the time of a step after the change over that before it, `low` and `high` the ends of its
    interval, and `resolution` the smallest change, as a share, that four of five such experiments would have
    shown. They are None where nothing is known. `pairs` counts the pairs that the verdict rests on.
    """

    verdict: Verdict
    estimate: Estimate | None
    resolution: float | None
    interval: str  # what `low` and `high` are, in words
    planned: int | None = None  # pairs; None of recordings
    finished: int = 0  # pairs, whole ones
    values: Values | None = None
    by_steps: float | None = None
    see: float = 0.01
    paired: bool = True
    loss: LossParity = field(default_factory=lambda: LossParity("unknown"))
    memory: Sequence[MemoryParity] = ()
    differences: Sequence[UnlikeSetting] = ()
    prediction: PredictedChange | None = None
    drawn: DrawnOrder | None = None
    commands: tuple[str, str] | None = None
    folder: Path | None = None  # where the results lie that were made just now
    stopped: str = ""  # why there are fewer pairs than planned, where that was no choice
    notes: tuple[str, ...] = ()
    interrupted: bool = False  # by somebody, just now
    hindered: bool = False  # stopped by what would have stopped it without the change, too

    @property
    def step_before(self) -> float | None:
        """The mean step before the change, ns; None where something else than a step was timed."""
        return fmean(self.values.before) if self.values and self.values.per == "step" else None

    @property
    def ratio(self) -> float | None:
        return None if self.estimate is None else math.exp(self.estimate.difference)

    @property
    def low(self) -> float | None:
        return self._end(-1)

    @property
    def high(self) -> float | None:
        return self._end(1)

    @property
    def pairs(self) -> int:
        return 0 if self.estimate is None else self.estimate.pairs

    @property
    def more_pairs(self) -> MorePairs | None:
        """How many pairs more would show the difference, where none was shown."""
        if self.estimate is None or not self.paired or self.verdict in ("faster", "slower"):
            return None
        return more_pairs(self.estimate, self.see)

    @property
    def share_of_steps(self) -> float | None:
        """How much of the variance of a pair the steps within its starts explain; None where not known.

        Their error is that of ten blocks of steps. With longer starts this part gets smaller, the rest stays.
        """
        if self.estimate is None or self.values is None or not self.paired or not self.estimate.spread:
            return None
        errors = [error for side in self.values.block_errors for error in side]
        if not errors or not all(map(math.isfinite, [*errors, self.estimate.spread])):
            return None
        return min(1.0, 2 * fmean(error**2 for error in errors) / self.estimate.spread**2)

    @property
    def step_ns(self) -> tuple[int, int] | None:
        """The mean step (or token, or sample) on each side, over its starts."""
        if self.values is None:
            return None
        return round(fmean(self.values.before)), round(fmean(self.values.after))

    def _end(self, sign: int) -> float | None:
        if self.estimate is None or not math.isfinite(self.estimate.half):
            return None
        return math.exp(self.estimate.low if sign < 0 else self.estimate.high)

    def expected(self, wanted: str, at_most: float) -> bool:
        """Whether `faster`, or `not-slower` by more than the share `at_most`, is shown.

        A change after which the loss is no number any more, or is not told any more, has shown nothing.
        """
        if self.loss.parity in ("diverged", "untold"):
            return False
        if wanted == "faster":
            return self.verdict == "faster"
        return self.high is not None and self.high <= 1 + at_most

    def to_json(self) -> dict[str, Any]:
        """All of it as one document; times in ns. `docs/proving.md` describes every key."""
        more = self.more_pairs
        return {
            "schema": SCHEMA,
            "verdict": self.verdict,
            "ratio": self.ratio,
            "low": self.low,
            "high": self.high,
            "pairs": self.pairs,
            "resolution": None if self.resolution is None else math.expm1(self.resolution),
            "interval": self.interval,
            "planned_pairs": self.planned,
            "finished_pairs": self.finished,
            "stopped": self.stopped or None,
            "order": self.drawn and {"seed": self.drawn.seed, "first": list(self.drawn.first)},
            "none_larger": none_larger(self.estimate)
            if self.estimate and self.verdict == "no difference"
            else None,
            "more_pairs": more
            and {
                "to_see": math.expm1(more.difference),
                "pairs": more.pairs,
                "low": more.low,
                "high": more.high,
            },
            "start_noise": self._noise(),
            **self._values(),
            "loss": {
                "parity": self.loss.parity,
                "steps": self.loss.steps,
                "worst": self.loss.worst if math.isfinite(self.loss.worst) else None,
                "noise": self.loss.noise,
                "first_step": self.loss.first,
            },
            "memory": [
                {
                    "peak": found.kind.name,
                    "before_bytes": found.before,
                    "after_bytes": found.after,
                    "least_change_bytes": found.low,
                    "most_change_bytes": found.high,
                    "equal": found.equal,
                }
                for found in self.memory
            ],
            "differences": [{"what": s.what, "before": s.before, "after": s.after} for s in self.differences],
            "predicted": self._predicted(),
            "notes": [*self.notes, *(self.values.notes if self.values else ())],
        }

    def _noise(self) -> float | None:
        """By what share starts of one command differ here."""
        if self.estimate is None or not self.paired or not math.isfinite(self.estimate.spread):
            return None
        return self.estimate.spread / math.sqrt(2)

    def _values(self) -> dict[str, Any]:
        values = self.values
        if values is None:
            return {"values": None}
        others = {
            name: math.exp(sum(map(math.log, b)) / len(b) - sum(map(math.log, a)) / len(a))
            for name, (a, b) in values.others.items()
        }
        return {
            "values": {
                "measure": values.measure,
                "per": values.per,
                "before_ns": [round(ns, 3) for ns in values.before],
                "after_ns": [round(ns, 3) for ns in values.after],
                "steps_per_start": values.steps,
                "warm_up_steps": values.dropped,
                "saving_ns": [ns for ns, _ in values.saving],
                "saving_counts": values.saving_counts,
                "ratio_by": others,
            }
        }

    def _predicted(self) -> dict[str, Any] | None:
        if self.prediction is None:
            return None
        found = self.prediction
        realised = found.realised(self.estimate) if self.estimate and self.high is not None else None
        return {
            "edit": found.edit,
            "gain": found.gain,
            "low": found.low,
            "high": found.high,
            "most": found.most(self.step_before),
            "inside": found.is_inside(self.estimate, self.step_before)
            if self.estimate and self.high is not None
            else None,
            "measured_over_predicted": list(realised) if realised else None,
        }
