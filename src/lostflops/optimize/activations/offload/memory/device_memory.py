"""How much device memory in total in use: by the device's own count, or of what is known."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch

from lostflops.optimize.device.peak import address_of, storages_of


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


@runtime_checkable
class Resettable(Metered, Protocol):
    """A device that can begin to count anew."""

    def reset_most_allocated(self) -> None: ...


def static_bytes(model: torch.nn.Module) -> int:
    """Parameters, buffers and gradients. Optimizer states are not among them: nobody here knows them."""
    own: list[torch.Tensor] = [*model.parameters(), *model.buffers()]
    # FSDP1 has views in between, whose gradients torch does not keep.
    leaves = [parameter for parameter in model.parameters() if parameter.is_leaf]
    own += [leaf.grad for leaf in leaves if leaf.grad is not None]
    return sum({address_of(s): s.nbytes() for tensor in own for s in storages_of(tensor)}.values())


class PeakMeter:
    """The most memory during a microbatch, where the device counts.

    The counter is the whole process's, so it is left alone: a peak below an earlier one is not seen. Only the
    peak of the microbatch that is learned from must be known, whatever came before (a model that was loaded
    in float32, an evaluation): `start(anew=True)` resets the counter for it, where it can be.
    """

    def __init__(self, device: object) -> None:
        self._device = device if isinstance(device, Metered) else None
        self._before = 0
        self.was_reset = False

    def start(self, *, anew: bool = False) -> None:
        if self._device is None:
            return
        if anew and isinstance(self._device, Resettable):
            self.was_reset |= self._device.most_allocated_bytes() > self._device.allocated_bytes()
            self._device.reset_most_allocated()
            self._before = -1
        else:
            self._before = self._device.most_allocated_bytes()

    def peak(self) -> int | None:
        """Since the start; None where it is not known, or hidden by an earlier one."""
        if self._device is None:
            return None
        most = self._device.most_allocated_bytes()
        return most + self._device.outside_bytes() if most > self._before else None
