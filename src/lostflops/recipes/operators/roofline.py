"""How far each operator is from what the hardware can do with its shapes."""

from __future__ import annotations

from typing import Annotated, Any

import polars as pl

from lostflops.columns import Bytes, Count, Id, Name, Number, Ratio, Text, Time
from lostflops.naming.cards import TERA, achievable, bandwidth, peak
from lostflops.recipe import Example, Points, recipe
from lostflops.recipes.compute.flops import flops_of
from lostflops.recipes.operators.traffic import bytes_of, precision_of
from lostflops.tables import Ranks

KINDS = ["rank", "name", "shapes", "dtypes", "precision"]
BF16 = '["c10::BFloat16","c10::BFloat16"]'
NO_ROOF = 1.05  # of the peak: more than clocks may differ by, so an input is wrong


def _launch(at: int, start: int, time: int) -> dict[str, Any]:
    return {"start": start, "end": start + time, "thread": 7, "launch_start": at, "device": 0}


@recipe(
    question="How far is each operator from the roof that its shapes have on this GPU?",
    scope="rank",
    plot=Points(x="intensity", y="achieved", log=True),
    columns={
        "rank": Id("rank"),
        "name": Name("operator"),
        "shapes": Text("input shapes"),
        "precision": Name("precision of the arithmetic; null where neither types nor kernels tell"),
        "calls": Count("how often it ran; in steps that count, where the rank has any"),
        "time": Time("kernels launched in it, added up; in steps that count, where the rank has any"),
        "flops": Count("FLOPs of one call; attention without regard to a mask, unless causal"),
        "bytes": Bytes("what one call at least reads and writes, with nothing in a cache before"),
        "intensity": Number("FLOPs per byte", unit="FLOP/B"),
        "achieved": Number("FLOPs per second", unit="TFLOP/s"),
        "moved": Number("bytes per second", unit="TB/s"),
        "peak": Number(
            "what the GPU computes in this precision, dense; null for element-wise work", unit="TFLOP/s"
        ),
        "bandwidth": Number("what its memory gives", unit="TB/s"),
        "bound": Name(
            "which roof is lower here: compute or memory; 'above the roof' where an input must be wrong"
        ),
        "roof_time": Time("what the calls would take at the lower roof"),
        "roof_share": Ratio("roof_time / time; above 1 where caches serve what memory need not"),
        "achievable_share": Ratio(
            "the same against the best 16-bit product measured on this card; null where memory is the roof"
        ),
    },
    examples=[
        Example(
            "a product that the tensor cores limit, and a sum that memory limits",
            given={
                "operators": [
                    {"start": 0, "end": 9, "name": "aten::mm", "thread": 7, "dtypes": BF16}
                    | {"shapes": "[[8944,1024],[1024,2816]]"},
                    {"start": 10, "end": 19, "name": "aten::add", "thread": 7, "dtypes": BF16}
                    | {"shapes": "[[8944,1024],[8944,1024]]"},
                    {"start": 20, "end": 29, "name": "aten::relu", "thread": 7, "shapes": "[[2]]"},
                ],
                "kernels": [_launch(5, 0, 84_456), _launch(15, 90_000, 20_500), _launch(25, 120_000, 70)],
                "ranks": [{"device_kind": "gpu", "gpu": "NVIDIA H100 80GB HBM3"}],
            },
            expect=[
                {"rank": 0, "name": "aten::mm", "shapes": "[[8944,1024],[1024,2816]]", "precision": "bf16"}
                | {"calls": 1, "time": 84_456, "flops": 51_581_550_592, "bytes": 74_457_088}
                | {"intensity": 51_581_550_592 / 74_457_088, "achieved": 51_581_550_592 / 84_456 / 1000}
                | {"moved": 74_457_088 / 84_456 / 1000, "peak": 989.4, "bandwidth": 3.35}
                | {"bound": "compute", "roof_time": 52_134, "roof_share": 52_134 / 84_456}
                | {"achievable_share": 51_581_550_592 / 84_456 / 1000 / (989.4 * 0.803)},
                {"rank": 0, "name": "aten::add", "shapes": "[[8944,1024],[8944,1024]]", "precision": "bf16"}
                | {"calls": 1, "time": 20_500, "flops": None, "bytes": 54_951_936, "intensity": None}
                | {"achieved": None, "moved": 54_951_936 / 20_500 / 1000, "peak": None, "bandwidth": 3.35}
                | {"bound": "memory", "roof_time": 16_404, "roof_share": 16_404 / 20_500}
                | {"achievable_share": None},
            ],
        ),
        Example(
            "on an unknown card there is no roof, unless its rates are given",
            given={
                "operators": [
                    {"start": 0, "end": 9, "name": "aten::mm", "thread": 7, "dtypes": BF16}
                    | {"shapes": "[[100,200],[200,500]]"},
                ],
                "kernels": [_launch(5, 0, 400)],
                "ranks": [{"device_kind": "gpu", "gpu": "a card of tomorrow"}],
            },
            options={"peak_tflops": 100.0},
            expect=[
                {"flops": 20_000_000, "achieved": 50.0, "peak": 100.0, "bandwidth": None, "bound": None}
                | {"roof_time": None, "roof_share": None, "achievable_share": None}
            ],
        ),
    ],
)  # fmt: skip
def roofline(
    operator_times: pl.LazyFrame,
    ranks: Ranks,
    *,
    peak_tflops: Annotated[float | None, "measured peak of the GPU, TFLOP/s, for all precisions"] = None,
    memory_tbps: Annotated[float | None, "measured bandwidth of its memory, TB/s"] = None,
    causal: Annotated[bool, "count half of each attention"] = False,
) -> pl.LazyFrame:
    """Hold each operator and shape against the lower of two roofs: arithmetic and memory.

    FLOPs and bytes are worked out from recorded shapes and types, for matrix products, attention and
    element-wise work; operators whose shapes do not tell are left out, compiled ones among them. Peaks are
    dense data-sheet rates at boost clocks; an unknown card has none. A small operator is far from both roofs
    because starting it takes longer.
    """
    # What tunes or warms up before the steps is as long as it likes.
    counts = pl.col("in_steps").filter(pl.col("device_total") > 0).sum().over("rank") > 0
    kinds = (
        operator_times.with_columns(
            time=pl.when(counts).then("in_steps").otherwise("device_total"),
            calls=pl.when(counts).then("calls_in_steps").otherwise("calls"),
        )
        .group_by(KINDS)
        .agg(pl.col("calls", "time").sum())
        .filter(pl.col("time") > 0)
        .collect()
    )
    gpus = ranks.select("rank", "gpu").collect()
    gpu_of = dict(zip(gpus["rank"].to_list(), gpus["gpu"].cast(pl.String).to_list(), strict=True))
    rows = [
        _row(gpu_of.get(row["rank"]) or "", row, peak_tflops, memory_tbps, causal)
        for row in kinds.iter_rows(named=True)
    ]
    schema: dict[str, Any] = {name: column.dtype for name, column in roofline.columns.items()}
    table = pl.DataFrame([r for r in rows if r is not None], schema=schema | {"rank": pl.Int32})
    order = ("rank", "time", "name", "shapes", "precision", "calls", "bytes")  # types tell in the last alone
    return table.lazy().sort(*order, descending=[name == "time" for name in order])


def _row(
    gpu: str, row: dict[str, Any], peak_tflops: float | None, memory_tbps: float | None, causal: bool
) -> dict[str, Any] | None:
    name, calls, time = row["name"], row["calls"], row["time"]
    asked = name, row["shapes"], row["dtypes"]
    flops, moved = flops_of(*asked), bytes_of(*asked)
    if flops is None and moved is None:
        return None
    if flops is not None and causal and "attention" in name:
        flops /= 2
    precision = precision_of(row["dtypes"]) or row["precision"]
    rate = _rate(gpu, precision, peak_tflops) if flops is not None else None
    memory = memory_tbps * TERA if memory_tbps else bandwidth(gpu)
    compute_ns = None if flops is None or rate is None else calls * flops / rate * 1e9
    memory_ns = None if moved is None or memory is None else calls * moved / memory * 1e9
    known = [ns for ns in (compute_ns, memory_ns) if ns is not None]
    # Without one of the two that count, the lower roof is not known.
    whole = memory_ns is not None and (flops is None or compute_ns is not None)
    bound = None
    if whole:
        bound = "compute" if (compute_ns or 0) >= (memory_ns or 0) else "memory"
    if compute_ns is not None and compute_ns > NO_ROOF * time:
        bound = "above the roof"
    roof = round(max(known)) if whole and bound != "above the roof" else None
    best = achievable(gpu) if precision in ("bf16", "fp16") and bound == "compute" else None
    achieved = None if flops is None else calls * flops / time / 1000
    return {
        "rank": row["rank"],
        "name": name,
        "shapes": row["shapes"],
        "precision": precision,
        "calls": max(1, round(calls)),
        "time": time,
        "flops": None if flops is None else round(flops),
        "bytes": moved,
        "intensity": flops / moved if flops is not None and moved else None,
        "achieved": achieved,
        "moved": None if moved is None else calls * moved / time / 1000,
        "peak": None if rate is None else rate / TERA,
        "bandwidth": None if memory is None else memory / TERA,
        "bound": bound,
        "roof_time": roof,
        "roof_share": None if roof is None else roof / time,
        "achievable_share": achieved / (rate / TERA * best) if best and rate and achieved else None,
    }


def _rate(gpu: str, precision: str | None, measured: float | None) -> float | None:
    if measured:
        return measured * TERA
    return peak(gpu, precision) if precision else None
