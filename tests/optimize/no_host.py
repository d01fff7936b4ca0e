"""Catches what a CPU would let pass and a GPU would not: computing with a tensor in host memory."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lostflops.optimize.device import peak

aten = torch.ops.aten
# Say what a tensor is or how to look at it, or are the copies themselves.
ALLOWED = (
    *(aten.set_, aten.set_data, aten.detach, aten._has_compatible_shallow_copy_type),
    *(aten.slice, aten.view, aten.as_strided, aten.copy_),
)


class NoHost(TorchDispatchMode):
    """While entered, no operator may read or write what a Device gave as host memory."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket not in ALLOWED:
            for tensor in tree_leaves((args, kwargs)):
                for storage in peak.storages_of(tensor):
                    assert peak.address_of(storage) not in peak._HOST, f"{func} in host memory"
        return func(*args, **(kwargs or {}))
