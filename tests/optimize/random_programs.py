"""Random training programs of views, aliases, in-place writes and custom functions, by their seed.

    program = Program(seed)
    gradients = program.run(model(), step)

A program keeps a list of values that come from two weights and does things with them until it runs a
backward. What torch does not do with a value is passed by, so that every list of instructions is a program.
It may break autograd's rules (a value written after its save): that raises in the backward, and must raise
under all hooks. With `unseen`, it also writes through `.data`, which autograd does not see.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lostflops.optimize.refused import Refused

SIDE = 24  # of the weights, which are square so that transposes fit


class Weights(nn.Module):
    around: Callable[[], AbstractContextManager[Any]] = nullcontext  # in checkpointed functions

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.first = nn.Parameter(torch.randn(SIDE, SIDE, generator=generator) / 5)
        self.second = nn.Parameter(torch.randn(SIDE, 3 * SIDE, generator=generator) / 5)


class Keeps(torch.autograd.Function):
    """x * x in elements, from what is saved: the input, a view of it, its bytes as integers, the output."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, what: int) -> torch.Tensor:
        y = x * x
        saved = (x, x.t() if x.dim() == 2 else x, x[..., ::2], x.view(torch.int32), y)[what]
        ctx.what = what
        ctx.save_for_backward(saved, x)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        saved, x = ctx.saved_tensors
        if ctx.what == 1 and saved.dim() == 2:
            x = saved.t()
        elif ctx.what == 2:
            x = x.clone()
            x[..., ::2] = saved
        elif ctx.what == 3:
            x = saved.view(torch.float32)
        elif ctx.what == 4:
            x = x + (saved - saved)
        return 2 * x * gradients[0], None


class Doubles(torch.autograd.Function):
    """Writes its input in place, and says so."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * gradients[0] + 0 * x


def _window(x: torch.Tensor, i: int, j: int) -> torch.Tensor:
    """Some of the storage, with strides that may overlap or leave gaps."""
    room = x.untyped_storage().nbytes() // x.element_size()
    sizes, strides, extent = [1 + i % 5, 1 + j % 7], [i % 6, 1 + j % 9], 1
    extent += sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    return x.as_strided(sizes, strides, (i * j) % (room - extent + 1)) if extent <= room else x


VIEWS: dict[str, Callable[[torch.Tensor, int, int], torch.Tensor]] = {
    "transposed": lambda x, i, j: x.transpose(i % x.dim(), j % x.dim()) if x.dim() else x,
    "half": lambda x, i, j: x[..., : (x.shape[-1] + 1) // 2] if x.dim() else x,
    "third": lambda x, i, _: x.chunk(3, -1)[i % len(x.chunk(3, -1))] if x.dim() else x,
    "interleaved": lambda x, i, j: x[..., i % 2 :: 2 + j % 2] if x.dim() else x,
    "rows": lambda x, i, j: x[i % len(x) :] if x.dim() and len(x) else x,
    "row": lambda x, i, _: x[i % len(x)] if x.dim() and len(x) else x,
    "column": lambda x, i, _: x[..., i % x.shape[-1]] if x.dim() and x.shape[-1] else x,
    "expanded": lambda x, i, _: x[:1].expand(2 + i % 9, *x.shape[1:]) if x.dim() and len(x) else x,
    "diagonal": lambda x, *_: x.diagonal() if x.dim() == 2 else x,
    "square": lambda x, *_: x[..., : x.shape[-2]] if x.dim() > 1 else x,
    "flat": lambda x, *_: x.flatten() if x.is_contiguous() else x,
    "heads": lambda x, *_: x.unflatten(-1, (2, -1)).movedim(-2, 0) if x.dim() and x.shape[-1] % 2 == 0 else x,
    "unfolded": lambda x, i, _: x.unfold(-1, 3, 1 + i % 3) if x.dim() and x.shape[-1] > 2 else x,
    "window": lambda x, i, j: _window(x, i, j) if x.numel() and not x.is_complex() else x,
    "conjugated": lambda x, *_: x.conj() if x.is_complex() else x,
    "imaginary": lambda x, *_: x.conj().imag if x.is_complex() else x,  # has the negative bit
    "real": lambda x, *_: torch.view_as_real(x) if x.is_complex() and not x.is_conj() else x,
    "complex": lambda x, *_: (
        torch.view_as_complex(x) if x.dtype == torch.float32 and x.dim() and _is_pairs(x) else x
    ),
    "alias": lambda x, *_: x.view_as(x),
}


def _is_pairs(x: torch.Tensor) -> bool:
    strides = x.stride()
    even = all(stride % 2 == 0 for stride in strides[:-1]) and x.storage_offset() % 2 == 0
    return x.shape[-1] == 2 and strides[-1] == 1 and even


def _keeps(x: torch.Tensor, i: int) -> torch.Tensor:
    plain = x.dtype == torch.float32 and not x.is_neg()
    return Keeps.apply(x.clamp(-2, 2) if i > 40 else x, i % 5) if plain else x  # type: ignore[no-any-return]


ONE: dict[str, Callable[[torch.Tensor, int, int], torch.Tensor]] = {
    "sin": lambda x, *_: x.sin(),
    "sigmoid": lambda x, *_: x.sigmoid(),
    "squared": lambda x, *_: (x * x) * 0.5,
    "exp": lambda x, *_: (-x * x).exp() if not x.is_complex() else x.sin(),
    "softmax": lambda x, i, _: x.softmax(i % x.dim()) if x.dim() and not x.is_complex() else x,
    "normed": lambda x, *_: x / (x.abs().square().sum(-1, keepdim=True) + 1) if x.dim() else x,
    "scores": lambda x, *_: x @ x.transpose(-1, -2).contiguous() / 8 if x.dim() > 1 else x,
    "shared": lambda x, *_: x @ x.transpose(-1, -2) / 8 if x.dim() > 1 else x,
    "complexed": lambda x, *_: torch.complex(x, x.flip(0)) if x.dtype == torch.float32 and x.dim() else x,
    "sorted": lambda x, *_: x.sort(-1)[0] if x.dim() and not x.is_complex() else x,
    "clamped": lambda x, *_: x.clamp(-1, 1) if not x.is_complex() else x,
    "dropped": lambda x, i, _: x * (torch.arange(x.numel()).reshape(x.shape) % (2 + i % 3) > 0),
    "keeps": lambda x, i, _: _keeps(x, i),
    "doubles": lambda x, *_: Doubles.apply(x.clone()),  # type: ignore[dict-item]
    "attended": lambda x, *_: (
        nn.functional.scaled_dot_product_attention(x, x, x) if x.dim() == 3 and not x.is_complex() else x
    ),
}

TWO: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "times": lambda x, y: x * y,
    "plus": lambda x, y: x + y,
    "product": lambda x, y: (x @ y) / 8,
    "against": lambda x, y: (x @ y.transpose(-1, -2)) / 8,
    "dotted": lambda x, y: x.flatten()[: y.numel()].dot(y.flatten()[: x.numel()]).reshape(1),
}


def _layer(x: torch.Tensor, weights: Weights, i: int) -> torch.Tensor:
    """A small network with a weight in it, and views of what it makes."""
    wide = (x @ weights.first).sin() if i % 2 else nn.functional.linear(x, weights.first).sigmoid()
    halves = wide.unflatten(-1, (2, -1)).transpose(-1, -2)
    return (halves * halves.softmax(-2)).flatten(-2) + x * wide


def _checkpointed(x: torch.Tensor, weights: Weights, i: int, j: int) -> torch.Tensor:
    """Computed again in the backward; some of them hold another one."""

    def inner(x: torch.Tensor) -> torch.Tensor:
        with weights.around():
            y = _layer(x, weights, i)
        return checkpoint(_layer, y, weights, j, use_reentrant=False) if j % 3 == 0 else y  # type: ignore[no-any-return]

    return checkpoint(inner, x, use_reentrant=i % 5 == 0)  # type: ignore[no-any-return]


def _autocast(x: torch.Tensor, weights: Weights, i: int, j: int) -> torch.Tensor:
    """Weights are cast once and the cast is used again, also where the first use saves nothing."""
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=j % 4 > 0):
        if i % 3 == 0:
            with torch.no_grad():
                _layer(x.detach(), weights, i)
        return _layer(_layer(x, weights, i).float(), weights, j).float()


def _island(x: torch.Tensor, weights: Weights, i: int, j: int) -> torch.Tensor:
    """Some of the way without a graph, and back on it."""
    with torch.inference_mode() if i % 2 else torch.no_grad():
        scale = _layer(x, weights, j).abs().mean()
    return x * float(scale) if i % 2 else x * scale + x.detach().sin() * x


def _hooked(x: torch.Tensor, weights: Weights, i: int, j: int) -> torch.Tensor:
    """Somebody else's hooks inside win there."""
    hooks = (
        torch.autograd.graph.save_on_cpu()
        if i % 2
        else torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().double(), lambda t: t.float())
    )
    with hooks:
        y = (x @ weights.first).sin() if x.dtype == torch.float32 else x
    return _layer(y, weights, j)


def _differentiated(x: torch.Tensor, weights: Weights, i: int, j: int) -> torch.Tensor:
    """A gradient within the forward, which the backward goes through again."""
    (slope,) = torch.autograd.grad(_layer(x, weights, i).square().sum(), x, create_graph=True)
    return slope / (1 + slope.detach().abs().max()) if j % 2 else slope.sin()


INSIDE: dict[str, Callable[[torch.Tensor, Weights, int, int], torch.Tensor]] = {
    "checkpointed": _checkpointed,
    "autocast": _autocast,
    "island": _island,
    "hooked": _hooked,
    "differentiated": _differentiated,
}


def _fits(x: torch.Tensor) -> bool:
    return x.dtype == torch.float32 and x.dim() > 1 and x.shape[-1] == SIDE and not x.is_neg()


def _write(x: torch.Tensor, i: int, j: int) -> None:
    """In place, through the value, a view of it, or an alias without its graph. Not of leaves."""
    if x.grad_fn is None or any(s == 0 and n > 1 for s, n in zip(x.stride(), x.shape, strict=True)):
        return
    target = (x, x[..., ::2] if x.dim() else x, x.t() if x.dim() == 2 else x, x.detach())[i % 4]
    if j % 3 == 0:
        target.mul_(0.5)
    elif j % 3 == 1:
        target.add_(0.25)
    else:
        target.copy_(target.detach().sin())


def _write_unseen(x: torch.Tensor, i: int, j: int) -> torch.Tensor:
    """Through `.data`: mostly what nobody has saved yet, as initialisations do, else any value."""
    if i % 4:
        x = x.clone()
    if x.grad_fn is None or any(s == 0 and n > 1 for s, n in zip(x.stride(), x.shape, strict=True)):
        return x
    data = x.data if j % 2 or not x.dim() else x.data[..., ::2]
    data.mul_(0.5)
    return x


def once(loss: torch.Tensor, weights: Weights) -> None:
    loss.backward()


def retained(loss: torch.Tensor, weights: Weights) -> None:
    loss.backward(retain_graph=True)
    loss.backward()


def twice_differentiated(loss: torch.Tensor, weights: Weights) -> None:
    slopes = torch.autograd.grad(loss, [*weights.parameters()], create_graph=True, allow_unused=True)
    norm = sum(slope.square().sum() for slope in slopes if slope is not None)
    (loss + norm / 100).backward()


def in_two_halves(loss: torch.Tensor, weights: Weights) -> None:
    """One weight's gradient asked for first, the other's later."""
    (slope,) = torch.autograd.grad(loss, weights.first, retain_graph=True)
    weights.first.grad = slope
    loss.backward(inputs=[weights.second])


def on_another_thread(loss: torch.Tensor, weights: Weights) -> None:
    raised: list[BaseException] = []

    def work() -> None:
        # A new thread gets PyTorch's number of threads only when it runs something in parallel, or is asked.
        # Until then products may be added up in another order, with and without offloading.
        torch.get_num_threads()
        try:
            loss.backward()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    for error in raised:
        raise error


ENDS: tuple[Callable[[torch.Tensor, Weights], None], ...] = (
    once,
    once,
    retained,
    twice_differentiated,
    in_two_halves,
    on_another_thread,
)


class Program:
    """`in_place` is how often of 100 an instruction writes: many such programs only raise. `unseen`, through
    `.data`."""

    def __init__(self, seed: int, length: int = 14, in_place: int = 8, unseen: int = 0) -> None:
        choice = random.Random(seed)
        self.seed = seed
        self.inside = set[str]()
        self.instructions: list[tuple[str, int, int]] = []
        for _ in range(length):
            kinds = [*[*VIEWS] * 2, *[*ONE] * 2, *[*TWO] * 3, *[*INSIDE] * 2, "drop"]
            what = "write" if choice.randrange(100) < in_place else choice.choice(kinds)
            if unseen and choice.randrange(100) < unseen:
                what = "write unseen"
            self.instructions.append((what, choice.randrange(100), choice.randrange(100)))
        self._backward = choice.choice(ENDS)

    def forward(self, weights: Weights) -> torch.Tensor:
        first, second = weights.first, weights.second
        live = [first * 1.5, second.sin(), (first @ second)[:, :SIDE], first @ second]
        for place, (what, i, j) in enumerate(self.instructions):
            number = len(live) - 1 - min(i % len(live), j % len(live))  # the latest most often
            x, y = live[number], live[j % len(live)]
            try:
                if what in VIEWS:
                    live.append(VIEWS[what](x, i, j))
                elif what in ONE:
                    live.append(ONE[what](x, i, j))
                elif what in TWO and x.dtype == y.dtype and max(x.numel(), y.numel()) < 20_000:
                    live.append(TWO[what](x, y))
                elif what in INSIDE:
                    x = x if _fits(x) else next((value for value in reversed(live) if _fits(value)), first)
                    live.append(INSIDE[what](x, weights, i, j))
                    self.inside.add(what)
                elif what == "write":
                    _write(x, i, j)
                elif what == "write unseen":
                    live.append(_write_unseen(x, i, j))
                elif what == "drop" and len(live) > 4:
                    live.pop(number)
            except Refused:
                raise
            except (RuntimeError, IndexError):
                self.passed_by.append(place)
            if live[-1].numel() > 20_000 or live[-1].numel() == 0:
                live.pop()
        del x, y
        return torch.stack([value.abs().square().mean() for value in live[-6:]]).sum()

    def run(self, weights: Weights) -> Any:
        """The gradients, or that they cannot be had, and which instructions torch did not do."""
        weights.zero_grad()
        self.passed_by = list[int]()
        self.inside = {self._backward.__name__}  # what it had in it, for counting
        try:
            self._backward(self.forward(weights), weights)
        except Refused:
            raise
        except RuntimeError:
            return "raised", self.passed_by
        return [
            None if p.grad is None else p.grad.numpy().tobytes() for p in weights.parameters()
        ], self.passed_by
