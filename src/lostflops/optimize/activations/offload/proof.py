"""Whether the engine does what it should, and no harm: the same step with and without it, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from lostflops.optimize.activations.saved import as_it_was
from lostflops.optimize.amounts import written
from lostflops.optimize.device import peak
from lostflops.optimize.refused import Refused
from lostflops.optimize.remedy import Report

if TYPE_CHECKING:
    from lostflops.optimize.activations.offload.engine import Engine

STEP_ERROR = 0.1  # of the prediction, relative to the step

Gradients = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Proof(Report):
    """Two plain steps, compared with each other, say what may differ at all. `harm` is why the engine was
    switched off, None when it stays on."""

    document = "offload proof"
    derived = ("slower",)

    gradients: str  # "equal bit for bit", "within the spread of plain steps", or what differs
    plain_ns: int  # median
    with_engine_ns: int
    pairs: int
    predicted_slower: float  # share of the plain step
    plain_peak_bytes: int
    with_engine_peak_bytes: int
    bytes_out: int  # of one step
    cost_ns: int  # of the proof itself
    harm: str | None

    @property
    def slower(self) -> float:
        """Share of the plain step that the engine adds."""
        return self.with_engine_ns / self.plain_ns - 1

    def __str__(self) -> str:
        without, with_it = self.plain_ns / 1e6, self.with_engine_ns / 1e6
        peaks = f"{written(self.plain_peak_bytes)} without, {written(self.with_engine_peak_bytes)} with"
        rows = [
            ("gradients", self.gradients),
            ("step", f"{without:.3g} ms without, {with_it:.3g} ms with (medians of {self.pairs})"),
            ("slower", f"{self.slower:+.1%}, predicted {self.predicted_slower:+.1%}"),
            ("peak", peaks),
            ("verdict", f"{self.harm or 'no harm'}; proving took {self.cost_ns / 1e9:.3g} s"),
        ]
        return "\n".join(f"{name:<9}  {text}" for name, text in rows)


def prove(engine: Engine, step: Callable[[], Any], pairs: int) -> Proof:
    """See `Engine.prove`. Gradients, buffers and random numbers are afterwards as they were before."""
    if engine.entered:
        raise Refused("the engine is entered", "prove it before entering, or after leaving")
    begun = time.perf_counter_ns()
    device = engine.device.torch_device
    with as_it_was(engine.model, device) as rewind:

        def run(context: Any) -> tuple[int, Gradients]:
            rewind()
            _wait(engine)
            with context:
                start = time.perf_counter_ns()
                step()
                _wait(engine)
                lasted = time.perf_counter_ns() - start
            return lasted, _gradients(engine.model)

        for _ in range(2):  # the engine learns, and gets its memory
            run(engine)
        before = engine.report().out.bytes
        plain: list[tuple[int, Gradients]] = []
        moved: list[tuple[int, Gradients]] = []
        for _ in range(max(2, pairs)):
            plain.append(run(nullcontext()))
            moved.append(run(engine))
        report = engine.report()
        bytes_out = (report.out.bytes - before) // len(moved)
        peaks: list[int] = []
        for context in (nullcontext(), engine):
            meter = peak.measured(device, [*engine.model.parameters(), *engine.model.buffers()])
            with meter:
                run(context)
            peaks.append(meter.peak_bytes)
    verdict, same = _compared([g for _, g in plain], [g for _, g in moved])
    plain_ns = round(statistics.median(lasted for lasted, _ in plain))
    moved_ns = round(statistics.median(lasted for lasted, _ in moved))
    predicted = engine.predicted_slower()
    harm = None
    spread = (max(t for t, _ in plain) - min(t for t, _ in plain)) / plain_ns
    if not same:
        harm = f"switched off: {verdict}"
    elif moved_ns / plain_ns - 1 > predicted + max(STEP_ERROR, spread):
        harm = f"switched off: steps take {moved_ns / plain_ns - 1:.0%} longer, predicted {predicted:.0%}"
    elif (bytes_out or engine.recomputes) and peaks[1] >= peaks[0]:
        harm = f"switched off: the peak did not fall ({written(peaks[0])} to {written(peaks[1])})"
    if harm is not None:
        engine.switch_off(harm)
    return Proof(
        gradients=verdict,
        plain_ns=plain_ns,
        with_engine_ns=moved_ns,
        pairs=len(moved),
        predicted_slower=predicted,
        plain_peak_bytes=peaks[0],
        with_engine_peak_bytes=peaks[1],
        bytes_out=bytes_out,
        cost_ns=time.perf_counter_ns() - begun,
        harm=harm,
    )


def _wait(engine: Engine) -> None:
    device = engine.device
    device.synchronize(device.record(device.current_stream()))


def _gradients(model: torch.nn.Module) -> Gradients:
    """In host memory, so that they take none on the device."""
    return {
        name: parameter.grad.detach().cpu().clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def _compared(plain: list[Gradients], moved: list[Gradients]) -> tuple[str, bool]:
    first = plain[0]
    if not first:
        raise Refused("the step left no gradients", "have it run forward and backward, without the optimizer")
    spread = {name: max(_distance(one[name], first[name]) for one in plain[1:]) for name in first}
    for one in moved:
        if one.keys() != first.keys():
            return "other parameters have gradients", False
        for name, gradient in one.items():
            if torch.equal(gradient, first[name]):
                continue
            if _distance(gradient, first[name]) > spread[name]:
                return f"the gradient of {name} differs", False
    if any(spread.values()):
        return "within the spread of plain steps, which are not equal to each other", True
    return "equal bit for bit", True


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    if torch.equal(one, other):
        return 0.0
    return float((one.double() - other.double()).abs().max())
