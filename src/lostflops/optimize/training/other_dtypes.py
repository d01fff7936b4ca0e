"""Refuses an optimizer's step by gradients or states whose dtype is not that of the weights.

`to_bf16` and its `undo` change the dtype of weights, and reach neither a forward whose backward is to come
nor the states of optimizers. torch mixes most such dtypes without a word: momentum stays bf16 for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from lostflops.optimize.refused import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable

_WEIGHTS: dict[int, ref[torch.Tensor]] = {}  # whose dtype was changed, by id
_undone = 0  # how often weights became fp32 again
_LOOKED: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()  # at states, after which of them
_hook: Any = None  # of all optimizers: they may be made when nothing of the remedy is left


def watch(weights: Iterable[torch.Tensor], *, undone: bool = False) -> None:
    """Of weights that are of another dtype now: steps by gradients of the old one are refused, and after
    `undone` the first step of each optimizer by bf16 states."""
    global _undone, _hook
    _undone += undone
    for weight in weights:
        number = id(weight)
        _WEIGHTS[number] = ref(weight, lambda _, number=number: _WEIGHTS.pop(number, None))
    if _hook is None:
        _hook = register_optimizer_step_pre_hook(_before_a_step)


def _before_a_step(optimizer: Any, *_: Any) -> None:
    if not _WEIGHTS:
        return
    states = _LOOKED.get(optimizer, 0) != _undone
    for weight in (each for group in optimizer.param_groups for each in group["params"]):
        found = _WEIGHTS.get(id(weight))
        if found is None or found() is not weight:
            continue
        if weight.grad is not None and weight.grad.dtype != weight.dtype:
            raise Refused(
                f"the optimizer would step by {_name(weight.grad)} gradients of {_name(weight)} weights: "
                "their forward ran before optimize.to_bf16, or its undo(), changed the weights",
                "optimizer.zero_grad(), and run the forward again",
            )
        for key, value in optimizer.state.get(weight, {}).items() if states else ():
            if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16 != weight.dtype:
                raise Refused(
                    f"the optimizer's '{key}' is bf16 from before undo(), and its weights are "
                    f"{_name(weight)} now",
                    "optimizer.load_state_dict(optimizer.state_dict()), which casts the states, or make the "
                    "optimizer anew",
                )
    if states:
        _LOOKED[optimizer] = _undone


def _name(tensor: torch.Tensor) -> str:
    return {"float32": "fp32", "bfloat16": "bf16"}.get(kind := str(tensor.dtype)[6:], kind)
