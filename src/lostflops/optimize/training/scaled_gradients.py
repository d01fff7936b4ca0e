"""Which gradients are larger by the loss scale, however the scaler is used: by `Fp16`, or by hand.

From the first `scale(loss)` on all gradients are scaled: those that are there already are multiplied by the
scale, so that what is added to them is alike. With `update()` all of them are true again: those of the
optimizers that the scaler knows by its own `unscale_`, the others here.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from lostflops.optimize.refused import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

WATCHED = ("scale", "unscale_", "step", "update")


class ScaledGradients:
    """Of a model and its optimizer, until `release`."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, scaler: Any) -> None:
        self._model, self._optimizer, self._scaler = model, optimizer, scaler
        self.any = False  # a loss was scaled since the last update
        self._unscaled: set[int] = set()  # parameters, by id, whose gradients are true since then
        self._stepped: set[int] = set()  # and have been used
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

    def forget_if_none(self) -> None:
        """After a backward that failed: where nothing has a gradient, none is scaled."""
        if all(each.grad is None for each in self._parameters()):
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

    # What the scaler is asked.

    def _scale(self, plain: Callable[..., Any], outputs: Any) -> Any:
        if self._unscaled:
            if any(id(each) in self._unscaled and each.grad is not None for each in self._parameters()):
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
        return plain(outputs)

    def _unscale_(self, plain: Callable[..., Any], optimizer: Any) -> None:
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
    return [each for group in optimizer.param_groups for each in group["params"] if each.grad is not None]


@torch.no_grad()
def _multiply(parameters: Iterable[torch.Tensor], factor: Callable[[], float]) -> None:
    gradients = {id(each.grad): each.grad for each in parameters if each.grad is not None}
    by = factor() if gradients else 1.0  # a GPU is waited for
    for gradient in gradients.values():
        gradient.mul_(by)
