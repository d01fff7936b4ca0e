"""How much matrix arithmetic the operators of a run ask for, as far as their shapes tell."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import polars as pl

from lostflops.columns import Count, Id, Time
from lostflops.recipe import Example, recipe
from lostflops.tables import Kernels, Operators

Shapes = Sequence[Any]
MATRIX_WORK = ("gemm", "attention", "convolution")


def _product(shapes: Shapes, first: int) -> int:
    """Of a matrix product, batched or not: two for each multiplication and addition."""
    one, other = shapes[first], shapes[first + 1]
    if len(one) != len(other) or one[-1] != other[-2]:
        raise ValueError(shapes)
    return 2 * prod(one) * other[-1]


def _grouped(shapes: Shapes) -> int:
    """Of the products of all groups. Rows (or what is summed over) lie one group behind the other: of inputs
    [rows, inner] and [groups, inner, columns] each row meets one group's matrix."""
    one, other = shapes[:2]
    if not {len(one), len(other)} <= {2, 3} or one[-1] != other[-2]:
        raise ValueError(shapes)
    if len(one) == len(other) == 3 and one[0] != other[0]:
        raise ValueError(shapes)
    of_each_column = one[-2:] if len(other) == 2 else one
    return 2 * prod(of_each_column) * other[-1]


def _attention(shapes: Shapes, first: int, products: int) -> int:
    """Of scaled dot products of queries, keys and values as [batch, heads, length, width], without a mask."""
    query, key, value = shapes[first : first + 3]
    batch, heads, length, width = query
    return products * batch * heads * length * key[2] * (width + value[3])


# Operators of attention, and inside them the one that launches. A backward pass holds four products, not
# counting the one that it computes again.
ATTENTION = {
    f"aten::_scaled_dot_product_{kind}": inner
    for kind, inner in (
        ("flash_attention", "aten::_flash_attention_forward"),
        ("efficient_attention", "aten::_efficient_attention_forward"),
        ("cudnn_attention", "aten::_cudnn_attention_forward"),
    )
}
BACKWARD = {f"{name}_backward": inner.replace("forward", "backward") for name, inner in ATTENTION.items()}
# Where a GPU has no kernel for them they call a product per group, which is counted: they themselves do
# where they launch.
GROUPED = frozenset({
    "aten::_grouped_mm", "aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2",
})  # fmt: skip
# What each counts, from the shapes of its inputs. Operators that only call these are not here.
FLOPS: Mapping[str, Callable[[Shapes], int]] = {
    "aten::mm": lambda shapes: _product(shapes, 0),
    "aten::bmm": lambda shapes: _product(shapes, 0),
    "aten::_scaled_mm": lambda shapes: _product(shapes, 0),
    "aten::_scaled_mm_v2": lambda shapes: _product(shapes, 0),
    **dict.fromkeys(GROUPED, _grouped),
    "aten::addmm": lambda shapes: _product(shapes, 1),
    "aten::baddbmm": lambda shapes: _product(shapes, 1),
    **dict.fromkeys(ATTENTION, lambda shapes: _attention(shapes, 0, 2)),
    **dict.fromkeys(BACKWARD, lambda shapes: _attention(shapes, 1, 4)),
}


FLASH = "aten::_flash_attention_forward"
# Of complex numbers a multiplication is 6 operations and an addition 2 (LAPACK Working Note 41), where each
# is one of real numbers. The profiler calls their type `c10::complex<float>`.
COMPLEX, PER_REAL = "c10::complex<", 4
PAIRS = "c10::Float4_e2m1fn_x2"  # two numbers in an element, along what is summed over

# FLOPs, or bytes, of a call: minutes on any GPU, so shapes that say more are damaged. Sums fit in 64 bits.
MOST = 10**17


def _operators() -> list[Any]:
    mm = {"name": "aten::mm", "shapes": "[[7, 5], [5, 3]]"}
    flash = "aten::_scaled_dot_product_flash_attention"
    return [
        mm,
        mm,
        {"name": "aten::addmm", "shapes": "[[3], [2, 5], [5, 3], [], []]"},
        {"name": flash, "shapes": "[[2, 3, 4, 5], [2, 3, 7, 5], [2, 3, 7, 6], [], [], [], []]"},
        {"name": FLASH, "shapes": "[]"},
        {"name": "aten::relu", "shapes": "[[7, 3]]"},
    ]


@recipe(
    question="How many FLOPs do matrix products and attention ask for, as far as shapes tell?",
    scope="rank",
    page=False,
    columns={
        "rank": Id("rank"),
        "operators": Count("operators that were counted"),
        "unknown": Count("operators of the same kinds whose shapes do not tell"),
        "flops": Count("FLOPs of those that were counted; attention without regard to a mask"),
        "matrix_time": Time("kernels of matrix products, attention and convolution, added up"),
        "known_time": Time("the part of it that counted operators launched"),
    },
    examples=[
        Example(
            "three products and one attention; one kernel has an operator that is not counted",
            given={
                "operators": _operators(),
                "kernels": [
                    {"start": 0, "end": 5, "family": "gemm", "operator": "aten::mm"},
                    {"start": 5, "end": 12, "family": "attention", "operator": FLASH},
                    {"start": 12, "end": 23, "family": "gemm", "operator": "mine::gemm"},
                    {"start": 23, "end": 70, "family": "norm", "operator": "aten::native_layer_norm"},
                ],
            },
            expect=[
                {"rank": 0, "operators": 4, "unknown": 0}
                | {"flops": 2 * 210 + 60 + 1848 * 2, "matrix_time": 23, "known_time": 12}
            ],
        ),
        Example(
            "without shapes nothing is known",
            given={
                "operators": [{"name": "aten::mm", "shapes": shapes} for shapes in ("[]", None, "[[2, 3]]")],
                "kernels": [{"start": 0, "end": 9, "family": "gemm", "operator": "aten::mm"}],
            },
            expect=[
                {"rank": 0, "operators": 0, "unknown": 3, "flops": 0, "matrix_time": 9, "known_time": 9}
            ],
        ),
    ],
)  # fmt: skip
def step_flops(operators: Operators, kernels: Kernels) -> pl.LazyFrame:
    """Add up the FLOPs of matrix products and attention over each rank's whole recording.

    Recomputation counts like any other work. Convolutions are not counted: their shapes do not tell the
    stride. Where `known_time` is less than `matrix_time`, so is what was counted.
    """
    name = pl.col("name").cast(pl.String)
    launchers = {**ATTENTION, **BACKWARD}
    kinds = (
        operators.select("rank", name, pl.col("shapes", "dtypes").cast(pl.String))
        .filter(name.is_in([*FLOPS, *launchers.values()]))
        .group_by("rank", "name", "shapes", "dtypes")
        .agg(_calls=pl.len())
        .collect()
    )
    by = pl.col("operator").cast(pl.String)
    grouped = kernels.select("rank", name=by).filter(name.is_in(GROUPED)).unique().collect()
    asked = kinds.filter(name.is_in(list(FLOPS))).filter(
        ~name.is_in(GROUPED) | pl.struct("rank", name).is_in(grouped.to_struct("_").implode())
    )
    each = [flops_of(*row) for row in asked.select("name", "shapes", "dtypes").iter_rows()]
    counted = asked.with_columns(_flops=pl.Series(each, dtype=pl.Float64))
    told = pl.col("_flops").is_not_null()
    summed = counted.group_by("rank").agg(
        operators=pl.col("_calls").filter(told).sum().cast(pl.Int64),
        unknown=pl.col("_calls").filter(~told).sum().cast(pl.Int64),
        flops=(pl.col("_flops") * pl.col("_calls")).sum().round().cast(pl.Int64),
    )
    length = pl.col("end") - pl.col("start")
    known = launch_counted(dict(kinds.group_by("name").agg(pl.col("_calls").sum()).iter_rows()))
    work = (
        kernels.filter(pl.col("family").cast(pl.String).is_in(MATRIX_WORK))
        .group_by("rank")
        .agg(matrix_time=length.sum(), known_time=length.filter(by.is_in(known)).sum())
    )
    return summed.lazy().join(work, on="rank").select(*step_flops.columns).sort("rank")


def launch_counted(calls: Mapping[str, int]) -> list[str]:
    """The operators whose kernels do FLOPs that are counted, where each name was called so often.

    What launches attention is among them where each call was made by one that is counted.
    """
    outer = {**ATTENTION, **BACKWARD}
    return [*FLOPS, *(inner for name, inner in outer.items() if calls.get(name) == calls.get(inner))]


def flops_of(name: str, shapes: str | None, dtypes: str | None) -> float | None:
    """FLOPs of one call, on real numbers; None for another operator, and where its shapes do not tell."""
    try:
        each = PER_REAL if COMPLEX in (dtypes or "") else 2 if PAIRS in (dtypes or "") else 1
        found = float(FLOPS[name](json.loads(shapes or "[]"))) * each
    except (KeyError, ValueError, IndexError, TypeError, OverflowError, RecursionError):
        return None
    return found if 0 <= found <= MOST else None
