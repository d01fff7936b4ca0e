"""Which saved tensors are alike: the same place in every layer, made by the same operator.

A plan decides per class, for example "model.layers.*.mlp.down_proj/MulBackward0"; the profile that it is made
from and the engine that follows it must call a tensor the same, so both ask here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from lostflops.optimize.own_hooks import OwnHook

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

# Operators that only look at memory which another one wrote. Linear layers reshape: without looking through
# these, most of a transformer would be made by "ViewBackward0".
_VIEWS = frozenset(
    [
        *("Alias", "AsStrided", "Detach", "Diagonal", "Expand", "Permute", "ReshapeAlias", "Select", "Slice"),
        *("Split", "SplitWithSizes", "Squeeze", "T", "Transpose", "Unbind", "Unfold", "UnsafeView"),
        *("Unsqueeze", "View"),
    ]
)
_LEAF = "leaf"


def tensor_class(module_path: str, operator: str) -> str:
    """The module's path with its numbers as `*`, and the operator: "model.layers.*.mlp/MulBackward0"."""
    path = ".".join("*" if part.isdigit() else part for part in module_path.split("."))
    return f"{path}/{operator}" if path else operator


def operator_of(tensor: torch.Tensor) -> str:
    """Autograd's name of what wrote the tensor, looking through views; "leaf" where autograd knows none."""
    node: Any = tensor.grad_fn
    while node is not None and node.name().partition("Backward")[0] in _VIEWS and node.next_functions:
        node = node.next_functions[0][0]
    return _LEAF if node is None or node.name().endswith("AccumulateGrad") else node.name()


class ModulePaths:
    """Knows, while entered, which module of the model is running: the innermost one, by its path.

    Its hooks are on the model's modules only, and are taken away on leaving. A module with two names goes by
    the first; "" is the model itself, or code outside of it.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._modules: list[tuple[str, Any]] = list(cast("Any", model).named_modules())
        self._stack: list[str] = []
        self._handles: list[RemovableHandle] = []

    @property
    def innermost(self) -> str:
        return self._stack[-1] if self._stack else ""

    def look(self, there: bool) -> None:
        """Whether its hooks are there: without gradients nothing is saved, and torch's transformer layers
        round otherwise in inference where there are hooks."""
        if not there:
            self.__exit__()
        elif not self._handles:
            self.__enter__()

    def __enter__(self) -> ModulePaths:
        for path, module in self._modules:
            self._handles.append(module.register_forward_pre_hook(OwnHook(self._pre_hook(path))))
            self._handles.append(module.register_forward_hook(OwnHook(self._hook), always_call=True))
        return self

    def __exit__(self, *exception: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._stack.clear()

    def _pre_hook(self, path: str) -> Any:
        def enter(*_: Any) -> None:
            self._stack.append(path)

        return enter

    def _hook(self, *_: Any) -> None:
        if self._stack:
            self._stack.pop()
