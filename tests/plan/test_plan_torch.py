"""What autograd really saves for a Llama layer on this machine, beside what the planner counts."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import pytest

from lostflops.plan.shape import Shape
from lostflops.plan.train import activation_memory
from lostflops.plan.train.layout import Layout
from lostflops.plan.train.static_memory import PROJECTIONS, Lora

torch: Any = pytest.importorskip("torch", reason="pip install torch")

HIDDEN, WIDTH, HEADS, KV, SIZE, TOKENS = 64, 224, 8, 2, 8, 48
SHAPE = Shape("tiny", HIDDEN, WIDTH, 1, HEADS, KV, SIZE, 100)


def norm(x: Any, weight: Any) -> Any:
    """As Llama's: in fp32, then rounded, then scaled."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
    return weight * wide.to(x.dtype)


def turned(x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


class Projection:
    """A matrix, and an adapter beside it."""

    def __init__(self, outputs: int, inputs: int, name: str, lora: Lora | None) -> None:
        self.weight = parameter(outputs, inputs, trained=lora is None)
        self.lora = lora if lora and name in lora.targets else None
        if self.lora:
            kind = torch.float32 if self.lora.fp32 else torch.bfloat16
            self.a = parameter(self.lora.rank, inputs, trained=True, kind=kind)
            self.b = parameter(outputs, self.lora.rank, trained=True, kind=kind)

    def __call__(self, x: Any) -> Any:
        out = torch.nn.functional.linear(x, self.weight)
        if not self.lora:
            return out
        return out + (torch.nn.functional.linear(x.to(self.a.dtype), self.a) @ self.b.t()).to(out.dtype)


def parameter(*size: int, trained: bool, kind: Any = None) -> Any:
    return torch.nn.Parameter(torch.randn(*size, dtype=kind or torch.bfloat16) / 8, requires_grad=trained)


def layer(lora: Lora | None, keep: list[Any], *, inner_norms: bool) -> Any:
    """One layer's output for one sequence. `keep` gets every tensor that is no activation."""
    sizes = {
        "q": (HEADS * SIZE, HIDDEN),
        "k": (KV * SIZE, HIDDEN),
        "v": (KV * SIZE, HIDDEN),
        "o": (HIDDEN, HEADS * SIZE),
        "gate": (WIDTH, HIDDEN),
        "up": (WIDTH, HIDDEN),
        "down": (HIDDEN, WIDTH),
    }
    of = {name: Projection(*size, name, lora) for name, size in sizes.items()}
    first, second = (parameter(HIDDEN, trained=lora is None) for _ in range(2))
    inner = [parameter(SIZE, trained=lora is None) for _ in range(2)]
    cos, sin = (torch.randn(TOKENS, SIZE, dtype=torch.bfloat16) for _ in range(2))
    for p in of.values():
        keep += [p.weight, *((p.a, p.b) if p.lora else ())]
    keep += [first, second, cos, sin, *inner]
    x = torch.randn(1, TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    residual = x * 1

    def forward() -> Any:
        y = norm(residual, first)
        q, k, v = (of[n](y).view(1, TOKENS, -1, SIZE) for n in ("q", "k", "v"))
        if inner_norms:
            q, k = norm(q, inner[0]), norm(k, inner[1])
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        middle = residual + of["o"](attended.transpose(1, 2).reshape(1, TOKENS, -1))
        z = norm(middle, second)
        return middle + of["down"](torch.nn.functional.silu(of["gate"](z)) * of["up"](z))

    return forward


def saved_bytes(forward: Any, keep: list[Any]) -> int:
    """What autograd saves of it, each storage once, and nothing of `keep`."""
    known = {tensor.untyped_storage().data_ptr() for tensor in keep}
    found: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        found.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    def unpack(tensor: Any) -> Any:
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        out = forward()
    assert out.requires_grad
    sizes = [t.untyped_storage().nbytes() for at, t in found.items() if at not in known]
    # Scalars and dropout's random state, a few bytes each, are no activations.
    return sum(size for size in sizes if size >= TOKENS)


@pytest.mark.parametrize(
    "lora",
    [
        None,
        Lora(rank=4),
        Lora(rank=4, fp32=False),
        Lora(rank=4, fp32=False, targets=("q", "k", "v", "o")),
        Lora(rank=4, fp32=False, targets=PROJECTIONS),
        Lora(rank=4, targets=PROJECTIONS),
    ],
    ids=["full", "fp32 q,v", "16-bit q,v", "16-bit q,k,v,o", "16-bit all", "fp32 all"],
)
@pytest.mark.parametrize("inner_norms", [False, True], ids=["", "norms of queries and keys"])
def test_a_layer_saves_the_storages_that_are_counted(lora: Lora | None, inner_norms: bool) -> None:
    keep: list[Any] = []
    shape = replace(SHAPE, query_key_norm=inner_norms)
    forward = layer(lora, keep, inner_norms=inner_norms)
    saved = saved_bytes(forward, keep)
    assert saved == activation_memory.layer_bytes(shape, 0, TOKENS, Layout(), lora)


def plain_layer(shape: Shape, keep: list[Any]) -> Any:
    """A layer with LayerNorm and two matrices without a gate, such as OPT's, GPT-NeoX's and Falcon's."""
    kv = KV * SIZE
    sizes = [(HEADS * SIZE, HIDDEN), (kv, HIDDEN), (kv, HIDDEN), (HIDDEN, HEADS * SIZE), (WIDTH, HIDDEN)]
    q, k, v, o, up, down = (parameter(*size, trained=True) for size in (*sizes, (HIDDEN, WIDTH)))
    scales = [parameter(HIDDEN, trained=True, kind=torch.float32) for _ in range(4)]
    keep += [q, k, v, o, up, down, *scales]
    x = torch.randn(1, TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    residual, linear = x * 1, torch.nn.functional.linear
    activation = torch.nn.functional.relu if shape.relu else torch.nn.functional.gelu

    def forward() -> Any:
        def normed(of: Any, number: int) -> Any:
            return torch.nn.functional.layer_norm(of, (HIDDEN,), scales[2 * number], scales[2 * number + 1])

        y = normed(residual, 0)
        heads = (linear(y, w).view(1, TOKENS, -1, SIZE).transpose(1, 2) for w in (q, k, v))
        attended = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
        middle = residual + linear(attended.transpose(1, 2).reshape(1, TOKENS, -1), o)
        z = y if shape.norms == 1 else normed(residual if shape.parallel else middle, 1)
        return middle + linear(activation(linear(z, up)), down)

    return forward


@pytest.mark.parametrize(
    "has",
    [{}, {"relu": True}, {"parallel": True}, {"parallel": True, "norms": 1}],
    ids=["GPT", "OPT", "GPT-NeoX", "Falcon-7B"],
)
def test_a_layer_without_a_gate_saves_the_storages_that_are_counted(has: dict[str, Any]) -> None:
    shape = replace(SHAPE, gated=False, layer_norm=True, **has)
    keep: list[Any] = []
    assert saved_bytes(plain_layer(shape, keep), keep) == activation_memory.layer_bytes(
        shape, 0, TOKENS, Layout()
    )


def above(forward: Any) -> int:
    """Bytes that the backward of one layer takes at most beyond what is there before it."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    sizes: dict[int, int] = {}

    class Seen(TorchDispatchMode):
        most = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            for tensor in tree_leaves(made):
                storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None
                if storage is not None and storage._cdata not in sizes:
                    sizes[storage._cdata] = storage.nbytes()
                    weakref.finalize(storage, sizes.pop, storage._cdata)
            self.most = max(self.most, sum(sizes.values()))
            return made

    with Seen() as seen:
        out = forward()
        arrived = torch.ones_like(out)
        seen.most = before = sum(sizes.values())
        out.backward(arrived)
    return seen.most - before


@pytest.mark.parametrize("lora", [None, Lora(rank=4, fp32=False)], ids=["full", "16-bit q,v"])
def test_a_backward_is_widest_behind_the_feed_forward(lora: Lora | None) -> None:
    """The gradients of gate, up and their product; trained, the product itself is gone, and the last matrix
    has its gradient."""
    forward = layer(lora, [], inner_norms=False)
    counted = activation_memory.gradient_bytes(SHAPE, 0, TOKENS, Layout(), lora)
    arrived = 2 * TOKENS * HIDDEN
    assert counted == arrived + (6 if lora else 4) * TOKENS * WIDTH
    assert above(forward) == counted - arrived + (0 if lora else 2 * HIDDEN * WIDTH)


@pytest.mark.parametrize(("relu", "gradients"), [(False, 2), (True, 4)], ids=["GELU", "ReLU"])
def test_without_a_gate_a_backward_is_narrower(relu: bool, gradients: int) -> None:
    """A GELU has an input of its own, a ReLU saves what the last matrix reads."""
    shape = replace(SHAPE, gated=False, layer_norm=True, relu=relu)
    counted = activation_memory.gradient_bytes(shape, 0, TOKENS, Layout())
    arrived = 2 * TOKENS * HIDDEN
    assert counted == arrived + gradients * TOKENS * WIDTH
    assert above(plain_layer(shape, [])) == counted - arrived + 2 * HIDDEN * WIDTH
