"""What an operator at least moves and in which precision it computes, as its shapes and types tell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from typing import Any, cast

from lostflops.recipes.compute.flops import BACKWARD, FLOPS, GROUPED, MOST, PAIRS

SIZES = {
    "float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "long int": 8, "long": 8, "int": 4,
    "short int": 2, "signed char": 1, "unsigned char": 1, "bool": 1, "c10::Float8_e4m3fn": 1,
    "c10::Float8_e5m2": 1, "c10::Float8_e4m3fnuz": 1, "c10::Float8_e5m2fnuz": 1, "c10::Float8_e8m0fnu": 1,
    PAIRS: 1,
}  # fmt: skip
# A matrix product of these computes in them. One of floats may use tf32: its kernel says which.
PRECISIONS = {"c10::Half": "fp16", "c10::BFloat16": "bf16", "double": "fp64", PAIRS: "fp4"} | {
    name: "fp8" for name in SIZES if "Float8" in name
}
# Each reads its inputs and writes as much as they are broadcast to.
ELEMENTWISE = frozenset({
    "aten::add", "aten::add_", "aten::sub", "aten::sub_", "aten::mul", "aten::mul_", "aten::div",
    "aten::div_", "aten::neg", "aten::pow", "aten::exp", "aten::sigmoid", "aten::tanh", "aten::relu",
    "aten::silu", "aten::gelu", "aten::rsqrt", "aten::where", "aten::threshold_backward",
    "aten::gelu_backward", "aten::silu_backward", "aten::tanh_backward", "aten::sigmoid_backward",
    "aten::native_dropout", "aten::native_layer_norm", "aten::_softmax", "aten::_log_softmax",
})  # fmt: skip
# So many tensors go into each; one more is what it writes to.
INPUTS = {
    **{f"aten::{each}{end}": 2 for each in ("add", "sub", "mul", "div") for end in ("", "_")},
    "aten::mm": 2, "aten::bmm": 2, "aten::addmm": 3, "aten::baddbmm": 3,
}  # fmt: skip
# Each reads its inputs; what it writes is among them, or small.
READS = frozenset({"aten::copy_", "aten::sum", "aten::mean", "aten::norm", "aten::amax", "aten::amin"})
ATTENTION = frozenset(name for name in FLOPS if "attention" in name)

Tensors = list[tuple[list[int], int]]


def bytes_of(name: str, shapes: str | None, dtypes: str | None) -> int | None:
    """Bytes that one call at least reads and writes; None where shapes and types do not tell."""
    if name not in FLOPS and name not in ELEMENTWISE and name not in READS:
        return None
    if name in GROUPED:  # a group without rows reads nothing
        return None
    tensors = _tensors(shapes, dtypes)
    if not tensors:
        return None
    try:
        moved = _moved(name, tensors)
    except (IndexError, ValueError):
        return None
    return moved if moved <= MOST else None


def largest_tensor(shapes: str | None, dtypes: str | None) -> int:
    """Bytes of the largest input; 0 where shapes and types do not tell."""
    found = _tensors(shapes, dtypes)
    return max((size for size in (prod(shape) * each for shape, each in found) if size <= MOST), default=0)


def _moved(name: str, tensors: Tensors) -> int:
    tensors = tensors[: INPUTS.get(name)]
    read = sum(prod(shape) * size for shape, size in tensors)
    if name in READS:
        return read
    if name in ELEMENTWISE:
        return read + prod(_broadcast([shape for shape, _ in tensors])) * _size_of_result(name, tensors)
    if name in BACKWARD:  # what it gives back is as large as queries, keys and values
        return read + sum(prod(shape) * size for shape, size in tensors[1:4])
    if name in ATTENTION:
        (query, size), _, (value, _) = tensors[:3]
        return read + prod(query[:-1]) * value[-1] * size
    (one, size), (other, _) = tensors[-2:] if name in ("aten::addmm", "aten::baddbmm") else tensors[:2]
    return read + prod(one[:-1]) * other[-1] * size


def _size_of_result(name: str, tensors: Tensors) -> int:
    """Bytes per element that it writes.

    A number beside tensors is recorded as one without extents, of 8 bytes, and makes the result no wider.
    """
    chosen = tensors[1:] if name == "aten::where" and len(tensors) > 1 else tensors
    return max(size for _, size in [t for t in chosen if t[0]] or chosen)


def precision_of(dtypes: str | None) -> str | None:
    """The precision of a product of matrices of these types; None where they do not tell."""
    for name in _list(dtypes):
        if isinstance(name, str) and name in SIZES:
            return PRECISIONS.get(name)
    return None


def _list(text: str | None) -> Sequence[Any]:
    try:
        value: object = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return []
    return cast("list[Any]", value) if isinstance(value, list) else []


def extents(shapes: str | None) -> list[tuple[int, ...]]:
    """The extents of each input; () for one that is no tensor, or that no memory holds."""
    return [tuple(one) if _is_shape(one) else () for one in _list(shapes)]


def types(dtypes: str | None) -> list[str]:
    """The type of each input; empty for what none is told of."""
    return [one if isinstance(one, str) else "" for one in _list(dtypes)]


def _is_shape(shape: Any) -> bool:
    return (
        isinstance(shape, list)
        and all(type(n) is int and n >= 0 for n in cast("list[Any]", shape))
        and prod(cast("list[int]", shape)) <= MOST
    )


def _tensors(shapes: str | None, dtypes: str | None) -> Tensors:
    """Extents and bytes per element of each tensor among the inputs; none where a type is unknown."""
    found: Tensors = []
    for shape, dtype in zip(_list(shapes), _list(dtypes), strict=False):
        if dtype in ("", "Scalar", "ScalarList") or not isinstance(shape, list):
            continue
        extents = cast("list[Any]", shape)
        told = isinstance(dtype, str) and dtype in SIZES
        if not told or not all(isinstance(n, int) and n >= 0 for n in extents):
            return []
        found.append((extents, SIZES[dtype]))
    return found


def _broadcast(shapes: list[list[int]]) -> list[int]:
    """The shape that all are stretched to."""
    long = max(map(len, shapes))
    padded = [[1] * (long - len(shape)) + shape for shape in shapes]
    return [max(extents) for extents in zip(*padded, strict=True)]
