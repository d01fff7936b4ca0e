"""How much device memory there is in use: by the device's own count, or of what is known."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch

from lostflops.optimize.peak import address_of, storages_of


@runtime_checkable
class Metered(Protocol):
    """A device that counts the bytes that are allocated on it."""

    def allocated_bytes(self) -> int: ...

    def most_allocated_bytes(self) -> int:
        """Ever, as far as the counter goes back."""
        ...

    def outside_bytes(self) -> int:
        """Of this process, but no tensor's: the driver's."""
        ...


def static_bytes(model: torch.nn.Module) -> int:
    """Parameters, buffers and gradients. Optimizer states are not among them: nobody here knows them."""
    own: list[torch.Tensor] = [*model.parameters(), *model.buffers()]
    own += [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return sum({address_of(s): s.nbytes() for tensor in own for s in storages_of(tensor)}.values())


class PeakMeter:
    """The most memory during a microbatch, where the device counts. Resets nothing, so that others who read
    the same counter are not disturbed: a peak below an earlier one is not seen."""

    def __init__(self, device: object) -> None:
        self._device = device if isinstance(device, Metered) else None
        self._before = 0

    def start(self) -> None:
        if self._device is not None:
            self._before = self._device.most_allocated_bytes()

    def peak(self) -> int | None:
        """Since the start; None where it is not known."""
        if self._device is None:
            return None
        most = self._device.most_allocated_bytes()
        return most + self._device.outside_bytes() if most > self._before else None
