"""During a forward: which storage leaves, as the choice has it, or the plan, or the memory that is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lostflops.optimize.activations.offload.schedule import ScheduleLimits, StorageState

if TYPE_CHECKING:
    from lostflops.optimize.activations.offload.asked import Asked
    from lostflops.optimize.activations.offload.choice import Watched
    from lostflops.optimize.activations.offload.learning import Learner
    from lostflops.optimize.activations.offload.schedule import CopySchedule, Entry
    from lostflops.optimize.activations.offload.tally import OffloadTally
    from lostflops.optimize.device.devices import Device

FIRST_SHARE = 0.8  # of the budget that may fill before anything moves, as long as the peak is not known


class Sender:
    def __init__(
        self, device: Device, asked: Asked, learner: Learner, schedule: CopySchedule, tally: OffloadTally
    ) -> None:
        self._device = device
        self._asked = asked
        self._learner = learner
        self._schedule = schedule
        self._tally = tally
        self._classes = asked.classes
        self.kept_because = "not needed, or not hidden" if asked.plan is None else "by the plan"

    def sends(self, number: int) -> bool:
        """Whether what is saved as this number moves, now that something is chosen."""
        chosen = self._learner.selection
        assert chosen is not None
        if number < len(chosen.moves):
            return chosen.moves[number]
        return bool(chosen.bytes_out) and self._classes is None

    def saved(self, now: Watched, entry: Entry, tensor_class: str | None) -> None:
        """Decides about an entry that was just admitted. Its class, while the first microbatch is watched."""
        if self._learner.timing:
            now.saved_events.append(self._device.record(self._device.current_stream()))
            self.see_memory(now, entry, asked=False)
        if tensor_class is not None:
            now.classes.append(tensor_class)
            # While the peak is unknown, no more than must be.
            several = 4 if self._asked.budget is None else 1
            limits = self._schedule.limits
            self._schedule.limits = ScheduleLimits(
                in_flight_bytes=max(several * entry.nbytes, limits.in_flight_bytes or 0),
                look_ahead_bytes=max(2 * entry.nbytes, limits.look_ahead_bytes),
            )
        classes = self._classes
        if self._learner.selection is not None:
            moves = self.sends(entry.number)
        elif classes is not None:
            moves = tensor_class is not None and classes.get(tensor_class) == "offload"
        elif self._asked.budget is not None:
            return self._relieve(now, self._asked.budget)
        else:
            moves = True
        if moves:
            self._send(now, entry)
        else:
            self._schedule.keep(entry, self.kept_because)
            self._tally.keeps(self.kept_because, entry.nbytes)
        return None

    def _relieve(self, now: Watched, budget: int) -> None:
        """In the first microbatch, whose peak nobody knows: sends the oldest once the device fills up."""
        excess = self._learner.in_use() - self._schedule.leaving_bytes - FIRST_SHARE * budget
        for entry in now.entries:
            if excess <= 0:
                return
            if entry.state is StorageState.RESIDENT and not entry.sent and entry.handles:
                self._send(now, entry)
                excess -= entry.nbytes

    def _send(self, now: Watched, entry: Entry) -> None:
        if self._schedule.send(entry, now):
            now.sent += 1
            self._tally.moved += 1
        else:
            self._tally.keeps(entry.reason or "host memory full", entry.nbytes)

    def see_memory(self, now: Watched, entry: Entry, asked: bool) -> None:
        """What there is besides the saved storages: what the backward makes is part of the peak."""
        if self._learner.learned is None and self._asked.budget is not None:
            in_use = self._learner.in_use()
            now.most_in_use = max(now.most_in_use, in_use)
            beside = in_use - now.base_bytes - self._schedule.resident_bytes
            now.beside[entry.number, asked] = max(beside, now.beside.get((entry.number, asked), 0))
