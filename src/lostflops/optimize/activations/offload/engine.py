"""Activations wait in host memory between forward and backward, and most of the travelling costs no time.

    with optimize.offload(model, budget="70 GiB") as engine:
        for batch in batches:
            model(**batch).loss.backward()
            optimizer.step(); optimizer.zero_grad()
    print(engine.report())

Autograd hands every tensor that it saves to the engine and asks for it in the backward. The first microbatch
(one forward with its backward) is watched: what is saved, when, and how fast copies are. From the second on
the engine moves what it has chosen, into host memory that it got between the two. Who knows what:

asked           what the user asked for
phases          what the engine is doing, and what takes it from one to the next
saving          whether a tensor may move, and what is handed back
sending         which storage leaves
learning        what is learned of a microbatch, and what the next ones move
resized         when memory is given up in between
checking        whether what came back is what was saved
schedule        when each storage travels, and what waits for what
arena           host memory
moved_storages  what is worth moving
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Literal, cast

import torch

from lostflops.optimize import claims
from lostflops.optimize.activations.checkpointing import checkpoint
from lostflops.optimize.activations.offload.asked import Asked, asked
from lostflops.optimize.activations.offload.checking import Checker
from lostflops.optimize.activations.offload.choice import Plan
from lostflops.optimize.activations.offload.learning import Learner
from lostflops.optimize.activations.offload.memory.arena import Arena
from lostflops.optimize.activations.offload.memory.resized import before_resizes
from lostflops.optimize.activations.offload.phases import Phase
from lostflops.optimize.activations.offload.proof import Proof, prove
from lostflops.optimize.activations.offload.report import OffloadReport, OneWay
from lostflops.optimize.activations.offload.saving import Saver
from lostflops.optimize.activations.offload.schedule import DIRECTION_OF, CopySchedule, Direction
from lostflops.optimize.activations.offload.sending import Sender
from lostflops.optimize.activations.offload.tally import OffloadTally
from lostflops.optimize.activations.tensor_class import ModulePaths
from lostflops.optimize.amounts import written
from lostflops.optimize.device.devices import Device, device_named, device_of
from lostflops.optimize.device.disk import Slab
from lostflops.optimize.device.disk_blocks import DiskBlocks
from lostflops.optimize.model_parts import refuse_lazy
from lostflops.optimize.own_hooks import OwnHook
from lostflops.optimize.refused import Refused
from lostflops.optimize.remedy import AppliedRemedy

_TORCH: Any = torch._C  # pyright: ignore[reportPrivateUsage]


def offload(
    model: torch.nn.Module,
    budget: int | str | None = None,
    *,
    plan: Plan | Literal["everything"] | None = None,
    link: Mapping[str, Any] | None = None,
    threshold: int | str | None = None,
    device: Device | torch.device | str | int | None = None,
    verify: Literal["first step"] | None = "first step",
    host_limit: int | str | None = None,
    disk: str | os.PathLike[str] | None = None,
) -> Engine:
    """A context in which what the model saves for its backward may wait in host memory.

    Enter it around training steps, as they are; it may be entered again, not nested.

    budget      the most device memory of this process, "70 GiB" or bytes. As few bytes as needed move; none
                when all fits. Without a budget as much moves as hides behind compute.
    plan        a plan record that says per tensor class what moves and what is computed again (`lostflops
                plan offload` makes them), or "everything" for all that can move, whatever it costs.
    link        a link card (`measure_link`); without, the rates of the first microbatch are used.
    threshold   storages below this stay; without, what the link carries while one copy is launched, and
                with a plan nothing: it has decided.
    device      how to copy, or a GPU by its name; without, the GPU that the model is on. `ThreadedDevice()`
                tries it out on a CPU.
    verify      "first step": in the first microbatch, and in the first after each choice of more to move,
                every tensor that the backward gets is compared with the one that was saved, before the
                optimizer sees a gradient. Reads both once more on the device and keeps 8 bytes of each;
                later microbatches pay nothing. None: nothing is compared.
    host_limit  the most host memory; without, what this process may use by its container's limits.
    disk        a folder on a local disk, for what host memory has no room for: what the backward asks for
                last. Four buffers of the largest such storage are host memory beside the limit.

    Raises Refused, here, on entering, or in a step, when it cannot do what was asked.
    """
    wanted = asked(budget, plan, link, threshold, verify, host_limit, disk)
    named = isinstance(device, str | int | torch.device)
    return Engine(model, wanted, device_named(device) if named else device or device_of(model))


# Hooks see what all models save, so one engine at a time.
_entered: list[Engine] = []


class Engine(AppliedRemedy):
    """See `offload`. In force between `apply` and `undo`, or within a `with` block, as often as wanted."""

    def __init__(self, model: torch.nn.Module, wanted: Asked, device: Device) -> None:
        self.model = model
        self.device = device
        self._asked = wanted
        self._lock = threading.Lock()
        self._arena = arena = Arena(device, wanted.host_limit)
        self._disk = None if wanted.disk is None else DiskBlocks(device, Slab(wanted.disk, direct=True))
        self._schedule = schedule = CopySchedule(device, arena, disk=self._disk)
        self._tally = tally = OffloadTally()
        self._learner = learner = Learner(model, device, wanted, schedule, arena, tally)
        self._checker = checker = Checker(
            device, wanted.verify, lambda why: learner.stop(f"switched off: {why}"), self._compare
        )
        learner.checker = checker
        sender = Sender(device, wanted, learner, schedule, tally)
        self._saver = Saver(device, wanted, learner, sender, checker, schedule, tally, self._lock)
        self._stack: ExitStack | None = None

    # The context.

    def apply(self) -> Engine:
        """From now on what is saved may move."""
        self._refuse_here()
        stack = ExitStack()
        if self.recomputes:
            verify: Literal["first step"] | None = "first step" if self._asked.verify else None
            plan = cast("Plan", self._asked.plan)
            stack.enter_context(checkpoint(self.model, plan=plan, verify=verify))
        try:
            if self._learner.learned is None:
                self._learner.paths = stack.enter_context(ModulePaths(self.model))
            stack.callback(
                self.model.register_forward_pre_hook(OwnHook(lambda *_: self._forward_begins())).remove
            )
            stack.callback(claims.register(self._saver.claim, last=True))
            stack.enter_context(before_resizes(self._saver.before_resize))
            stack.enter_context(claims.hooks())
        except RuntimeError as error:
            stack.close()
            raise Refused(
                f"saved-tensor hooks cannot be installed here ({error})", "enter the engine outside"
            ) from error
        _entered.append(self)
        self._stack = stack
        return self

    def undo(self) -> None:
        """Nothing more moves. What has left comes back when the backward asks for it."""
        self.__exit__(None, None, None)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        stack, self._stack = self._stack, None
        if stack is None:
            return
        _entered.remove(self)
        try:
            stack.__exit__(kind, error, trace)
        finally:
            self._learner.paths = None
            with self._lock:
                if kind is None:
                    self._saver.drop_all()
                    self._learner.end()
                else:
                    self._learner.broke_off()

    def _refuse_here(self) -> None:
        if _entered:
            raise Refused("an offload engine is entered already", "enter one engine, around the whole step")
        if torch.compiler.is_compiling():
            raise Refused("the context is being traced", "enter it outside of what torch.compile compiles")
        top = _TORCH._autograd._top_saved_tensors_default_hooks(True)
        if top is not None and top[0] is not claims.packed:
            name = f"{top[0].__module__}.{top[0].__qualname__}"
            if top[0].__module__ == "torch.utils.checkpoint":
                raise Refused(
                    f"this is inside a checkpointed function ({name}): the engine's hooks would win, "
                    "everything would be saved and nothing recomputed",
                    "enter the engine around the model: it then moves the inputs of what is checkpointed",
                )
            raise Refused(
                f"other saved-tensor hooks are active ({name}): the engine's would switch them off",
                "leave them out, or enter them inside of the engine where they shall win",
            )
        refuse_lazy(self.model)
        for name, parameter in self.model.named_parameters():
            if parameter.device != self.device.torch_device and id(parameter) not in claims.travelling:
                raise Refused(
                    f"{name} is on {parameter.device}, the engine works on {self.device.torch_device}",
                    "move the model, or pass the device that it is on",
                )

    def _forward_begins(self) -> None:
        if self._learner.paths is not None:
            self._learner.paths.look(torch.is_grad_enabled())
        outside = _TORCH._current_graph_task_id() == -1
        if self._learner.phase is Phase.RESTING and torch.is_grad_enabled() and outside:
            with self._lock:
                self._learner.passes_by()

    def _compare(self) -> None:
        with self._lock:
            self._checker.compare()

    @property
    def entered(self) -> bool:
        return self._stack is not None

    @property
    def recomputes(self) -> bool:
        """Whether the plan computes something again, beside what it moves."""
        return self._asked.recomputes and self._learner.phase is not Phase.OFF

    def predicted_slower(self) -> float:
        """By how much copies and what is computed again make a microbatch longer, as a share of it."""
        again, plan = 0.0, self._asked.plan
        if self.recomputes and isinstance(plan, Mapping) and "predicted" in plan:
            predicted = plan["predicted"]
            again = predicted["recompute_ns"] / max(1, predicted["without"]["step_ns"])
        return (1 + self._learner.copies_slow_down()) * (1 + again) - 1

    def switch_off(self, why: str) -> None:
        """From now on everything stays. What has left comes back when asked for."""
        self._learner.stop(why)

    # Telling.

    def prove(self, step: Any, pairs: int = 3) -> Proof:
        """Runs `step` (a forward and backward, no optimizer) with and without the engine, in turns, and
        compares gradients, time and peak. Switches the engine off when it does harm, and says so."""
        return prove(self, step, pairs)

    def report(self) -> OffloadReport:
        """What happened so far. Waits for the copies under way."""
        with self._lock:
            self._saver.drop_all()
            self._checker.compare()
            self._tally.harvest(self._schedule, self.device, wait=True)
        tally, arena, learner = self._tally, self._arena, self._learner
        warm = arena.allocations if learner.warm_allocations is None else learner.warm_allocations
        predicted, measured = learner.foreseen()
        compared = self._checker.compared
        return OffloadReport(
            state=learner.state(),
            microbatches=tally.microbatches,
            budget_bytes=self._asked.budget,
            threshold_bytes=self._asked.threshold,
            out=self._one_way("out"),
            into=self._one_way("in"),
            stalls_ns={str(cause): ns for cause, ns in tally.stalls_ns.items()},
            order_missed=self._schedule.missed,
            shared_bytes=tally.shared_bytes,
            moved=tally.moved,
            kept_bytes=dict(tally.kept_bytes),
            bypassed_bytes=self._saver.bypassed_bytes or 0,
            host_used_bytes=arena.most_used_bytes,
            host_held_bytes=arena.held_bytes,
            host_allocations=arena.allocations,
            host_allocations_after_warm_up=arena.allocations - warm,
            pack_ns=tally.mean_ns("pack"),
            keep_ns=tally.mean_ns("keep"),
            unpack_ns=tally.mean_ns("unpack"),
            disk_bytes=self._disk.most_used_bytes if self._disk else 0,
            disk_written_bytes=self._disk.written_bytes if self._disk else 0,
            disk_read_bytes=self._disk.read_bytes if self._disk else 0,
            disk_waited_ns=self._disk.waited_ns if self._disk else 0,
            disk_buffer_bytes=self._disk.held_bytes if self._disk else 0,
            predicted=predicted,
            measured=measured,
            verified=f"{compared} times, bytes were those that had been saved" if compared else None,
            notes=(*learner.notes, *self._of_host_memory(), *self._of_the_disk()),
        )

    def _one_way(self, direction: Direction) -> OneWay:
        way, card = self._tally.ways[direction], self._asked.link
        stalls = self._tally.stalls_ns.items()
        stalled = sum(ns for cause, ns in stalls if DIRECTION_OF[cause] == direction)
        speed = card and (card.out if direction == "out" else card.into)
        return OneWay(way.bytes, way.copies, way.nanoseconds, stalled, speed)

    def _of_the_disk(self) -> list[str]:
        if self._disk is None or self._disk.full is None:
            return []
        return [f"{self._disk.full}: nothing more leaves for the disk, and nothing was lost"]

    def _of_host_memory(self) -> list[str]:
        arena = self._arena
        if arena.not_pinned is None:
            return []
        pageable = f"{written(arena.pageable_bytes)} of the host memory are pageable"
        return [f"{arena.not_pinned}: {pageable}, and copies to and from there are slower"]
