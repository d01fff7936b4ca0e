"""Names that are found again in another run."""

from __future__ import annotations

import polars as pl
import pytest

from lostflops.naming.counterparts import VOLATILE, Volatile, counterpart


def found(*names: str | None) -> list[str | None]:
    return (
        pl.DataFrame({"name": names}, schema={"name": pl.String})
        .select(counterpart(pl.col("name")))["name"]
        .to_list()
    )


@pytest.mark.parametrize("part", VOLATILE, ids=lambda part: part.example[:40])
def test_each_part_has_an_example(part: Volatile) -> None:
    assert found(part.example) == [part.found_again]


@pytest.mark.parametrize(
    "name",
    ["ampere_sgemm_128x64_nn", "aten::add_", "aten::mm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
     "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4>(Params)",
     "triton_poi_fused_add", "cudnn_convolution", "hipblaslt_kernel", "AddBackward0"],
)  # fmt: skip
def test_what_tells_two_apart_stays(name: str) -> None:
    assert found(name) == [name]


def test_nothing_stays_nothing_and_a_name_found_again_is_found_again() -> None:
    assert found(None) == [None]
    once = [part.found_again for part in VOLATILE]
    assert found(*once) == once
