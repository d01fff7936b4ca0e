"""A layer's first forward, operator by operator: refused where computing it again would change something.

Watched are a layer's first forward to train and its first to evaluate; in others nothing is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lostflops.optimize.activations.layer.state import version_of
from lostflops.optimize.device.peak import address_of, storages_of
from lostflops.optimize.model_parts import state_tensors, wrapper_in
from lostflops.optimize.own_operators import running_own
from lostflops.optimize.refused import Refused

_backward: Any = cast("Any", torch)._C._current_graph_task_id  # -1 where none runs
DO_NOT = "do not checkpoint this layer: layers=..."
# Write their statistics without saying so: which arguments they are, and which says whether they are written.
_BATCH_NORMS = {
    "aten::native_batch_norm": ((3, 4), 5),
    "aten::cudnn_batch_norm": ((3, 4), 5),
    "aten::miopen_batch_norm": ((3, 4), 5),
    "aten::batch_norm_gather_stats": ((3, 4), None),
    "aten::batch_norm_gather_stats_with_counts": ((3, 4), None),
}


class Impossible(Refused):
    """Found while a layer runs: it cannot be recomputed. Another remedy's refusal leaves checkpointing on."""


class WatchedForward(TorchDispatchMode):
    """Refuses what makes checkpointing do nothing or change something twice.

    Saved-tensor hooks that are opened inside the layer win over those of checkpointing: everything is kept,
    nothing is recomputed, and torch says nothing. So every operator must see the hooks that the layer began
    with. And no operator may write to memory that was there before the layer began, whoever's it is: of
    another module, of a list, or through `.data`.

    `read` are afterwards the tensors that were read and that are neither the layer's, nor given to it.
    """

    def __init__(self, name: str, layer: torch.nn.Module, given: Sequence[Any]) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self._name = name
        self._given = [one for one in given if isinstance(one, torch.Tensor)]
        self._state = state_tensors(layer)
        self._versions = [(one, version_of(one)) for one in (*self._given, *self._state.values())]
        self._of_layer = {id(one) for one in (*layer.parameters(), *self._state.values(), *self._given)}
        self._sharded = wrapper_in(layer, "FSDP1", "FSDP2") is not None  # its weights come and go
        self._made: set[int] = set()  # storages
        self._found: dict[int, torch.Tensor] = {}  # by storage that was there before
        self._hooks = top_hooks()

    @property
    def read(self) -> list[torch.Tensor]:
        return [] if self._sharded else [one for one in self._found.values() if id(one) not in self._of_layer]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if top_hooks() is not self._hooks:
            if _backward() != -1:
                raise Impossible(
                    f"'{self._name}' takes a gradient in its forward (at {func.name()}), which computing it "
                    "again would take a second time",
                    DO_NOT,
                )
            raise Impossible(
                f"saved-tensor hooks are opened inside '{self._name}' (seen at {func.name()}), by a"
                " checkpoint of its own or another remedy: they would switch this one off",
                f"open them around the layer, or {DO_NOT}",
            )
        if self._sharded or running_own():
            return func(*args, **kwargs)
        new = func.name() == "aten::lift_fresh"  # what was made of a list just now
        for tensor in _tensors((args, kwargs)):
            for storage in storages_of(tensor):
                if new:
                    self._made.add(address_of(storage))
                elif (address := address_of(storage)) not in self._made:
                    self._found.setdefault(address, tensor)
        for tensor in _written(func, args, kwargs):
            if any(address_of(storage) in self._found for storage in storages_of(tensor)):
                self._refuse(tensor)
        made = func(*args, **kwargs)
        for tensor in _tensors(made):
            found = {address_of(storage) for storage in storages_of(tensor)}
            self._made |= found - self._found.keys()
        return made

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        super().__exit__(kind, value, traceback)  # pyright: ignore[reportUnknownMemberType]
        if kind is not None:
            return
        for tensor, version in self._versions:
            if version_of(tensor) != version:
                self._refuse(tensor)

    def _refuse(self, tensor: torch.Tensor) -> NoReturn:
        """In the words for whose memory it is."""
        memory = _addresses(tensor)
        if any(memory & _addresses(one) or one is tensor for one in self._given):
            raise Impossible(
                f"'{self._name}' writes in place to what it is given (shape {list(tensor.shape)}), from "
                "which it would be computed again",
                f"write `x = x + ...` instead of `x += ...`, or {DO_NOT}",
            )
        for name, own in self._state.items():
            if memory & _addresses(own) or own is tensor:
                raise Impossible(
                    f"the forward of '{self._name}' writes to its tensor '{name}': recomputing would write"
                    " twice",
                    f"{DO_NOT}, or keep the statistic outside of it",
                )
        raise Impossible(
            f"the forward of '{self._name}' writes in place to a tensor that it has not made (shape "
            f"{list(tensor.shape)}), a weight, say, or one of another module: recomputing would write twice",
            DO_NOT,
        )


def top_hooks() -> Any:
    """The innermost, but for those that pass on what is not theirs to the ones around them."""
    hooks: Any = cast("Any", torch)._C._autograd._top_saved_tensors_default_hooks(False)
    pack: Any = hooks[0] if hooks else None
    while hasattr(pack, "passes_on_to"):
        pack = pack.passes_on_to
    return pack


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return (one for one in tree_leaves(values) if isinstance(one, torch.Tensor))


def _addresses(tensor: torch.Tensor) -> set[int]:
    return {address_of(storage) for storage in storages_of(tensor)}


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    name = func.name().partition(".")[0]
    if name in _BATCH_NORMS:
        statistics, training = _BATCH_NORMS[name]
        if training is None or args[training]:
            yield from _tensors([args[place] for place in statistics])
    elif func._schema.is_mutable:
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                yield from _tensors(args[place] if place < len(args) else kwargs.get(argument.name))
