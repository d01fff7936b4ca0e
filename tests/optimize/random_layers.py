"""Random models of layers, and random lives of them, by their seed: for remedies that move weights.

    life = Life(seed, apply)
    found = [life.next() for _ in range(8)]

`apply(model, way)` puts the remedy on the model, or does nothing: both lives must find the same bits, or
raise alike. `life` draws from the seed what happens, and `way` draws how the remedy is applied.
"""

from __future__ import annotations

import copy
import io
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lostflops.optimize.refused import Refused

SIDE = 12  # of what goes from layer to layer
F = nn.functional


class Layer(nn.Module):
    """Frozen weights, and a bias that may be trained."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(SIDE) / 5)

    def frozen(self, *shape: int, of: torch.dtype = torch.float32) -> nn.Parameter:
        return nn.Parameter((torch.randn(shape) / 4).to(of), requires_grad=False)


class Plain(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.weight = self.frozen(SIDE, SIDE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias).sin()


class Gated(Layer):
    """Calls one of its parts twice, and looks at a part of a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(SIDE, SIDE)
        self.wide = self.frozen(3 * SIDE, SIDE)
        self.inner.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = F.linear(x, self.wide).chunk(3, -1)
        y = (query @ key.transpose(-1, -2)).softmax(-1) @ value
        return self.inner(self.inner(y).sin()) * self.wide[SIDE] + x * self.bias + x @ self.wide[:SIDE].t()


class Attention(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(SIDE)
        self.attention = nn.MultiheadAttention(SIDE, 2, dropout=0.1, batch_first=True)
        for parameter in (*self.norm.parameters(), *self.attention.parameters()):
            parameter.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.attention(y, y, y, need_weights=False)[0] + self.bias


class Odd(Layer):
    """Complex, 16-bit, integer, transposed and empty weights, and one whose memory has gaps."""

    def __init__(self) -> None:
        super().__init__()
        self.complexed = self.frozen(SIDE, SIDE, of=torch.complex64)
        self.bf16 = self.frozen(SIDE, SIDE, of=torch.bfloat16)
        self.whole = nn.Parameter(torch.randint(-9, 9, (SIDE, SIDE), dtype=torch.int8), requires_grad=False)
        self.turned = nn.Parameter(torch.randn(SIDE, 2 * SIDE).t() / 4, requires_grad=False)
        self.gaps = nn.Parameter(torch.randn(SIDE, 2 * SIDE)[:, ::2] / 4, requires_grad=False)
        self.empty = self.frozen(0, SIDE)
        self.scale = self.frozen()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x.to(torch.complex64) @ self.complexed.conj()).imag + (x.bfloat16() @ self.bf16).float()
        y = y @ (self.whole.float() / 9) + F.pad(x @ self.empty.t(), (0, SIDE))
        return (y @ self.gaps + (y @ self.turned.t())[..., ::2]) * self.scale.sin() / 4 + self.bias


class Normed(Layer):
    """Statistics that change with every forward, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(SIDE)
        self.convolution = nn.Conv1d(SIDE, SIDE, 3, padding=1)
        for parameter in (*self.norm.parameters(), *self.convolution.parameters()):
            parameter.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.convolution(self.norm(x.transpose(1, 2)))
        return x + F.dropout(y.transpose(1, 2).tanh(), 0.2, self.training) + self.bias


class KeepsViews(torch.autograd.Function):
    """Saves views of its weight, and gives one as an output."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> Any:
        ctx.save_for_backward(x, weight.t(), weight[::2], weight.view(torch.int32))
        return x @ weight

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, turned, half, whole = ctx.saved_tensors
        again = whole.view(torch.float32).t()
        return gradients[0] @ (turned + again) / 2 + 0 * x + half.sum(0), None


class Views(Layer):
    """Functions of its own, computed again in the backward or not."""

    def __init__(self, again: str) -> None:
        super().__init__()
        self.weight, self.again = self.frozen(SIDE, SIDE), again

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return KeepsViews.apply(x, self.weight).sin() * self.weight[0] + self.bias  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.again == "not":
            return self.inner(x)
        return checkpoint(self.inner, x, use_reentrant=self.again == "reentrant")  # type: ignore[no-any-return]


class Cast(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(SIDE, 2 * SIDE), nn.Linear(2 * SIDE, SIDE)
        self.first.requires_grad_(False)
        self.second.weight.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = self.second(self.first(x).relu())
        return y.float() + x * self.bias


class Writes(Layer):
    """Writes its own weight in its forward: in place, a view of it, through `.data`, or binds memory."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.weight, self.way = self.frozen(SIDE, SIDE), way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        with torch.no_grad():
            if self.way == "before":
                weight.mul_(0.97)
            elif self.way == "a row":
                weight[1].add_(0.01)
            elif self.way == "data":
                weight.data.mul_(0.97)
            elif self.way == "bound":
                weight.data = weight.data * 0.97
            elif self.way == "swapped":
                had, weight.data = weight.data, (weight.data * 8).round() / 8
        y = (x @ weight).sin() + self.bias
        with torch.no_grad():
            if self.way == "swapped":
                weight.data = had
            elif self.way == "after":
                y = y.detach() + self.bias + 0 * x
                weight.copy_(weight.roll(1, 0))
        return y


class Nested(Layer):
    """Layers inside of a layer, which may travel by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Plain(), Plain()])
        self.weight = self.frozen(SIDE, SIDE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.weight
        for part in self.parts:
            y = part(y) + x @ self.weight.t()
        return y + self.bias


class Slope(Layer):
    """A gradient within the forward, which the backward goes through again."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = self.frozen(SIDE, SIDE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.is_grad_enabled() or not x.requires_grad:
            return x + self.bias
        energy = (x @ self.weight).sin().square().sum()
        (slope,) = torch.autograd.grad(energy, x, create_graph=True)
        return x + slope.tanh() + self.bias


MADE: tuple[Callable[[], Layer], ...] = (
    *(Plain, Plain, Gated, Gated, Attention, Odd, Normed, Cast, Nested, Slope),
    *(partial(Views, again) for again in ("not", "reentrant", "plain")),
)
WRITING = tuple(partial(Writes, way) for way in ("before", "a row", "data", "bound", "swapped", "after"))


class Model(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        choice = random.Random(seed)
        torch.manual_seed(seed)
        made = MADE + WRITING if choice.random() < 0.3 else MADE
        self.embedding = nn.Embedding(17, SIDE)
        self.layers = nn.ModuleList(choice.choice(made)() for _ in range(choice.randrange(4, 8)))
        self.head = nn.Linear(SIDE, 17, bias=False)
        self.embedding.requires_grad_(choice.random() < 0.5)
        if choice.random() < 0.5:
            self.head.weight = self.embedding.weight
        if choice.random() < 0.3:  # two layers share a weight
            plain = [layer for layer in self.layers if isinstance(layer, Plain | Slope)]
            if len(plain) > 1:
                plain[0].weight = plain[-1].weight
        if choice.random() < 0.3:  # one layer, twice
            self.layers.append(self.layers[1])
        self.order: list[int] | None = None
        self.fails_at: int | None = None

    def forward(self, ids: torch.Tensor, more: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embedding(ids) if more is None else self.embedding(ids) + more
        for place, number in enumerate(self.order or range(len(self.layers))):
            if place == self.fails_at:
                raise Failure
            x = self.layers[number % len(self.layers)](x)
            x = x / (1 + x.detach().abs().max())
        return self.head(x)


class Failure(RuntimeError):
    """Of the user's own code."""


def batch(seed: int, rows: int = 2) -> torch.Tensor:
    return torch.randint(0, 17, (rows, 5), generator=torch.Generator().manual_seed(seed))


def of_bits(tensor: torch.Tensor | None) -> Any:
    if tensor is None:
        return None
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return str(plain.dtype), tuple(plain.shape), plain.reshape(-1).view(torch.uint8).numpy().tobytes()


class Life:
    """A model that is trained, evaluated, copied, saved, loaded and changed, one thing after the other."""

    def __init__(self, seed: int, apply: Callable[[Any, random.Random], Any] | None) -> None:
        self._choice, self._way = random.Random(seed), random.Random(seed + 1)
        self._apply = apply
        self.model: Any = Model(seed)
        self.did: list[str] = []
        self._applied: Any = None
        self._saved: bytes | None = None
        self._optimizer = self._made_optimizer()
        self._on()

    def _on(self) -> None:
        if self._apply is not None:
            self._applied = self._apply(self.model, self._way)

    def _made_optimizer(self) -> Any:
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        return torch.optim.Adam(trained, lr=0.01)

    THINGS: tuple[tuple[str, int], ...] = (
        *(("train", 6), ("accumulate", 2), ("evaluate", 2), ("order", 2), ("fail", 1), ("twice", 2)),
        *(("second", 1), ("thread", 1), ("two_graphs", 2), ("copied", 1), ("saved", 1), ("loaded", 1)),
        *(("written", 2), ("bound", 1), ("frozen", 1), ("again", 2), ("more", 1), ("hooked", 1)),
        *(("recomputed", 1), ("forward_mode", 1), ("called", 1), ("pickled", 1), ("looked", 1)),
        *(("mapped", 1), ("left", 1), ("kept_outputs", 1), ("backed_by_parts", 1), ("threads", 1)),
    )

    def next(self) -> Any:
        """Does one thing; what came of it, and all weights and gradients after it."""
        names, weights = zip(*self.THINGS, strict=True)
        what = self._choice.choices(names, weights=weights)[0]
        self.did.append(what)
        torch.manual_seed(self._choice.randrange(10**6))
        try:
            came = getattr(self, what)()
        except Refused:
            raise
        except (RuntimeError, AttributeError, NotImplementedError):
            came = "fails"  # in plain torch, too; the words are of whoever notices it first
        self.model.order = self.model.fails_at = None
        tensors = (*self.model.named_parameters(), *self.model.named_buffers())
        return (
            what,
            came,
            [(name, of_bits(each), of_bits(each.grad if each.is_leaf else None)) for name, each in tensors],
        )

    def end(self) -> Any:
        if self._applied is not None:
            self._applied.undo()
        return [(name, of_bits(each)) for name, each in self.model.state_dict().items()]

    # What happens.

    def _loss(self, more: torch.Tensor | None = None, model: Any = None) -> torch.Tensor:
        ids = batch(self._choice.randrange(1000), self._choice.choice([2, 2, 3]))
        return (self.model if model is None else model)(ids, more).square().mean()

    def _has(self, *kinds: type[Layer]) -> bool:
        return any(isinstance(layer, kinds) for layer in self.model.layers)

    def _input(self) -> torch.Tensor:
        return torch.randn(1, 5, SIDE).requires_grad_()

    def _step(self) -> None:
        nn.utils.clip_grad_norm_([p for p in self.model.parameters() if p.requires_grad], 1.0)
        self._optimizer.step()
        if self._choice.random() < 0.8:
            self._optimizer.zero_grad()

    def train(self) -> Any:
        more = self._input()
        loss = self._loss(more)
        loss.backward()
        found = [of_bits(loss), of_bits(more.grad)]
        self._step()
        return found

    def accumulate(self) -> Any:
        losses = [self._loss() for _ in range(1)]
        losses[0].backward()
        loss = self._loss(self._input())
        loss.backward()
        self._step()
        return of_bits(loss)

    def evaluate(self) -> Any:
        self.model.eval()
        try:
            with torch.inference_mode() if self._choice.random() < 0.5 else torch.no_grad():
                return of_bits(self._loss())
        finally:
            self.model.train()

    def order(self) -> Any:
        self.model.order = [self._choice.randrange(9) for _ in range(self._choice.randrange(1, 9))]
        return self.train()

    def fail(self) -> Any:
        self.model.fails_at = self._choice.randrange(4)
        with suppress(Failure):
            self._loss(self._input()).backward()
        self.model.fails_at = None
        return self.train()

    def twice(self) -> Any:
        more = self._input()
        loss = self._loss(more)
        loss.backward(retain_graph=True)
        if self._choice.random() < 0.5:
            with torch.no_grad():
                self._loss()
        loss.backward()
        return of_bits(more.grad)

    def second(self) -> Any:
        more = self._input()
        (slope,) = torch.autograd.grad(self._loss(more), more, create_graph=True)
        slope.square().sum().backward()
        return of_bits(slope), of_bits(more.grad)

    def thread(self) -> Any:
        more = self._input()
        loss, raised = self._loss(more), list[BaseException]()

        def work() -> None:
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
        return of_bits(more.grad)

    def threads(self) -> Any:
        """Each evaluates the model, all at once."""
        if self._has(Writes):
            return None
        found = dict[int, Any]()

        def work(number: int) -> None:
            try:
                with torch.no_grad():
                    found[number] = [of_bits(self.model(batch(number + n))) for n in range(2)]
            except BaseException as error:
                found[number] = error

        self.model.eval()
        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.model.train()
        for each in found.values():
            if isinstance(each, BaseException):
                raise each
        return sorted(found.items())

    def two_graphs(self) -> Any:
        inputs = [self._input(), self._input()]
        losses = [self._loss(each) for each in inputs]
        for loss in losses if self._choice.random() < 0.5 else reversed(losses):
            loss.backward()
        return [of_bits(each.grad) for each in inputs]

    def copied(self) -> Any:
        twin = copy.deepcopy(self.model)
        loss = self._loss(model=twin)
        loss.backward()
        return of_bits(loss), [of_bits(each.grad) for each in twin.parameters()]

    def saved(self) -> Any:
        file = io.BytesIO()
        torch.save(self.model.state_dict(), file)
        self._saved = file.getvalue()
        return [(name, of_bits(each)) for name, each in self.model.state_dict().items()]

    def loaded(self) -> Any:
        if self._saved is not None:
            self.model.load_state_dict(torch.load(io.BytesIO(self._saved)))
        return self.evaluate()

    def _some_weight(self) -> Any:
        weights = [each for each in self.model.layers.parameters() if each.dim() == 2 and each.numel()]
        return self._choice.choice([each for each in weights if each.dtype == torch.float32] or [None])

    def written(self) -> Any:
        """In place, and sometimes between forward and backward."""
        weight, late = self._some_weight(), self._choice.random() < 0.3
        more = self._input()
        loss = self._loss(more) if late else None
        if weight is not None:
            with torch.no_grad():
                (weight if self._choice.random() < 0.5 else weight[:1]).mul_(0.9)
        if loss is None:
            return self.train()
        loss.backward()  # raises where the weight was saved for it
        return of_bits(more.grad)

    def bound(self) -> Any:
        weight = self._some_weight()
        if weight is not None:
            weight.data = weight.data * 0.9
        return self.evaluate()

    def frozen(self) -> Any:
        """What was trained is frozen for now, or for good."""
        layer = self._choice.choice(list(self.model.layers))
        layer.bias.requires_grad_(False)
        loss = self._loss(self._input())
        loss.backward()
        layer.bias.requires_grad_(self._choice.random() < 0.8)
        return of_bits(loss)

    def again(self) -> Any:
        """Undone, and mostly applied again."""
        if self._applied is not None:
            self._applied.undo()
            self._applied = None
        if self._choice.random() < 0.8:
            self._on()
        return self.evaluate()

    def left(self) -> Any:
        """Undone between forward and backward."""
        more = self._input()
        loss = self._loss(more)
        if self._applied is not None:
            self._applied.undo()
            self._applied = None
        if self._choice.random() < 0.5:
            self._on()
        loss.backward()
        if self._applied is None:
            self._on()
        return of_bits(more.grad)

    def more(self) -> Any:
        """A new parameter in a layer, which is trained, too."""
        layer = self._choice.choice(list(self.model.layers))
        if "added" not in layer._parameters:
            layer.register_parameter("added", nn.Parameter(torch.randn(SIDE) / 9))
            layer.register_forward_hook(_adds)
            self._optimizer.add_param_group({"params": [layer.added]})
        return self.train()

    def hooked(self) -> Any:
        """Hooks of all kinds, for a while."""
        layer, seen = self._choice.choice(list(self.model.layers)), list[Any]()
        handles = [
            layer.register_forward_pre_hook(lambda _, args: (args[0] * 1.01,)),
            layer.register_forward_hook(lambda _, args, y: y * 1.01),
            layer.register_full_backward_hook(lambda _, into, out: seen.append(of_bits(out[0]))),
        ]
        found = self.train()
        for handle in handles:
            handle.remove()
        return found, seen

    def recomputed(self) -> Any:
        """Parts of the model in a checkpoint."""
        more = self._input()
        ids = batch(self._choice.randrange(1000))
        reentrant = self._choice.random() < 0.5
        loss = checkpoint(self.model, ids, more, use_reentrant=reentrant).square().mean()
        loss.backward()
        return of_bits(loss), of_bits(more.grad)

    def forward_mode(self) -> Any:
        if self._has(Writes, Views, Odd):  # torch does not know how
            return None
        ids = batch(self._choice.randrange(1000))
        self.model.eval()
        try:
            x = torch.randn(2, 5, SIDE)
            with torch.no_grad():
                return [of_bits(each) for each in torch.func.jvp(partial(self.model, ids), (x,), (x.cos(),))]
        finally:
            self.model.train()

    def mapped(self) -> Any:
        if self._has(Writes, Views, Odd):  # torch does not know how
            return None
        ids = batch(self._choice.randrange(1000))
        self.model.eval()
        try:
            with torch.no_grad():
                function = torch.func.vmap(partial(self.model, ids), randomness="same")
                return of_bits(function(torch.randn(2, 2, 5, SIDE)))
        finally:
            self.model.train()

    def called(self) -> Any:
        """With other values for what is trained."""
        given = {name: p * 0.5 for name, p in self.model.named_parameters() if p.requires_grad}
        more = self._input()
        ids = batch(self._choice.randrange(1000))
        loss = torch.func.functional_call(self.model, given, (ids, more)).square().mean()
        loss.backward()
        return of_bits(loss), of_bits(more.grad)

    def pickled(self) -> Any:
        """All of the model's tensors through a file."""
        file = io.BytesIO()
        torch.save(dict(self.model.named_parameters()), file)
        found = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
        return [(name, of_bits(each)) for name, each in found.items()]

    def looked(self) -> Any:
        """A view of a weight that somebody keeps sees what is written to it, and writes to it."""
        weight = self._some_weight()
        bound = [layer.weight for layer in self.model.layers if getattr(layer, "way", "") == "bound"]
        if weight is None or any(weight is each for each in bound):  # those views, docs say, go with it
            return None
        row = weight[0]
        with torch.no_grad():
            self._loss()
            weight.mul_(0.95)
            seen = of_bits(row)
            row.add_(0.01)
        return seen, self.train()

    def kept_outputs(self) -> Any:
        """Of every layer, until the end of the step."""
        kept: list[torch.Tensor] = []
        handles = [
            layer.register_forward_hook(lambda _, args, y: kept.extend([args[0], y]))
            for layer in dict.fromkeys(self.model.layers)
        ]
        loss = self._loss(self._input())
        for handle in handles:
            handle.remove()
        loss.backward()
        return [of_bits(each) for each in kept]

    def backed_by_parts(self) -> Any:
        """Only some gradients are asked for, then the others."""
        more = self._input()
        loss = self._loss(more)
        some = [each for each in self.model.parameters() if each.requires_grad][-1:]
        first = torch.autograd.grad(loss, some, retain_graph=True, allow_unused=True)
        loss.backward(inputs=[more])
        return [of_bits(each) for each in first], of_bits(more.grad)


class Serving(Life):
    """The same without gradients."""

    THINGS = (
        *(("evaluate", 6), ("order", 2), ("fail", 1), ("copied", 1), ("saved", 1), ("loaded", 1)),
        *(("written", 2), ("bound", 1), ("again", 2), ("pickled", 1), ("looked", 1), ("threads", 2)),
        *(("forward_mode", 1), ("mapped", 1), ("kept_outputs", 1)),
    )

    def next(self) -> Any:
        with torch.no_grad():
            return super().next()

    def train(self) -> Any:
        return of_bits(self._loss())

    def copied(self) -> Any:
        return of_bits(self._loss(model=copy.deepcopy(self.model)))

    def fail(self) -> Any:
        self.model.fails_at = self._choice.randrange(4)
        with suppress(Failure):
            self._loss()
        self.model.fails_at = None
        return self.train()

    def written(self) -> Any:
        weight = self._some_weight()
        if weight is not None:
            weight[:1].mul_(0.9)
        return self.train()

    def kept_outputs(self) -> Any:
        kept: list[torch.Tensor] = []
        handles = [
            layer.register_forward_hook(lambda _, args, y: kept.extend([args[0], y]))
            for layer in dict.fromkeys(self.model.layers)
        ]
        self._loss()
        for handle in handles:
            handle.remove()
        return [of_bits(each) for each in kept]


def _adds(layer: Any, args: Any, y: torch.Tensor) -> torch.Tensor:
    return y + layer.added
