"""How much of the GPU's peak a training step uses: MFU and HFU, with all that they were worked out from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import polars as pl

from lostflops.columns import Count, Id, Name, Number, Ratio, Text, Time
from lostflops.naming.cards import TERA, achievable
from lostflops.recipe import Bars, Example, recipe
from lostflops.recipes.operators.counted_flops import Rate, Work, counted, gap, weighted
from lostflops.tables import Kernels, Ranks

MOST_TOLD = 2**63  # FLOPs per step: more fit no column, and no GPU does them
FROM_SHAPES = "2mnk of each matrix product, 2 products of each attention (4 backward), as shapes tell"

STEPS = [{"step": 0, "start": 0, "end": 1_000_000}, {"step": 1, "start": 1_000_000, "end": 2_000_000}]
BF16 = '["c10::BFloat16","c10::BFloat16"]'
PRODUCT = {"name": "aten::mm", "thread": 7, "shapes": "[[2000,3000],[3000,5000]]", "dtypes": BF16}
WORK = {"thread": 7, "device": 0, "family": "gemm", "operator": "aten::mm", "precision": "bf16"}


@recipe(
    question="What share of the GPU's peak does training use (MFU, HFU), and how was that worked out?",
    scope="rank",
    plot=Bars(x="rank", y=("mfu", "hfu")),
    columns={
        "rank": Id("rank"),
        "model_flops": Count("FLOPs of the model per step: forward and backward, nothing twice"),
        "hardware_flops": Count("FLOPs per step that ran, recomputation included"),
        "formula": Text("how the model's FLOPs were counted"),
        "parameters": Count("N of the formula; null where FLOPs are counted from shapes"),
        "attention": Name("whether attention is counted in full or as causal, which is half of it"),
        "precision": Name("precision of the peak; several are weighted by their FLOPs"),
        "peak": Number("dense rate of the GPU in that precision", unit="TFLOP/s"),
        "step_time": Time("mean step"),
        "mfu": Ratio("model_flops / (step_time x peak); null where something is not known"),
        "hfu": Ratio("the same of hardware_flops"),
        "of_achievable": Ratio("MFU against the best product measured on this card instead of its peak"),
        "at_peak": Time("what the model's FLOPs of all steps would take at the peak", label="time at peak"),
        "again_at_peak": Time("what the recomputed FLOPs of all steps would take at the peak"),
        "unknown": Text("why there is no MFU; null where there is one"),
    },
    examples=[
        Example(
            "a product, its recomputation, and two of the backward pass, in two steps of 1 ms",
            given={
                "operators": [
                    {"start": at, "end": at + 9, "phase": phase} | PRODUCT
                    for at, phase in (
                        (0, "forward"), (10, "recompute"), (20, "backward"), (30, "backward"),
                    )
                ],
                "kernels": [
                    {"start": at * 500, "end": at * 500 + 400_000, "launch_start": at} | WORK
                    for at in (5, 15, 25, 35)
                ],
                "steps": STEPS,
                "ranks": [{"device_kind": "gpu", "gpu": "NVIDIA A100-SXM4-80GB"}],
            },
            expect=[
                {"rank": 0, "model_flops": 90_000_000_000, "hardware_flops": 120_000_000_000}
                | {"formula": FROM_SHAPES, "parameters": None, "attention": "in full", "precision": "bf16"}
                | {"peak": 312.0, "step_time": 1_000_000, "mfu": 90 / 312, "hfu": 120 / 312}
                | {"of_achievable": 90 / 312 / 0.869, "at_peak": 576_923, "again_at_peak": 192_308}
                | {"unknown": None}
            ],
        ),
        Example(
            "with N, layers, width, sequence and tokens given, the formula counts",
            given={
                "steps": STEPS,
                "ranks": [{"device_kind": "gpu", "gpu": "NVIDIA A100-SXM4-80GB"}],
            },
            options={"parameters": 1_000_000, "layers": 2, "width": 64, "sequence": 128, "tokens": 4096}
            | {"peak_tflops": 200.0, "causal": True},
            expect=[
                {"model_flops": 4096 * (6 * 1_000_000 + 6 * 2 * 64 * 128), "hardware_flops": None}
                | {"formula": "(6N + 6LHQT) x tokens", "parameters": 1_000_000, "attention": "as causal"}
                | {"precision": "as given", "peak": 200.0, "mfu": 4096 * 6_098_304 / 200e9, "hfu": None}
            ],
        ),
        Example(
            "a card that is not known has no peak, and nothing takes its place",
            given={
                "operators": [{"start": 0, "end": 9, "phase": "forward"} | PRODUCT],
                "kernels": [{"start": 0, "end": 400_000, "launch_start": 5} | WORK],
                "steps": STEPS,
                "ranks": [{"device_kind": "gpu", "gpu": "a card of tomorrow"}],
            },
            expect=[
                {"model_flops": 30_000_000_000, "peak": None, "mfu": None, "at_peak": None}
                | {"unknown": "the peak of 'a card of tomorrow' in bf16 is not known: --peak-tflops gives it"}
            ],
        ),
    ],
)  # fmt: skip
def model_flops(
    operator_times: pl.LazyFrame | None,
    kernels: Kernels | None,
    counted_steps: pl.LazyFrame,
    step_totals: pl.LazyFrame,
    ranks: Ranks,
    *,
    parameters: Annotated[int | None, "N, without embeddings where the formula is torchtitan's"] = None,
    layers: Annotated[int, "L of the formula"] = 0,
    width: Annotated[int, "heads x their width, HQ of the formula"] = 0,
    sequence: Annotated[int, "T of the formula"] = 0,
    tokens: Annotated[int | None, "tokens of a step of a rank; needed for the formula"] = None,
    peak_tflops: Annotated[float | None, "measured or other peak of the GPU, TFLOP/s"] = None,
    causal: Annotated[bool, "count half of each attention"] = False,
) -> pl.LazyFrame:
    """Divide the FLOPs of a step by what the GPU could do in its time.

    From shapes, every matrix product and attention that ran counts, masks not regarded; what a backward pass
    computes again counts for HFU alone. With `--parameters` and `--tokens` the model's FLOPs are
    (6N + 12LHQT) x tokens; a model of experts has as N what one token uses. Peaks are dense. A share above 1
    means that an input is wrong, and is not given.
    """
    formula = None
    if parameters is not None and tokens is not None:
        each = 6.0 * parameters + (6 if causal else 12) * layers * width * sequence
        formula = tokens * each
    works = counted(operator_times, kernels, counted_steps, causal)
    given = ranks.group_by("rank").agg(pl.col("gpu").cast(pl.String).first())
    steps = step_totals.filter(pl.col("step_time") > 0).join(given, on="rank", how="left").collect()
    rows: list[dict[str, Any]] = []
    for row in steps.iter_rows(named=True):
        rank, gpu = row["rank"], row["gpu"] or ""
        work = works.get(rank, Work())
        unknown = "" if formula is not None else gap(work)
        rate = Rate(peak_tflops * TERA, "as given") if peak_tflops else weighted(gpu, work)
        per_step = (work.model / row["steps"], work.again / row["steps"])
        model, hardware = (formula, None) if formula is not None else (per_step[0], sum(per_step))
        if formula is None and work.hidden:
            model = None
        rows.append(
            {
                "rank": rank,
                "model_flops": round(model) if model and model < MOST_TOLD else None,
                "hardware_flops": None if not hardware else round(hardware),
                "formula": FROM_SHAPES if formula is None else f"(6N + {6 if causal else 12}LHQT) x tokens",
                "parameters": None if formula is None else parameters,
                "attention": "as causal" if causal else "in full",
                "precision": rate.precision,
                "peak": None if rate.flops is None else rate.flops / TERA,
                "step_time": row["step_time"] // row["steps"],
            }
            | _shares(row, model, hardware, rate, unknown, achievable(gpu) if not peak_tflops else None)
        )
    schema: dict[str, Any] = {name: column.dtype for name, column in model_flops.columns.items()}
    return pl.DataFrame(rows, schema=schema | {"rank": pl.Int32}).lazy().sort("rank")


def _shares(
    row: Mapping[str, Any],
    model: float | None,
    hardware: float | None,
    rate: Rate,
    unknown: str,
    best: float | None,
) -> dict[str, Any]:
    none = dict[str, Any].fromkeys(("mfu", "hfu", "of_achievable", "at_peak", "again_at_peak"))
    why = unknown or ("" if rate.flops else rate.why)
    if why or rate.flops is None:
        return none | {"unknown": why}
    could = rate.flops * row["step_time"] / row["steps"] / 1e9
    most = max(model or 0, hardware or 0) / could
    if most > 1:
        return none | {"unknown": f"{most:.0%} of the peak cannot be: check card, peak and counts"}
    hfu = None if hardware is None else hardware / could
    if model is None:
        again = "the backward pass computes parts again that nothing tells apart: HFU alone is known"
        return none | {"hfu": hfu, "unknown": again}
    at_peak = round(model / rate.flops * 1e9 * row["steps"])
    both = None if hardware is None else round(hardware / rate.flops * 1e9 * row["steps"])
    return {
        "mfu": model / could,
        "hfu": hfu,
        "of_achievable": model / could / best if best and rate.precision in ("bf16", "fp16") else None,
        "at_peak": at_peak,
        "again_at_peak": None if both is None else both - at_peak,
        "unknown": None,
    }
