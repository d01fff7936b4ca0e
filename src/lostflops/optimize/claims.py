"""Who takes a tensor that autograd saves: one pair of hooks, asked by all who want to keep tensors elsewhere.

Of nested saved-tensor hooks only the innermost run, so two that each install their own switch one another
off. Here everybody registers a claim and enters `hooks()`; whoever's hooks are innermost ask all claims:

    withdraw = claims.register(take)       # take(tensor) -> an object with .unpack() -> tensor, or None
    with claims.hooks():
        loss = model(batch)
    withdraw()

A claim is asked on the thread of the forward; `unpack` is called on a thread of autograd's, once per backward
(so again with retain_graph), and on the stream of the matching forward. The packed object lives as long as
the graph needs it. It must not hold the tensor that it was given: for a saved output that is a cycle which
even the garbage collector cannot free; hold `tensor.detach()`.

What nobody claims stays where it is, and keeps the check that autograd gives up when hooks are installed:
an in-place write after the save raises at the backward.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Protocol, cast

import torch
from torch.utils._python_dispatch import _disable_current_modes  # pyright: ignore

from lostflops.optimize.refused import Refused
from lostflops.optimize.untraced import untraced


class Packed(Protocol):
    def unpack(self) -> torch.Tensor: ...


Claim = Callable[[torch.Tensor], "Packed | None"]

# Parameters, by id, whose memory comes and goes: between their turns they lie on the host by design.
travelling: set[int] = set()

_claims: list[Claim] = []
_last: list[Claim] = []
_in_turn: tuple[Claim, ...] = ()  # all of them, as they are asked


def register(claim: Claim, *, last: bool = False) -> Callable[[], None]:
    """Asks `claim` for every saved tensor from now on; returns what ends that.

    Claims are asked in the order of their registration; those with `last` after all others: the mover of
    activations, which takes whatever it can get.
    """
    among = _last if last else _claims
    among.append(claim)
    _line_up()

    def withdraw() -> None:
        if claim in among:
            among.remove(claim)
            _line_up()

    return withdraw


def _line_up() -> None:
    global _in_turn
    _in_turn = (*_claims, *_last)


class Version:
    """The version counter of a tensor without its memory: counts in-place writes after the save."""

    __slots__ = ("_at_save", "_counter", "_what")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._counter: torch.Tensor | None = None
        if tensor.is_inference():  # has no counter, and cannot be written in place outside inference mode
            return
        self._what = (tuple(tensor.shape), tensor.dtype)
        self._at_save = tensor._version
        self._counter = (
            tensor.detach()
        )  # shares the counter; given other data below, it no longer shares memory
        if type(self._counter) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_quantized:
            self._counter.data = _nothing(tensor)

    def changed(self) -> bool:
        return self._counter is not None and self._counter._version != self._at_save

    def check(self) -> None:
        """Raises what autograd raises without hooks."""
        if self._counter is not None and self._counter._version != self._at_save:
            shape, dtype = self._what
            now = self._counter._version
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: [{dtype} {list(shape)}] is at version {now}; expected version "
                f"{self._at_save} instead. Hint: write out of place what an operation has saved."
            )


_NOTHING: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}


def _nothing(like: torch.Tensor) -> torch.Tensor:
    key = (like.device, like.dtype)
    if key not in _NOTHING:
        with _disable_current_modes():  # those of selective checkpointing would miss it in the forward
            _NOTHING[key] = torch.empty(0, device=like.device, dtype=like.dtype)
    return _NOTHING[key]


class Kept:
    """A saved tensor that stays where it is: of any layout, as nothing of it is taken apart."""

    __slots__ = ("_at_save", "_tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        # A leaf is given other memory by `weight.data = ...`, and autograd then reads that. Of others only
        # what is detached may be held: it shares the counter of in-place writes.
        self._tensor = tensor if tensor.is_leaf else tensor.detach()
        self._at_save = -1 if tensor.is_inference() else self._tensor._version

    def unpack(self) -> torch.Tensor:
        if self._at_save >= 0 and self._tensor._version != self._at_save:
            raise written_since(self._tensor, self._at_save)
        return self._tensor


def written_since(tensor: torch.Tensor, version: int) -> RuntimeError:
    """What autograd raises without hooks."""
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{tensor.dtype} {list(tensor.shape)}] is at version {tensor._version}; expected version {version} "
        "instead. Hint: write out of place what an operation has saved."
    )


@untraced
def packed(tensor: torch.Tensor) -> Packed:
    """What the first claim makes of a tensor, or the tensor kept."""
    for claim in _in_turn:
        taken = claim(tensor)
        if taken is not None:
            return taken
    return Kept(tensor)


@contextmanager
def hooks() -> Generator[None]:
    """Every tensor that autograd saves on this thread goes to the claims. May be nested."""
    pack = cast("Callable[[torch.Tensor], Any]", packed)
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, _unpack):
            yield
    except RuntimeError as error:
        if not isinstance(error, Refused) and "support saved tensor hooks" in str(error):
            raise Refused(
                "torch.func.grad, vjp, jacrev or hessian ran inside, and torch lets no saved-tensor hooks "
                f"work there ({error})",
                "take that gradient with torch.autograd.grad, or outside of the context; torch.func.vmap, "
                "jvp and functional_call may stay inside",
            ) from error
        raise


@untraced
def _unpack(taken: Packed) -> torch.Tensor:
    return taken.unpack()
