"""Between microbatches: what is learned of those that are watched, and what the next ones therefore move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, cast

import torch

from lostflops.optimize.activations.offload import phases
from lostflops.optimize.activations.offload.choice import (
    Learned,
    Plan,
    Watched,
    check_found,
    choose,
    learn,
)
from lostflops.optimize.activations.offload.memory.arena import Arena, aligned
from lostflops.optimize.activations.offload.memory.device_memory import Metered, PeakMeter, static_bytes
from lostflops.optimize.activations.offload.phases import Phase
from lostflops.optimize.activations.offload.schedule import CopySchedule, ScheduleLimits
from lostflops.optimize.amounts import written
from lostflops.optimize.device.peak import address_of, storages_of
from lostflops.optimize.refused import Refused

if TYPE_CHECKING:
    from lostflops.optimize.activations.offload.asked import Asked
    from lostflops.optimize.activations.offload.checking import Checker
    from lostflops.optimize.activations.offload.moved_storages import Selection
    from lostflops.optimize.activations.offload.tally import OffloadTally
    from lostflops.optimize.activations.tensor_class import ModulePaths
    from lostflops.optimize.device.devices import Device

T = TypeVar("T")


class Learner:
    """Which microbatch is going on, what is known of all, and what moves. Whoever calls holds the lock."""

    def __init__(
        self,
        model: torch.nn.Module,
        device: Device,
        asked: Asked,
        schedule: CopySchedule,
        arena: Arena,
        tally: OffloadTally,
    ) -> None:
        self.phase = Phase.WATCHING
        self.stopped_because: str | None = None
        self.now: Watched | None = None
        self.learned: Learned | None = None
        self.selection: Selection | None = None
        self.own: set[int] = set()  # storages of parameters and buffers
        self.paths: ModulePaths | None = None  # while the first microbatch is watched
        self.in_use_at_choice = 0
        self.warm_allocations: int | None = None
        self.notes: dict[str, None] = {}
        self.checker: Checker
        self._model = model
        self._device = device
        self._asked = asked
        self._schedule = schedule
        self._arena = arena
        self._tally = tally
        self._meter = PeakMeter(device)
        self._slab_bytes = 0  # that the selection needs

    @property
    def timing(self) -> bool:
        """Times of saves and requests are wanted."""
        return self.phase is Phase.WATCHING or self.phase is Phase.TIMING

    def stop(self, why: str) -> None:
        self.phase = phases.NEXT["stopped"][self.phase]
        self.stopped_because = why

    # A microbatch begins, and ends.

    def begin(self) -> Watched:
        # Anew each time, as wrapping a model replaces them. By storage: what is saved is a view of any shape.
        own: list[torch.Tensor] = [*self._model.parameters(), *self._model.buffers()]
        self.own = {address_of(storage) for tensor in own for storage in storages_of(tensor)}
        self._tally.harvest(self._schedule, self._device, wait=False)
        now = Watched(begin=self._device.record(self._device.current_stream()))
        self.now = now
        self.checker.microbatch_begins()
        if self.learned is None:
            now.base_bytes = self.in_use()
            self._meter.start(anew=self._asked.budget is not None)
        else:
            self._adapt(self.learned)
            now.expected = len(self.learned.saved)
            now.order = list(self.learned.order)
            now.due_ns = list(self.learned.due_ns)
        if self._tally.microbatches == 2 and self.warm_allocations is None:
            self.warm_allocations = self._arena.allocations
        return now

    def passes_by(self) -> None:
        """A microbatch of which nothing is looked at: memory is all that can make something move again."""
        self._tally.microbatches += 1
        self.now = None  # what began as the last before the rest
        if self.learned is not None:
            self._adapt(self.learned)

    def end(self) -> None:
        """Learns from the first microbatch, and chooses what the next ones move."""
        now = self.now
        if now is None or not now.unpacks:
            return
        self.now = None
        self.checker.compare()
        if self.phase is Phase.OFF:
            return
        if self.learned is None and self._asked.classes is not None:
            self._refusing(lambda: check_found(cast("Plan", self._asked.plan), now.classes, now.stayed))
        self._must_have_moved()
        learned = self.learned
        if learned is None:
            if now.asked:
                self._learn(now)
            return
        if now.end is not None and not self.timing:
            self._tally.steps.append((now.begin, now.end))
        if now.expected == len(now.entries) and len(now.asked) == len(learned.order):
            if self.timing and now.checked:
                pass  # checking takes time: the next one is timed
            elif self.timing:
                self._learn_again(now, learned)
            else:
                self.learned = replace(learned, order=list(now.asked))
        elif now.entries:
            self.notes["microbatches do not all save the same: some copies are not foreseen"] = None
            if self.timing and self.selection is not None:
                self._timed(self.selection)

    def broke_off(self) -> None:
        """A backward that broke off teaches nothing."""
        self.now = None

    def _must_have_moved(self) -> None:
        chosen = self.selection
        asked_to = self._asked.moves or (chosen is not None and chosen.bytes_out)
        if asked_to and not self._tally.moved:
            stayed = ", ".join(f"{written(n)} {why}" for why, n in self._tally.kept_bytes.items()) or "none"
            self.stop("switched off: nothing could be moved")
            raise Refused(
                f"tensors were to be moved and none was; those that stayed: {stayed}",
                "lower the threshold, enter the engine around the forward, or raise host_limit",
            )

    # Learning.

    def _learn(self, now: Watched) -> None:
        self._schedule.finish()
        stalls = self._stalls()  # measuring the link takes note of them, and forgets them
        link = self._asked.link or self._tally.measured_link(self._schedule, self._device)
        peak = self._meter.peak()
        if self._asked.budget is not None and peak is None and isinstance(self._device, Metered):
            self.notes[
                "memory was higher before the first microbatch, so its own peak is not known: what the step "
                "takes for a moment only is not in the budget until it exceeds it"
            ] = None
        self.learned = learn(now, stalls, self._device, link, peak)
        if self.paths is not None:
            self.paths.__exit__()
        self._choose(self.learned)
        self.phase = phases.NEXT["learned"][self.phase]

    def _learn_again(self, now: Watched, learned: Learned) -> None:
        """What is saved is known; when, anew. What moves can only become less: its host memory is there."""
        self._schedule.finish()
        timed = learn(now, self._stalls(), self._device, learned.link, None)
        saved = [
            replace(one, saved=again.saved, asked=again.asked)
            for one, again in zip(learned.saved, timed.saved, strict=True)
        ]
        self.learned = replace(timed, saved=saved, classes=learned.classes, other_bytes=learned.other_bytes)
        self._timed(self._choose(self.learned))

    def _stalls(self) -> list[tuple[object, object]]:
        """What held compute up that later microbatches do not have."""
        asking, self._arena.asking = self._arena.asking, []
        return [(stall.start, stall.end) for stall in self._schedule.stalls] + asking

    def _timed(self, chosen: Selection) -> None:
        happens = "timed, some move" if chosen.bytes_out else "timed, none moves"
        self.phase = phases.NEXT[happens][self.phase]

    def _adapt(self, learned: Learned) -> None:
        """Chooses again when a step needs more than was foreseen: it has optimizer states, a higher peak."""
        budget, chosen = self._asked.budget, self.selection
        peak = self._meter.peak()
        self._meter.start()
        if budget is not None and chosen is not None and self.phase is not Phase.OFF:
            if peak is not None and peak > budget:
                self.learned = learned = replace(learned, other_bytes=learned.other_bytes + peak - budget)
            if self.in_use() + learned.other_bytes + chosen.resident_bytes > budget:
                some = self._choose(learned).bytes_out
                happens = "chosen again, some move" if some else "chosen again, none moves"
                self.phase = phases.NEXT[happens][self.phase]
        if self._arena.idle:
            self._arena.settle(max(self._slab_bytes, self._arena.most_used_bytes))

    # Choosing.

    def _choose(self, learned: Learned) -> Selection:
        asked, in_use, among = self._asked, self.in_use(), self.selection
        chosen = self._refusing(
            lambda: choose(learned, asked.plan, asked.budget, in_use, among and among.moves)
        )
        self._slab_bytes = self._within_the_host(learned, chosen)
        self.checker.expect(chosen.moves)
        self.selection = chosen
        self.in_use_at_choice = in_use
        self._schedule.limits = ScheduleLimits(
            chosen.in_flight_bytes, chosen.look_ahead_bytes, chosen.look_ahead_ns
        )
        self._schedule.most_resident_bytes = self._schedule.resident_bytes
        self._arena.start_counting()
        if self._arena.idle:
            self._arena.settle(self._slab_bytes)
        return chosen

    def _within_the_host(self, learned: Learned, chosen: Selection) -> int:
        """The host memory that it takes."""
        moved = (one.bytes for one, moves in zip(learned.saved, chosen.moves, strict=True) if moves)
        wanted, limit = sum(aligned(nbytes) for nbytes in moved), self._arena.limit
        self._schedule.to_disk_bytes = 0
        if wanted <= limit:
            return wanted
        if self._schedule.disk is not None:
            self._schedule.to_disk_bytes = wanted - limit
            return limit
        if self._asked.plan is not None or self._asked.budget is not None:
            self.stop("switched off: too little host memory")
            raise Refused(
                f"{written(wanted)} would have to wait in host memory, of which there are "
                f"{written(limit)} for this process",
                "allow the container more memory, pass host_limit, or move less",
            )
        return limit

    def _refusing(self, decide: Callable[[], T]) -> T:
        """A refusal in the middle of training switches the engine off: the caller may go on without it."""
        try:
            return decide()
        except Refused as refused:
            self.stop(f"switched off: {refused.reason}")
            raise

    def in_use(self) -> int:
        """Bytes of device memory now: by the device's own count where it has one, else what is known here."""
        if isinstance(self._device, Metered):
            return self._device.allocated_bytes() + self._device.outside_bytes()
        return static_bytes(self._model) + self._schedule.resident_bytes

    # Telling.

    def copies_slow_down(self) -> float:
        """By how much copies are predicted to make a microbatch longer, as a share of it."""
        learned, chosen = self.learned, self.selection
        return chosen.exposed_ns / max(1, learned.compute_ns) if learned and chosen else 0.0

    def foreseen(self) -> tuple[dict[str, int], dict[str, int]]:
        """What was predicted, and the same as measured."""
        learned, chosen = self.learned, self.selection
        if learned is None or chosen is None:
            return {}, {}
        predicted = {"step_ns": chosen.step_ns, "saved_on_device_bytes": chosen.resident_bytes}
        measured = {"saved_on_device_bytes": self._schedule.most_resident_bytes}
        step_ns = self._tally.step_ns()
        if step_ns is not None:
            measured["step_ns"] = step_ns
        if isinstance(self._device, Metered) and self._asked.budget is not None:
            predicted["peak_bytes"] = self.in_use_at_choice + learned.other_bytes + chosen.resident_bytes
            measured["peak_bytes"] = self._device.most_allocated_bytes() + self._device.outside_bytes()
        return predicted, measured

    def state(self) -> str:
        """What the engine does now, in words."""
        if self.stopped_because is not None:
            return self.stopped_because
        if self.selection is None:
            if self._tally.microbatches > 1 and not self._tally.moved:
                return "nothing that is saved can move"
            return "watching the first microbatch"
        again = " and computing again" if self._asked.recomputes else ""
        if self.selection.bytes_out:
            return f"moving{again}"
        if self._asked.classes:
            return f"nothing is moved{again}, by the plan"
        if self._asked.budget is not None:
            return "everything fits: nothing is moved"
        return "no copy would hide behind compute: nothing is moved"
