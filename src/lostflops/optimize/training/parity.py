"""Does the loss still fall as it did? The same steps in bf16 and in another precision, side by side.

parity = optimize.loss_parity(model, make_step, {"fp8": lambda model: optimize.to_fp8(model)}, steps=50)
print(parity)          # table of losses, and "within 1 % of bf16 over 50 steps", or that it is not
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from lostflops.optimize.random_places import RandomPlaces, seed_all
from lostflops.optimize.refused import Refused
from lostflops.optimize.training.precision import to_bf16

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BASELINE = "bf16"


def loss_parity(
    model: torch.nn.Module | Callable[[], torch.nn.Module],
    make_step: Callable[[Any], Callable[[int], Any]],
    variants: Mapping[str, Callable[[Any], Any]],
    steps: int = 50,
    tolerance: float = 0.01,
    baseline: Callable[[Any], Any] = to_bf16,
    seed: int = 0,
) -> Parity:
    """Trains a copy of the model per variant, interleaved, with the same weights, data and random numbers.

    `model` is copied, or made anew with the same seed where it is a function. Each of `variants` changes its
    copy in place (`optimize.to_fp8`) or returns another model; it starts from the fp32 or 16-bit weights as
    given, so one that belongs on top of bf16 calls `to_bf16` itself. `make_step(model)` returns
    `step(number)`, which does one optimizer step on the batch of that number and returns its loss.

    A variant passes when its loss is finite and within `tolerance`, relative to the baseline's, at every
    step. Neither the model nor the caller's random numbers are changed; all copies and their optimizers are
    in memory at once. Refuses a baseline that does not train: nothing could be said.
    """
    if steps < 2 or not variants or BASELINE in variants:
        raise Refused(
            f"{steps} steps and variants {sorted(variants)} compare nothing",
            f"two steps or more, and variants by names other than '{BASELINE}'",
        )
    runs = {BASELINE: baseline, **variants}
    losses: dict[str, list[float]] = {name: [] for name in runs}
    places = RandomPlaces(on_gpus=torch.cuda.is_available())
    try:
        started = {name: _started(model, change, make_step, seed) for name, change in runs.items()}
        for number in range(steps):
            for name, step in started.items():
                seed_all(seed + 1 + number)  # dropout and data are those of the step, whoever takes it
                losses[name].append(_number(step(number)))
    finally:
        places.restore()
    base = losses.pop(BASELINE)
    if not all(map(math.isfinite, base)):
        raise Refused(f"the loss of {BASELINE} is {_first_bad(base)}", "make the baseline train first")
    if len(set(base)) == 1:
        raise Refused(
            f"the loss of {BASELINE} is {base[0]:.6g} at every step: nothing trains",
            "make_step must step an optimizer that it made from the model it is given",
        )
    return Parity(steps, tolerance, tuple(base), {name: tuple(found) for name, found in losses.items()})


def _started(
    model: Any, change: Callable[[Any], Any], make_step: Callable[[Any], Callable[[int], Any]], seed: int
) -> Callable[[int], Any]:
    seed_all(seed)
    mine = copy.deepcopy(model) if isinstance(model, torch.nn.Module) else model()
    changed = change(mine)
    if isinstance(changed, torch.nn.Module):
        mine = changed
    seed_all(seed)
    return make_step(mine)


def _number(loss: Any) -> float:
    return float(loss.detach() if isinstance(loss, torch.Tensor) else loss)


@dataclass(frozen=True)
class Parity:
    """Losses by step of the baseline and of each variant, and whether they stayed together."""

    steps: int
    tolerance: float
    baseline: tuple[float, ...]
    variants: dict[str, tuple[float, ...]]

    def gaps(self, name: str) -> list[float]:
        """|loss - baseline| / |baseline| at each step; infinite where the loss is not finite."""
        pairs = zip(self.variants[name], self.baseline, strict=True)
        return [_gap(found, base) for found, base in pairs]

    def passes(self, name: str) -> bool:
        return max(self.gaps(name)) <= self.tolerance

    @property
    def ok(self) -> bool:
        return all(map(self.passes, self.variants))

    def verdict(self, name: str) -> str:
        """One sentence."""
        gaps, percent = self.gaps(name), f"{100 * self.tolerance:g} % of {BASELINE}"
        worst = max(range(self.steps), key=gaps.__getitem__)
        if not math.isfinite(gaps[worst]):
            return f"NOT within {percent}: the loss is {_first_bad(self.variants[name])}"
        if gaps[worst] == 0:
            return f"equal to {BASELINE} to the bit over {self.steps} steps"
        if self.passes(name):
            return f"within {percent} over {self.steps} steps"
        side = "above" if self.variants[name][worst] > self.baseline[worst] else "below"
        return f"NOT within {percent}: {100 * gaps[worst]:.3g} % {side} at step {worst}"

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "steps": self.steps,
            "tolerance_fraction": self.tolerance,
            "baseline": {"name": BASELINE, "losses": list(self.baseline)},
            "variants": {
                name: {
                    "losses": list(losses),
                    "worst_gap_fraction": max(self.gaps(name)),
                    "final_gap_fraction": self.gaps(name)[-1],
                    "passes": self.passes(name),
                    "verdict": self.verdict(name),
                }
                for name, losses in self.variants.items()
            },
        }

    def __str__(self) -> str:
        width = max(10, *(len(name) for name in self.variants))
        shown = sorted({round(part * (self.steps - 1) / 8) for part in range(9)})
        names = [BASELINE, *self.variants]
        lines = ["step " + " ".join(f"{name:>{width}}" for name in names)]
        for number in shown:
            row = [self.baseline[number], *(losses[number] for losses in self.variants.values())]
            lines.append(f"{number:>4} " + " ".join(f"{loss:>{width}.5f}" for loss in row))
        for name in self.variants:
            gaps = self.gaps(name)
            lines.append(
                f"{name}: {self.verdict(name)} (worst {100 * max(gaps):.3g} %, last {100 * gaps[-1]:.3g} %)"
            )
        return "\n".join(lines)


def _gap(found: float, base: float) -> float:
    if not math.isfinite(found):
        return math.inf
    if found == base:
        return 0.0
    return abs(found - base) / abs(base) if base else math.inf


def _first_bad(losses: Any) -> str:
    number, loss = next((n, loss) for n, loss in enumerate(losses) if not math.isfinite(loss))
    return f"{loss} at step {number}"
