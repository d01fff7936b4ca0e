"""Steps that are planned and then run: what was predicted beside what was measured.

A step is profiled, planned under a budget, and run with what the plan says, on a device whose copies take a
launch and their bytes at a rate. `virtual_device` keeps virtual time, in which the host waits for every
operator as on a CPU, so its times are the same at every run; `CpuTimeDevice` takes the processor's.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Literal
from unittest.mock import patch

import msgspec
import torch

import tiny_models
from lostflops import optimize
from lostflops.optimize.activations import saved
from lostflops.optimize.device import peak
from lostflops.plan.hardware import LinkCard
from lostflops.plan.offload import class_decisions, saved_profile
from simulated_devices import ClockDevice

WARM_UP = 2  # steps of an engine: one is watched, one allocates


@dataclass(frozen=True)
class Configuration:
    name: str
    model: Callable[[], Any]
    batch: Callable[[], Any]
    budget: float  # of the peak without a plan
    out: float  # bytes per second
    into: float
    launch_ns: int = 1000
    checkpointed: bool = False  # every layer, before the profile
    does: Literal["offload", "recompute", "both"] = "offload"

    @property
    def may(self) -> tuple[Literal["offload", "recompute"], ...]:
        return ("offload", "recompute") if self.does == "both" else (self.does,)


@dataclass
class Outcome:
    """`plan` is the record, with what was predicted; `measured` has each way that ran."""

    name: str
    plan: dict[str, Any]
    measured: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @property
    def refused(self) -> str | None:
        return self.plan["refused"]

    def step_ns(self, which: str) -> int:
        return int(median(self._of(which)["steps_ns"]))

    def peak_bytes(self, which: str) -> int:
        return self._of(which)["peak_bytes"]

    def moved_bytes(self) -> int:
        return self._of("planned")["moved_bytes"]

    def _of(self, which: str) -> dict[str, Any]:
        return next(ran for ran in self.measured if ran["as"] == which)

    def errors(self, which: str) -> tuple[float, float]:
        """Of the step and of the peak: predicted over measured, less one."""
        predicted = self.plan["predicted"] if which == "planned" else self.plan["predicted"]["without"]
        return (
            predicted["step_ns"] / self.step_ns(which) - 1,
            predicted["peak_bytes"] / self.peak_bytes(which) - 1,
        )


class InStep(ClockDevice):
    """The host waits for every operator and for what compute waits for, as on a CPU."""

    def operator(self, *given: Any) -> None:
        super().operator(*given)
        self.now = max(self.now, self._current.time)

    def wait(self, stream: Any, event: Any) -> None:
        super().wait(stream, event)
        if stream is self._current:
            self.now = max(self.now, stream.time)


@dataclass
class _Stream:
    time: int = 0


class CpuTimeDevice:
    """Computes in the time that the processor takes for it, and copies in the time that the link would.

    Its clock is the CPU time of this process and what compute waited for copies: the steps are real ones, and
    what else the machine does is not in them.
    """

    torch_device = torch.device("cpu")
    coherent = False

    def __init__(self, configuration: Configuration) -> None:
        self._given = configuration
        self._host: set[int] = set()
        self._waited = self._copied = 0

    @property
    def now(self) -> int:
        return time.process_time_ns() - self._copied + self._waited

    def current_stream(self) -> Any:
        return None

    def new_stream(self) -> _Stream:
        return _Stream()

    def record(self, stream: _Stream | None) -> int:
        if stream is None:
            return self.now
        stream.time = max(stream.time, self.now)
        return stream.time

    def wait(self, stream: _Stream | None, event: int) -> None:
        if stream is None:
            self._waited += max(0, event - self.now)
        else:
            stream.time = max(stream.time, event)

    def is_done(self, event: int) -> bool:
        return event <= self.now

    def synchronize(self, event: int) -> None:
        self.wait(None, event)

    def elapsed(self, start: int, end: int) -> int:
        return end - start

    def allocate(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def host_memory(self, nbytes: int) -> torch.Tensor:
        memory = torch.zeros(nbytes, dtype=torch.uint8)
        peak.is_host_memory(memory)
        self._host.add(peak.address_of(memory.untyped_storage()))
        return memory

    def before_reuse(self, memory: torch.Tensor, stream: _Stream | None) -> None: ...

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: _Stream | None) -> None:
        out = peak.address_of(target.untyped_storage()) in self._host
        begin, began = self.now, time.process_time_ns()
        target.copy_(source)
        self._copied += time.process_time_ns() - began
        rate = self._given.out if out else self._given.into
        took = self._given.launch_ns + round(1e9 * target.numel() / rate)
        if stream is None:
            self._waited += took
        else:
            stream.time = max(stream.time, begin) + took


class _DeviceClock:
    def __init__(self, device: Any) -> None:
        self._device = device

    def now(self) -> Any:
        return self._device.record(self._device.current_stream())

    def ns(self, start: Any, end: Any) -> int:
        return self._device.elapsed(start, end)


def virtual_device(configuration: Configuration) -> InStep:
    """Operators take a microsecond and 0.2 ns a byte."""
    return InStep(
        lambda _, nbytes: 1000 + nbytes // 5,
        configuration.out / 1e9,
        configuration.into / 1e9,
        configuration.launch_ns,
    )


def profiled(model: Any, batch: Any, device: Any) -> saved_profile.Profile:
    """Of a step that takes the device's time."""
    with ExitStack() as stack:
        if isinstance(device, ClockDevice):
            stack.enter_context(device)
        if isinstance(device, ClockDevice | CpuTimeDevice):
            stack.enter_context(patch.object(saved, "_Clock", lambda: _DeviceClock(device)))
        record = optimize.saved_tensors(model, lambda: tiny_models.loss_of(model, batch))
    return msgspec.convert(record, saved_profile.Profile)


def outcome(configuration: Configuration, make: Callable[[Configuration], Any], rounds: int = 1) -> Outcome:
    """Planned from a first profile; then profiled, run as it is and run as planned, a step each in turns.

    The prediction is the plan's for the profile of median time: so it has met the same machine as the steps.
    """
    c = configuration
    model, batch = c.model(), c.batch()
    link = LinkCard("given", c.out, c.into, c.launch_ns, c.into, "given")
    with ExitStack() as stack:
        if c.checkpointed:
            # What a first step compares is not in the profile of the steps after it.
            stack.enter_context(optimize.checkpoint(model, keep=(), verify=None))
        profiles = [profiled(model, batch, make(c))]
        budget = int(c.budget * profiles[0].peak_bytes)
        planned = class_decisions.plan(profiles[0], budget, link, may=c.may)
        result = Outcome(c.name, class_decisions.record(planned))
        ways = [_Way("without", model, batch, make(c))]
        if not result.refused:
            ways.append(_Way("planned", model, batch, make(c), result.plan))
        for way in ways:
            way.run(WARM_UP if way.plan else 1)
        times: dict[str, list[int]] = {way.name: [] for way in ways}
        for number in range(rounds):
            if number:
                profiles.append(profiled(model, batch, make(c)))
            for way in ways:
                times[way.name] += way.run(1)
        for way in ways:
            result.measured.append({"as": way.name, "steps_ns": times[way.name], **way.memory()})
    typical = sorted(profiles, key=lambda p: p.forward_ns + p.backward_ns)[(len(profiles) - 1) // 2]
    again = class_decisions.Planning(typical, link, may=c.may)
    chosen = again.played(planned.chosen.mix, planned.chosen.limits)
    result.plan = class_decisions.record(replace(planned, chosen=chosen, without=again.without))
    return result


class _Way:
    """To run steps: as they are, or as a plan says."""

    def __init__(
        self, name: str, model: Any, batch: Any, device: Any, plan: dict[str, Any] | None = None
    ) -> None:
        self.name, self.model, self.batch, self.device, self.plan = name, model, batch, device, plan
        self.engine: Any = None
        if plan and "offload" in plan["classes"].values():
            least = plan["threshold_bytes"]
            self.engine = optimize.offload(model, plan=plan, device=device, threshold=least)

    @contextmanager
    def _entered(self) -> Iterator[None]:
        with ExitStack() as stack:
            if isinstance(self.device, ClockDevice):
                stack.enter_context(self.device)
            if self.engine is not None:
                stack.enter_context(self.engine)
            elif self.plan:
                stack.enter_context(optimize.checkpoint(self.model, plan=self.plan))
            yield

    def run(self, steps: int) -> list[int]:
        """The nanoseconds of each."""
        times: list[int] = []
        device = self.device
        with self._entered():
            for _ in range(steps):
                _settle(self.model)
                begin = device.record(device.current_stream())
                _step(self.model, self.batch)
                end = device.record(device.current_stream())
                device.synchronize(end)
                times.append(device.elapsed(begin, end))
        return times

    def memory(self) -> dict[str, int]:
        """Of a step of its own, as watching every operator takes time."""
        own = [*self.model.parameters(), *self.model.buffers()]
        with self._entered():
            _settle(self.model)
            with peak.measured("cpu", own) as meter:
                _step(self.model, self.batch)
        moved = 0 if self.engine is None else self.engine.report().out.bytes
        return {"peak_bytes": meter.peak_bytes, "moved_bytes": moved}


def _settle(model: Any) -> None:
    model.zero_grad(set_to_none=True)
    gc.collect()


def _step(model: Any, batch: Any) -> None:
    loss = tiny_models.loss_of(model, batch)
    loss.backward()
