"""Whether what the backward gets is what was saved: compared before the optimizer sees a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch

from lostflops.optimize.activations.checksum import Fingerprint, fingerprint
from lostflops.optimize.refused import Refused

if TYPE_CHECKING:
    from lostflops.optimize.activations.offload.schedule import Entry
    from lostflops.optimize.device.devices import Device, Stream


class Checker:
    """Compares while it is `on`: until what moves has been compared once. `stop` is told why on a difference;
    `at_the_end` runs when a backward ends in which something was compared."""

    def __init__(
        self, device: Device, wanted: bool, stop: Callable[[str], None], at_the_end: Callable[[], None]
    ) -> None:
        self.on = wanted
        self.compared = 0
        self._device = device
        self._wanted = wanted
        self._stop = stop
        self._at_the_end = at_the_end
        self._sums: list[tuple[str, torch.Tensor, torch.Tensor]] = []
        self._streams: set[Stream] = set()
        self._numbers: set[int] = set()  # of entries that were compared
        self._end_is_awaited = False

    def expect(self, moves: tuple[bool, ...]) -> None:
        """What moves from now on: on again where something of it was never compared."""
        new = any(moved and number not in self._numbers for number, moved in enumerate(moves))
        self.on = self.on or (self._wanted and new)

    def microbatch_begins(self) -> None:
        self._end_is_awaited = False  # a backward that broke off does not call

    def add(
        self, name: str, entry: Entry, saved: Fingerprint, tensor: torch.Tensor, inside_backward: bool
    ) -> None:
        self._sums.append((name, saved.sums, fingerprint(tensor, saved.order).sums))
        self._streams |= {entry.stream, self._device.current_stream()}
        self._numbers.add(entry.number)
        if not self._end_is_awaited and inside_backward:
            self._end_is_awaited = True
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ends)  # pyright: ignore

    def _backward_ends(self) -> None:
        """Raises out of the backward itself, so that no optimizer gets what is wrong."""
        self._end_is_awaited = False
        self._at_the_end()

    def compare(self) -> None:
        sums, self._sums = self._sums, []
        if not sums:
            return
        device = self._device
        for stream in self._streams:  # on which sums were made
            device.synchronize(device.record(stream))
        self._streams.clear()
        equal = torch.cat([before for _, before, _ in sums]) == torch.cat([after for _, _, after in sums])
        found = cast("list[bool]", equal.tolist())  # pyright: ignore[reportUnknownMemberType]
        # The sums go back to the streams that they are from.
        device.synchronize(device.record(device.current_stream()))
        for (name, _, _), same in zip(sums, found, strict=True):
            if not same:
                self._stop(f"{name} changed between its save and its use")
                raise Refused(
                    f"{name} changed between its save and its use: this backward's gradients are wrong, or "
                    "differ from those without the engine",
                    "if a kernel, or a write through .data, changes saved memory unseen by autograd, have "
                    "the plan keep its class; if not, this is a fault of the engine: please report it",
                )
        self.compared += len(sums)
        self.on = False
