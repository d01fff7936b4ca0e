"""Which gradients are larger by the loss scale, however the scaler is used: by `Fp16`, or by hand.

From the first `scale(loss)` on all gradients are scaled: those that are there already are multiplied by the
scale, so that what is added to them is alike. With `update()` all of them are true again: those of the
optimizers that the scaler knows by its own `unscale_`, the others here. Meanwhile a backward of a loss that
was not scaled is refused before it adds to them, and clipping them is warned of.
"""

from __future__ import annotations

import functools
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.autograd.graph import get_gradient_edge
from torch.utils._pytree import tree_leaves

from lostflops.optimize.model_parts import wrapper_in
from lostflops.optimize.own_hooks import OwnHook
from lostflops.optimize.refused import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

WATCHED = ("scale", "unscale_", "step", "update")


class ScaledGradients:
    """Of a model and its optimizer, until `release`."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, scaler: Any) -> None:
        self._model, self._optimizer, self._scaler = model, optimizer, scaler
        self.any = False  # a loss was scaled since the last update
        self._unscaled: set[int] = set()  # parameters, by id, whose gradients are true since then
        self._stepped: set[int] = set()  # and have been used
        self._backward = False  # of a scaled loss is under way
        self._watching: dict[int, tuple[Any, Any]] = {}  # by id of a parameter: what adds to its gradient
        self._left: dict[int, tuple[torch.Tensor, int]] = {}  # gradients of the last one, with their versions
        # FSDP adds to its parts' gradients itself: the results of its modules are watched instead.
        sharded = (each for each in model.modules() if wrapper_in(each, "FSDP1", "FSDP2") is each)
        self._hooks = [each.register_forward_hook(OwnHook(self._of_parts)) for each in sharded]
        for name in WATCHED:  # on the object: torch calls them, too
            setattr(scaler, name, functools.partial(getattr(self, f"_{name}"), getattr(scaler, name)))

    def scaled_of(self, optimizer: Any) -> bool:
        """Whether some gradient that this optimizer would step by is scaled now."""
        if not self.any:
            return False
        scaled = {id(each) for each in self._parameters()} - self._unscaled - self._stepped
        return any(id(each) in scaled for each in with_gradients(optimizer))

    def settle(self) -> None:
        """All gradients are true."""
        if self.any:
            true = self._unscaled | self._stepped
            _multiply((p for p in self._parameters() if id(p) not in true), self._inverse)
        self.any = False
        self._unscaled.clear()
        self._stepped.clear()
        self._left.clear()

    def forget_if_none(self) -> None:
        """After a backward that failed: where nothing has a gradient, none is scaled."""
        if all(gradient_of(each) is None for each in self._parameters()):
            self.settle()

    def release(self) -> None:
        """The scaler is left alone. Gradients are true, or dropped if some overflowed."""
        if self.any:
            states = self._scaler._per_optimizer_states
            if states[id(self._optimizer)]["stage"].name == "READY":
                self._scaler.unscale_(self._optimizer)
            found = [each for state in states.values() for each in state["found_inf_per_device"].values()]
            self.settle()
            if any(float(each) for each in found):
                for parameter in self._parameters():
                    parameter.grad = None
        for name in WATCHED:
            self._scaler.__dict__.pop(name, None)
        for hook in (*self._hooks, *(hook for _, hook in self._watching.values())):
            hook.remove()
        self._watching.clear()
        self._left.clear()

    @contextmanager
    def backward(self) -> Generator[None]:
        """Of a scaled loss, whole: what changes its gradients until they are unscaled is warned of."""
        try:
            yield
        finally:
            self._end()
        gradients = ((id(each), gradient_of(each)) for each in self._parameters())
        self._left = {number: (each, each._version) for number, each in gradients if each is not None}

    def _warn_of_changes(self, parameters: Iterable[torch.Tensor], until: str) -> None:
        for parameter in parameters:
            if _changed(gradient_of(parameter), *self._left.get(id(parameter), (None, 0))):
                warnings.warn(
                    f"gradients were changed between backward(loss) and {until}, where they are "
                    f"{self._scaler.get_scale():,.0f} times too large: clipping makes them too small by "
                    "that. Clip by to_fp16(..., max_norm=1.0), or after scaled.scaler.unscale_(optimizer)",
                    stacklevel=5,
                )
                return

    def _begin(self, _: torch.Tensor) -> None:
        if not self._backward:
            self._backward = True
            cast("Any", torch.autograd.Variable)._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        self._backward = False

    def _watch(self) -> None:
        for parameter in self._parameters():
            if not (parameter.requires_grad and parameter.is_leaf):
                continue
            number, node = id(parameter), get_gradient_edge(parameter).node
            known, hook = self._watching.get(number, (None, None))
            if known is node:
                continue
            if hook is not None:
                hook.remove()
            watched = functools.partial(self._before_adding, number)
            self._watching[number] = node, node.register_prehook(watched)

    def _of_parts(self, _: Any, __: Any, given: Any) -> None:
        for each in tree_leaves(given):
            if isinstance(each, torch.Tensor) and each.requires_grad:
                cast("Any", each).register_hook(self._before_parts)

    def _before_parts(self, _: torch.Tensor) -> None:
        for parameter in self._parameters():
            if parameter.requires_grad:
                self._before_adding(id(parameter))

    def _before_adding(self, number: int, *_: Any) -> None:
        if self.any and not self._backward and number not in self._unscaled | self._stepped:
            raise Refused(
                "a loss that was not scaled would add to gradients that are "
                f"{self._scaler.get_scale():,.0f} times too large",
                "backward(loss) of what to_fp16 returned; or step(), or undo(), before loss.backward()",
            )

    # What the scaler is asked.

    def _scale(self, plain: Callable[..., Any], outputs: Any) -> Any:
        if self._unscaled:
            if any(
                id(each) in self._unscaled and gradient_of(each) is not None for each in self._parameters()
            ):
                raise Refused(
                    "the gradients that are there have been unscaled for a step: what a scaled loss adds to "
                    "them would be too large",
                    "step(), or zero_grad(set_to_none=True), before the next backward(loss)",
                )
            self._unscaled.clear()  # dropped, instead of the step
            self._scaler._per_optimizer_states.pop(id(self._optimizer), None)
        if not self.any:
            _multiply(self._parameters(), self._scaler.get_scale)
            self.any = True
        self._watch()
        self._warn_of_changes(self._parameters(), "the next backward(loss)")
        self._left.clear()
        scaled = plain(outputs)
        for each in tree_leaves(scaled):
            if isinstance(each, torch.Tensor) and each.requires_grad:
                cast("Any", each).register_hook(self._begin)
        return scaled

    def _unscale_(self, plain: Callable[..., Any], optimizer: Any) -> None:
        self._warn_of_changes(with_gradients(optimizer), "step()")
        plain(optimizer)
        self._unscaled |= self._ids(optimizer)

    def _step(self, plain: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain(optimizer, *args, **kwargs)
        self._stepped |= self._ids(optimizer)
        self._unscaled -= self._stepped
        return result

    def _update(self, plain: Callable[..., Any], new_scale: Any = None) -> None:
        self.settle()  # by the scale that they have
        plain(new_scale)

    def _inverse(self) -> float:
        """As the scaler rounds it."""
        return float(torch.tensor(self._scaler.get_scale(), dtype=torch.float64).reciprocal().float())

    def _ids(self, optimizer: Any) -> set[int]:
        ours = {id(each) for each in self._parameters()}
        return {id(each) for group in optimizer.param_groups for each in group["params"]} & ours

    def _parameters(self) -> list[torch.Tensor]:
        """Groups may be added, and parameters of the model may be in no group."""
        groups = self._optimizer.param_groups
        every = [*self._model.parameters(), *(each for group in groups for each in group["params"])]
        return list({id(each): each for each in every}.values())


def with_gradients(optimizer: Any) -> list[torch.Tensor]:
    """The parameters that a step would change."""
    every = (each for group in optimizer.param_groups for each in group["params"])
    return [each for each in every if gradient_of(each) is not None]


def gradient_of(parameter: torch.Tensor) -> torch.Tensor | None:
    """FSDP1's parameters are parts of others for some time, and have none: torch warns who asks."""
    return parameter.grad if parameter.is_leaf else None


@torch.no_grad()
def _changed(gradient: torch.Tensor | None, left: torch.Tensor | None, version: int) -> bool:
    """Whether it is another one than was left, by its values where it is in other memory. Zeros are none."""
    if gradient is None or left is None or (left is gradient and left._version == version):
        return False
    here, there = (cast("Any", getattr(each, "_local_tensor", each)) for each in (gradient, left))
    plain = here.layout == there.layout == torch.strided
    if left is not gradient and left._version == version and plain and torch.equal(here, there):
        return False
    return not plain or bool(here.any())


@torch.no_grad()
def _multiply(parameters: Iterable[torch.Tensor], factor: Callable[[], float]) -> None:
    found = (gradient_of(each) for each in parameters)
    gradients = {id(each): each for each in found if each is not None}
    by = factor() if gradients else 1.0  # a GPU is waited for
    for gradient in gradients.values():
        gradient.mul_(by)
