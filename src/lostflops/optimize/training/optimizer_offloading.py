"""The optimizer's states wait in host memory, and come to the device, a few at a time, for its step.

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    with optimize.optimizer_offload(optimizer) as offloaded:
        train(model, optimizer)  # clipping, accumulation, GradScaler, schedulers, checkpoints: as without
        print(offloaded.report())

The step itself runs on the device, by the optimizer's own kernels, on some of the parameters at a time. So
its results are those without, bit by bit, and gradients may be changed until it begins. It does not matter
how gradients come about: under DDP, FSDP1 and FSDP2 each rank moves the states that it has, DTensors too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import MethodType
from typing import Any, cast

import torch

from lostflops.optimize.activations.offload.report import OneWay
from lostflops.optimize.amounts import bytes_of, written
from lostflops.optimize.device.devices import CudaDevice, Device, device_named
from lostflops.optimize.device.disk import Slab, Staging
from lostflops.optimize.memory_layout import parts_of
from lostflops.optimize.refused import Refused
from lostflops.optimize.remedy import AppliedRemedy, Report
from lostflops.optimize.training.offloaded_states import Chunk, OffloadedStates

BUFFERS = 2  # for what comes from the disk, and as many for what goes there

# Whose step treats each parameter by itself, so that some may step before others. In torch.optim.
EACH_BY_ITSELF = (
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Muon", "NAdam", "RAdam",
    "RMSprop", "Rprop", "SGD", "SparseAdam",
)  # fmt: skip


def optimizer_offload(
    optimizer: torch.optim.Optimizer,
    *,
    chunk: int | str = "64 MiB",
    slots: int = 3,
    least: int | str = "16 KiB",
    host: int | str | None = None,
    disk: str | os.PathLike[str] | None = None,
    device: Device | torch.device | str | None = None,
    each_by_itself: bool = False,
) -> OptimizerOffload:
    """Keeps the optimizer's states in host memory until `undo`, or the end of a `with`. Exact to the bit.

    During a step the device holds `slots` pieces of about `chunk` (more for a single larger parameter): one
    computes, one comes, one goes. States of fewer than `least` bytes stay. Between steps it holds none, and
    `optimizer.state` and `state_dict()` are host memory. Loading a state dict does not use the device.

    `host`: the most that states take of host memory; what is beyond it goes to a file without a name in the
    folder `disk`, through four buffers of a chunk, and without `disk` it stays on the device.

    Each step moves all states both ways, so it takes at least their bytes over the link's rate: worth it
    where steps are long, as with accumulation. The optimizer's class must treat each parameter by itself:
    torch's do, but for LBFGS; of another class you say so (`each_by_itself`). Not verified on a GPU yet.

    Raises `Refused` for parameters in host memory or on several devices, and an optimizer that is wrapped.
    """
    if not isinstance(cast("Any", optimizer), torch.optim.Optimizer):
        raise Refused(
            f"a {type(optimizer).__name__} is no optimizer",
            "make it first: optimize.optimizer_offload(torch.optim.AdamW(model.parameters(), lr=1e-5))",
        )
    if slots < 1:
        raise Refused(f"slots={slots} is nowhere to step", "3: one computes, one comes, one goes")
    most = None if host is None else bytes_of(host)
    return OptimizerOffload(
        optimizer, bytes_of(chunk), slots, bytes_of(least), most, disk, device, each_by_itself
    )


@dataclass(frozen=True)
class OptimizerOffloadReport(Report):
    """Since it began. Times are of the device's clock; `into` is host to device."""

    document = "optimizer offload report"

    optimizer: str
    steps: int
    parameters: int
    states: int  # that lie in host memory
    host_bytes: int
    slots: int
    slot_bytes: int
    chunks: int
    kept_bytes: dict[str, int]  # on the device, by reason
    into: OneWay
    out: OneWay
    disk_bytes: int = 0
    buffer_bytes: int = 0  # host memory between the disk and the device
    read_bytes: int = 0
    written_bytes: int = 0

    def __str__(self) -> str:
        kept = ", ".join(f"{written(nbytes)} {reason}" for reason, nbytes in self.kept_bytes.items())
        whole = f"{written(self.host_bytes)} in host memory"
        room = f"{self.slots} slots of {written(self.slot_bytes)}, for {self.chunks} chunks in turn"
        lines = [
            f"{self.optimizer}: {self.states} states of {self.parameters} parameters, {whole}",
            f"  on the device   {written(self.slots * self.slot_bytes)} while it steps: {room}",
            f"  stays there     {kept or 'nothing'}",
        ]
        for name, way in (("in", self.into), ("out", self.out)):
            line = f"  {name:<15} {written(way.bytes)} in {self.steps} steps"
            if way.hidden is not None and way.bytes_per_second is not None:
                line += f", {way.bytes_per_second / 1e9:.3g} GB/s, {way.hidden:.0%} hidden"
            lines.append(line)
        if self.disk_bytes:
            moved = f"{written(self.read_bytes)} read, {written(self.written_bytes)} written"
            buffers = f"{written(self.buffer_bytes)} of buffers"
            lines.append(f"  on the disk     {written(self.disk_bytes)}, {moved}, {buffers}")
        return "\n".join(lines)


class OptimizerOffload(AppliedRemedy):
    """An optimizer whose states are in host memory, until `undo()`."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        chunk_bytes: int,
        slots: int,
        least: int,
        host: int | None,
        disk: str | os.PathLike[str] | None,
        device: Device | torch.device | str | None,
        each_by_itself: bool,
    ) -> None:
        self.optimizer: Any = optimizer
        _check(optimizer, each_by_itself)
        self._had = optimizer.__dict__.get("step")
        self._plain: Callable[..., Any] = _without_hooks(type(optimizer).step)
        self._device = _device(self._parameters(), device)
        staging = None if disk is None else Staging(self._device, Slab(disk), BUFFERS)
        self._states = OffloadedStates(optimizer, self._device, chunk_bytes, least, slots, host, staging)
        self._steps = 0
        self._known: tuple[int, ...] = ()
        self._loading: dict[int, dict[Any, torch.Tensor]] = {}
        self._handles: list[Any] = []
        self._last_report: OptimizerOffloadReport | None = None
        self._know()
        try:
            self._states.adopt()
            if self._states.no_memory:
                raise Refused(self._states.no_memory, "leave the states where they are, or raise its limit")
        except BaseException:
            self._states.release()
            if staging is not None:
                staging.close()
            raise
        self._handles += [
            self.optimizer.register_load_state_dict_pre_hook(self._before_loading),
            # Before the user's, which may change what was loaded.
            self.optimizer.register_load_state_dict_post_hook(self._after_loading, prepend=True),
        ]
        # torch's own wrapper: hooks before and after a step run once, whatever happens in between.
        wrapped = cast("Any", torch.optim.Optimizer).profile_hook_step(self._step_of())
        wrapped._lostflops = self  # a scheduler's wrapper of it says so, too
        if hasattr(self._had, "_wrapped_by_lr_sched"):  # a scheduler looks for its mark
            wrapped._wrapped_by_lr_sched = True
        self._ours = optimizer.__dict__["step"] = MethodType(wrapped, optimizer)

    def report(self) -> OptimizerOffloadReport:
        if self._last_report is not None:
            return self._last_report
        states = self._states
        travelling = [state for chunk in states.chunks for state in chunk.states]
        ways = [OneWay(w.bytes, w.copies, w.copying, w.waited) for w in (states.into, states.out)]
        return OptimizerOffloadReport(
            optimizer=type(self.optimizer).__name__,
            steps=self._steps,
            parameters=len({id(state.parameter) for state in travelling}),
            states=len(travelling),
            host_bytes=sum(chunk.nbytes for chunk in states.chunks if chunk.stretch is None),
            disk_bytes=sum(chunk.nbytes for chunk in states.chunks if chunk.stretch is not None),
            buffer_bytes=states.disk.held_bytes if states.disk else 0,
            read_bytes=states.disk.read_bytes if states.disk else 0,
            written_bytes=states.disk.written_bytes if states.disk else 0,
            slots=min(states.slots, sum(chunk.nbytes > 0 for chunk in states.chunks)),
            slot_bytes=states.slot_bytes,
            chunks=sum(chunk.nbytes > 0 for chunk in states.chunks),
            kept_bytes=states.kept(),
            into=ways[0],
            out=ways[1],
        )

    def _take_back(self) -> None:
        self._last_report = self.report()
        for handle in self._handles:
            handle.remove()
        if self.optimizer.__dict__.get("step") is self._ours:
            del self.optimizer.__dict__["step"]
            if self._had is not None:
                self.optimizer.__dict__["step"] = self._had
        self._states.release()
        if self._states.disk is not None:
            self._states.disk.close()

    # The step.

    def _step_of(self) -> Callable[..., Any]:
        def step(optimizer: Any, closure: Callable[[], Any] | None = None) -> Any:
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            if optimizer is not self.optimizer or self._undone:  # a copy of it; after the end
                self._plain(optimizer)
            else:
                self._step()
            return loss

        return step

    def _step(self) -> None:
        if self._device.torch_device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise Refused(
                "an optimizer whose states are offloaded is captured as a CUDA graph", "run it without one"
            )
        if torch.compiler.is_compiling():
            raise Refused(
                "an optimizer whose states are offloaded is being compiled", "leave its step as it is"
            )
        self._know()
        if getattr(self._had, "_wrapped_by_lr_sched", False):  # a scheduler asks whether there was a step
            self.optimizer._opt_called = True
        groups = self.optimizer.param_groups
        names = [_decided(group) for group in groups]
        left: list[dict[str, Any] | None] = [None] * len(groups)
        stepping = [
            chunk
            for chunk in self._states.chunks
            if any(parameter.grad is not None for parameter in chunk.parameters)
        ]
        if not stepping:  # as it is without gradients
            self._plain(self.optimizer)
            self._steps += 1
            return
        self._states.step(stepping, lambda chunk: self._run(chunk, names, left))
        for group, values in zip(groups, left, strict=True):
            group.update(values or {})
        self._steps += 1

    def _run(self, chunk: Chunk, decided: list[dict[str, Any]], left: list[dict[str, Any] | None]) -> None:
        """The optimizer's step, on the parameters of the chunk."""
        groups, inside = self.optimizer.param_groups, {id(each) for each in chunk.parameters}
        some = [
            {**group, **more, "params": [each for each in group["params"] if id(each) in inside]}
            for group, more in zip(groups, decided, strict=True)
        ]
        before = [dict(group) for group in some]
        with self._only([group for group in some if group["params"]]):
            self._plain(self.optimizer)
        for number, (group, was) in enumerate(zip(some, before, strict=True)):
            if not group["params"]:
                continue
            written_now = {
                key: value for key, value in group.items() if key not in was or value is not was[key]
            }
            if left[number] is not None and not _same(left[number], written_now):
                raise Refused(
                    f"{type(self.optimizer).__name__} keeps a value for a whole group of parameters, which "
                    "came out differently for parts of it",
                    "this optimizer does not treat each parameter by itself: leave its states where they are",
                )
            left[number] = written_now

    @contextmanager
    def _only(self, groups: list[dict[str, Any]]) -> Generator[None]:
        whole = self.optimizer.param_groups
        self.optimizer.param_groups = groups
        try:
            yield
        finally:
            self.optimizer.param_groups = whole

    # What is trained, and state dicts.

    def _parameters(self) -> list[torch.Tensor]:
        return [each for group in self.optimizer.param_groups for each in group["params"]]

    def _know(self) -> None:
        """Groups may be added."""
        parameters = self._parameters()
        now = tuple(map(id, parameters))
        if now != self._known:
            _check_groups(self.optimizer)
            self._states.know(parameters)
            self._known = now

    def _before_loading(self, optimizer: Any, given: dict[str, Any]) -> dict[str, Any]:
        """What is large is taken out of torch's sight: it would copy all of it to the device."""
        numbers = [number for group in given["param_groups"] for number in group["params"]]
        parameters = self._parameters()
        if len(numbers) != len(parameters):
            return given  # torch says what is wrong with it
        self._loading = {}
        state = dict(given["state"])
        for number, parameter in zip(numbers, parameters, strict=True):
            found: Any = state.get(number)
            if not isinstance(found, dict):
                continue
            values, held = cast("dict[Any, Any]", found), dict[Any, torch.Tensor]()
            for key, value in values.items():
                # Scalars stay: some optimizers read theirs while they load.
                if isinstance(value, torch.Tensor) and value.layout == torch.strided and value.dim():
                    nbytes = sum(part.nbytes for _, part in parts_of(value))
                    if nbytes >= self._states.least:
                        held[key] = value
            self._loading[id(parameter)] = held
            state[number] = {key: _Elsewhere() if key in held else value for key, value in values.items()}
        return {**given, "state": state}

    def _after_loading(self, optimizer: Any) -> None:
        loading, self._loading = self._loading, {}
        parameters = {id(parameter): parameter for parameter in self._parameters()}
        for identity, held in loading.items():
            parameter = parameters[identity]
            state = self.optimizer.state.get(parameter, {})
            for key in [key for key in held if not isinstance(state.get(key), _Elsewhere)]:
                del held[key]  # another hook put something in its place
            for key, value in held.items():
                held[key] = value.to(parameter.dtype) if parameter.is_floating_point() else value
        self._states.reload(loading)


class _Elsewhere:
    """In the place of a state that is being loaded."""


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except RuntimeError:  # tensors of several elements
        return False


def _decided(group: dict[str, Any]) -> dict[str, Any]:
    """Whether kernels take many parameters at once is torch's choice, by all of a group that have gradients:
    a part of it could be treated otherwise, and round otherwise."""
    if group.get("foreach", True) is not None or group.get("fused") is not None:
        return {}
    choose = cast("Any", import_module("torch.optim.optimizer"))._default_to_fused_or_foreach
    given = [parameter for parameter in group["params"] if parameter.grad is not None]
    _, foreach = choose(given, group.get("differentiable", False), use_fused=False)
    return {} if foreach else {"foreach": False}


def _without_hooks(step: Any) -> Callable[..., Any]:
    """torch wraps a class's step when the first of it is made, so that hooks run before and after."""
    return step.__wrapped__ if getattr(step, "hooked", False) else step


def _check(optimizer: Any, each_by_itself: bool) -> None:
    kind = cast("Any", type(optimizer))
    classes = [getattr(torch.optim, name) for name in EACH_BY_ITSELF if hasattr(torch.optim, name)]
    known = {(_without_hooks(each.step), getattr(each, "_init_group", None)) for each in classes}
    if hasattr(optimizer, "optimizer"):
        raise Refused(f"{kind.__name__} is put around an optimizer", "give that one: optimizer.optimizer")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise Refused(
            "LBFGS keeps one state for all parameters, and they step together",
            "leave its states where they are",
        )
    # The step of a class that changes what its step begins with is another one.
    its_own = _without_hooks(kind.step), getattr(kind, "_init_group", None)
    if its_own not in known and not each_by_itself:
        raise Refused(
            f"it is not known whether {kind.__name__} treats each parameter by itself",
            "if no number is computed from several parameters in its step, say each_by_itself=True",
        )
    had = optimizer.__dict__.get("step")
    below = getattr(had, "_lostflops", None)
    if below is not None and not below._undone:
        raise Refused("the states of this optimizer are offloaded already", "undo that first")
    if had is not None and not hasattr(had, "_wrapped_by_lr_sched"):
        raise Refused(
            "the optimizer's step was replaced on the object, by something that is not known",
            "offload its states first, then let the other replace its step",
        )
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise Refused(
            "the optimizer is differentiable: its states belong to a graph", "leave its states where they are"
        )
    if kind.__name__ == "SGD" and not any(group.get("momentum") for group in optimizer.param_groups):
        raise Refused("SGD without momentum has no states", "there is nothing to offload")


def _check_groups(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        dtypes = {parameter.dtype for parameter in group["params"]}
        eps = group.get("eps")
        if len(dtypes) > 1 and isinstance(eps, tuple | list) and cast("Any", eps)[0] is None:
            found = ", ".join(sorted(str(each).removeprefix("torch.") for each in dtypes))
            raise Refused(
                f"{type(optimizer).__name__} takes eps from the dtype of a group's first parameter, and "
                f"there are {found} in one group",
                "give eps=(1e-30, 1e-3), or a group for each dtype",
            )


def _device(parameters: list[torch.Tensor], given: Device | torch.device | str | None) -> Device:
    places = {part.device for parameter in parameters for _, part in parts_of(parameter)}
    if len(places) > 1:
        raise Refused(
            f"parameters lie on {', '.join(sorted(map(str, places)))}", "one optimizer for each device"
        )
    place = next(iter(places), torch.device("cpu"))
    found = given
    if isinstance(found, torch.device | str):
        found = device_named(found)
    if found is None:
        if place.type != "cuda":
            raise Refused(
                f"parameters lie on {place}: their states take no GPU memory",
                "move the model to a GPU first, or pass device=ThreadedDevice() to try it out on a CPU",
            )
        found = CudaDevice(place)
    if found.torch_device != place:
        raise Refused(
            f"parameters lie on {place}, not on {found.torch_device}", "name the device of the parameters"
        )
    if found.coherent:
        raise Refused(
            f"{found.torch_device} shares the host's memory: moving states frees none",
            "leave the states where they are",
        )
    return found
