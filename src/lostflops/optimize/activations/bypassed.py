"""Saved tensors that no hook sees: selective checkpointing holds what it must save in a cache of its own."""

from __future__ import annotations

import gc
import sys
from typing import Any

import torch
from torch.utils import checkpoint

from lostflops.optimize.device.peak import address_of, storages_of

_WRAPPER: Any = getattr(checkpoint, "_VersionWrapper", None)  # what such a cache holds


def held_by_selective_checkpoints(device: torch.device) -> int:
    """Bytes on the device, now: after the forward. Looks at every object of the process if there are any."""
    if _WRAPPER is None or _references() <= _REFERENCES_OF_NONE:
        return 0
    held = {
        address_of(storage): storage.nbytes()
        for value in _values()
        if isinstance(value, torch.Tensor) and value.device == device
        for storage in storages_of(value)
    }
    return sum(held.values())


def _values() -> list[Any]:
    # An object refers to its class, so only those that do are looked at one by one.
    return [found.val for found in gc.get_referrers(_WRAPPER) if type(found) is _WRAPPER]


def _references() -> int:
    """To the class: each of its objects holds one."""
    return sys.getrefcount(_WRAPPER)


_REFERENCES_OF_NONE = _references() - (0 if _WRAPPER is None else len(_values()))
