"""Published and measured speeds beside this planner's predictions, row by row, with the deviation.

A row either *calibrates* a constant or is *held out*. No row has a constant of its own: the cards and the
constants are those that every plan is made with, but for the one factor of a power limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from . import hardware, models
from .hardware import Gpu
from .serve import inference
from .shape import Shape
from .train.activation_memory import Checkpointing
from .train.job import Prediction, Training
from .train.layout import Layout
from .train.static_memory import OPTIMIZERS

ADAM = OPTIMIZERS["adam"]
# Of its rates that an H100 reaches at 500 W instead of 700: calibrated with torchtitan's compiled run.
LIMITED = 0.76
GIB = 1 << 30


@dataclass(frozen=True)
class Speed:
    """One published number: tokens or operations per second, and what the planner says."""

    table: str
    name: str
    published: float
    predicted: float
    how: str
    calibrates: str = ""  # which constant; a row without one is held out
    memory: tuple[float, float] | None = None  # GiB published (reserved by the allocator) and predicted

    @property
    def deviation(self) -> float:
        """Of the prediction from the published number, as a share of that."""
        return self.predicted / self.published - 1


def titan_h100() -> Gpu:
    """torchtitan's H100: 500 W, 96 GB of HBM2e at 2.4 TB/s (its benchmarks)."""
    card = hardware.gpu("h100")
    return msgspec.structs.replace(
        card,
        memory=96 * GIB,
        memory_bandwidth=2.4e12,
        matmul=LIMITED * (card.matmul or card.sustained),
        attention=LIMITED * (card.attention or card.sustained),
    )


def rows() -> tuple[Speed, ...]:
    """All tables, row by row."""
    return (*_titan(), *_llama(), *_deepseek(), *_decoding())


PublishedNumber = tuple[str, int, int, int, int, Checkpointing, str, dict[str, Any], float, float | None, str]
# Model, GPUs, sequence, microbatch, microbatches, checkpointing, other, layout, tokens/s and GPU, GiB, what
# it calibrates.
A100: tuple[PublishedNumber, ...] = (
    ("llama-3-8b", 64, 8192, 1, 1, "alternate", "", {}, 2973, None, ""),
    ("llama-3-70b", 64, 8192, 1, 1, "full", "", {}, 331, None, "TRAINED"),
    ("llama-2-13b", 64, 4096, 2, 1, "none", "", {}, 2162, None, ""),
    ("llama-2-13b", 64, 4096, 2, 1, "alternate", "", {}, 1904, None, ""),
    ("llama-2-70b", 64, 4096, 1, 1, "alternate", "", {}, 355, None, ""),
    ("llama-2-70b", 64, 4096, 2, 1, "full", "", {}, 353, None, "TRAINED"),
)
MANY = {"tensor": 8, "sequence_parallel": True}
DEEP = MANY | {"pipeline": 8}
WEAVED = DEEP | {"schedule": "interleaved", "chunks": 2}
H100: tuple[PublishedNumber, ...] = (
    ("llama-3.1-8b", 8, 8192, 2, 1, "alternate", "", {}, 5762, 82.4, ""),
    ("llama-3.1-8b", 8, 8192, 2, 1, "alternate", "compiled", {}, 6667, 77.0, "LIMITED"),
    ("llama-3.1-8b", 8, 8192, 2, 1, "alternate", "compiled, FP8", {}, 8532, 76.8, "FP8 gain"),
    ("llama-3.1-8b", 128, 8192, 2, 1, "alternate", "", {}, 5605, 67.0, ""),
    ("llama-3.1-8b", 128, 8192, 2, 1, "alternate", "compiled", {}, 6514, 62.0, ""),
    ("llama-3.1-8b", 128, 8192, 2, 1, "alternate", "compiled, FP8", {}, 8380, 61.8, ""),
    ("llama-3.1-8b", 8, 32768, 1, 1, "full", "compiled, FP8", {}, 3890, 83.9, ""),
    ("llama-3.1-8b", 8, 65536, 1, 1, "full", "compiled, FP8", {"context": 2}, 2540, 84.2, "RING"),
    ("llama-3.1-8b", 8, 131072, 1, 1, "full", "compiled, FP8", {"context": 4}, 1071, 84.0, "RING"),
    ("llama-3.1-8b", 8, 262144, 1, 1, "full", "compiled, FP8", {"context": 8}, 548, 84.5, "RING"),
    ("llama-3.1-70b", 256, 8192, 16, 1, "full", "compiled, FP8", MANY, 829, 71.9, ""),
    ("llama-3.1-70b", 256, 8192, 16, 1, "full", "compiled, FP8, async", MANY, 876, 67.6, ""),
    ("llama-3.1-405b", 512, 8192, 4, 8, "full", "compiled, FP8, async", DEEP, 100, 82.5, ""),
    ("llama-3.1-405b", 512, 8192, 4, 8, "full", "compiled, FP8, async", WEAVED, 128, 72.7, ""),
    ("llama-3.1-405b", 512, 32768, 1, 8, "full", "compiled, FP8, async", DEEP, 76, 75.3, ""),
    ("llama-3.1-405b", 512, 65536, 1, 8, "full", "compiled, FP8, async", DEEP | {"context": 2}, 47, 75.9, ""),
    (
        "llama-3.1-405b",
        512,
        131072,
        1,
        8,
        "full",
        "compiled, FP8, async",
        DEEP | {"context": 4},
        31,
        77.1,
        "",
    ),
    (
        "llama-3.1-405b",
        512,
        262144,
        1,
        8,
        "full",
        "compiled, FP8, async",
        DEEP | {"context": 8},
        16,
        84.9,
        "",
    ),
)
TITAN = "torchtitan, tokens/s and GPU: Llama with FSDP2 on A100 (its docs/performance.md)"
TITAN_H100 = "torchtitan, tokens/s and GPU: Llama 3.1 on H100 at 500 W (its benchmarks, 2024-12)"


def _titan() -> Iterator[Speed]:
    for table, card, runs in ((TITAN, hardware.gpu("a100"), A100), (TITAN_H100, titan_h100(), H100)):
        for run in runs:
            yield _run(table, card, run)


def _run(table: str, card: Gpu, run: PublishedNumber) -> Speed:
    model, gpus, sequence, batch, batches, checkpointing, other, more, published, memory, calibrates = run
    now = Prediction(
        Training(
            models.named(model),
            card,
            hardware.link(card.link),
            Layout(gpus, sharding="fsdp2", **more),
            ADAM,
            sequence,
            batch,
            batches,
            checkpointing=checkpointing,
            kernels="fused" if "compiled" in other else "eager",
            fp8="FP8" in other,
            async_tensor="async" in other,
        )
    )
    named = [f"{name} {size}" for name, size in more.items() if name != "sequence_parallel"]
    how = ", ".join([f"checkpointing {checkpointing}", *([other] if other else ["eager"]), *named])
    name = f"{model}, {gpus} GPUs, {batches * batch} x {sequence:,}"
    found = None if memory is None else (memory, now.reserved / GIB)
    return Speed(table, name, published, now.tokens_per_second_and_gpu, how, calibrates, found)


LLAMA = "Llama 3 405B on H100, TFLOP/s and GPU (Llama 3 paper, table 4; attention counted whole, as MFU does)"
LLAMA_RUNS = ((8192, 8192, 1, 32, 430), (16384, 8192, 1, 16, 400), (16384, 131072, 16, 16, 380))
CHUNKS = 4  # pieces per pipeline stage: the paper says that there are several, not how many


def _llama() -> Iterator[Speed]:
    model, card = models.named("llama-3.1-405b"), hardware.gpu("h100")
    for gpus, sequence, context, batches, published in LLAMA_RUNS:
        here = Layout(
            gpus, 8, sequence_parallel=True, pipeline=16, schedule="interleaved", chunks=CHUNKS,
            context=context, sharding="fsdp2",
        )  # fmt: skip
        now = Prediction(
            Training(
                model,
                card,
                hardware.link(card.link),
                here,
                ADAM,
                sequence,
                microbatches=batches,
                kernels="fused",
            )
        )
        rate = now.tokens_per_second_and_gpu * _counted(model, sequence) / 1e12
        how = f"tensor 8, pipeline 16 in {CHUNKS} pieces a stage (assumed), context {context}"
        yield Speed(LLAMA, f"{gpus:,} GPUs, {batches} x {sequence:,} a rank", published, rate, how)


def _counted(model: Shape, sequence: int) -> float:
    """Operations per token as model FLOPs utilisation counts them: 6 N, and attention's whole square."""
    return 6 * model.parameters() + 12 * model.layers * model.query_width * sequence


def _deepseek() -> Iterator[Speed]:
    card = hardware.gpu("h800")
    now = Prediction(
        Training(
            models.named("deepseek-v3"),
            card,
            hardware.link(card.link),
            Layout(2048, pipeline=16, expert=64, schedule="dualpipe", sharding="zero-1"),
            ADAM,
            4096,
            microbatches=120,
            kernels="fused",
            fp8=True,
            fine=True,
        )
    )
    table = "DeepSeek-V3 on 2,048 H800, tokens/s and GPU (its report: 180,000 GPU hours for 1e12 tokens)"
    how = (
        "DualPipe, pipeline 16, expert 64, FP8 by block, one more token predicted; recomputed norms left out"
    )
    yield Speed(table, "120 x 4,096 a pipeline", 1e12 / (180e3 * 3600), now.tokens_per_second_and_gpu, how)


DECODING = "gpt-fast, tokens/s of one sequence (its README, A100 at 330 W; MI250X is one half)"
# Model, weight bits, GPUs, tokens/s, what it calibrates.
DECODED = (
    ("llama-2-7b", 16, 1, 104.9, "layer_ns"),
    ("llama-2-7b", 8, 1, 155.58, ""),
    ("llama-2-7b", 4, 1, 196.8, ""),
    ("llama-2-70b", 8, 1, 19.13, "UNPACKING"),
    ("llama-2-70b", 4, 1, 25.25, "UNPACKING"),
    ("llama-2-7b", 16, 2, 168.84, "ALL_REDUCE"),
    ("llama-2-7b", 16, 4, 254.02, ""),
    ("llama-2-7b", 16, 8, 328.43, ""),
    ("llama-2-70b", 16, 2, 21.32, ""),
    ("llama-2-70b", 16, 4, 38.01, ""),
    ("llama-2-70b", 16, 8, 62.5, ""),
    ("llama-2-70b", 8, 8, 80.44, ""),
    ("llama-2-70b", 4, 8, 90.77, ""),
    ("mixtral-8x7b", 16, 2, 78.75, ""),
    ("mixtral-8x7b", 16, 4, 118.23, "PICKED"),
    ("mixtral-8x7b", 16, 8, 203.69, ""),
    ("mixtral-8x7b", 8, 1, 56.04, ""),
    ("mixtral-8x7b", 8, 2, 99.91, ""),
    ("mixtral-8x7b", 8, 4, 149.53, ""),
    ("mixtral-8x7b", 8, 8, 218.48, ""),
)
ON_AMD = ((16, 76.33, "layer_ns of AMD"), (8, 101.86, ""))
PROMPT, GENERATED = 5, 200  # tokens: its prompt, and its default


def _decoding() -> Iterator[Speed]:
    for model, bits, gpus, published, calibrates in DECODED:
        yield _decoded(hardware.gpu("a100"), model, bits, gpus, published, calibrates)
    half = hardware.gpu("mi250x")
    for bits, published, calibrates in ON_AMD:
        yield _decoded(half, "llama-2-7b", bits, 1, published, calibrates)


def _decoded(card: Gpu, model: str, bits: int, gpus: int, published: float, calibrates: str) -> Speed:
    asked = inference.Serving(
        models.named(model), card, hardware.link(card.link), Layout(gpus, gpus), PROMPT, GENERATED,
        weight_bits=bits, group=32 if bits == 4 else 0,
    )  # fmt: skip
    token = inference.Served(asked).paces[1].ns
    return Speed(
        DECODING, f"{model}, {gpus} {card.name}", published, 1e9 / token, f"{bits}-bit weights", calibrates
    )


# vTrain's 109 measured runs of GPT on A100 are compared by `python benchmarks/planner.py`, where they lie.
# FLOP/s in matrix products on its A100: from its 1,440 runs on one node, by `one_node` of that benchmark.
VTRAIN_MATMUL = 229e12


def vtrain_job(
    hidden: int,
    heads: int,
    layers: int,
    sequence: int,
    tensor: int,
    data: int,
    pipeline: int,
    batch: int,
    global_batch: int,
) -> Training:
    """One of vTrain's runs: Megatron of 2021, full recomputation, kept scores; 100 GB/s a node (inferred).

    Its A100 as its runs on one node measured it, which are others than the 109 on many.
    """
    card = msgspec.structs.replace(hardware.gpu("a100"), network=12.5e9, matmul=VTRAIN_MATMUL)
    gpt = replace(
        models.named("gpt-175b"), name="gpt", hidden=hidden, feed_forward=4 * hidden, layers=layers,
        heads=heads, kv_heads=heads, head_size=hidden // heads, positions=sequence, longest=sequence,
    )  # fmt: skip
    return Training(
        gpt,
        card,
        hardware.link(card.link),
        Layout(tensor * data * pipeline, tensor, pipeline=pipeline),
        ADAM,
        sequence,
        batch,
        global_batch // (data * batch),
        checkpointing="full",
        kernels="fused",
        attention="scores",
        overlapped=False,
    )


def lines() -> Iterator[str]:
    """The tables in Markdown."""
    table = ""
    for row in rows():
        if row.table != table:
            table = row.table
            yield from ("", f"**{table}**", "", "| | published | predicted | deviation | | how |")
            yield "| --- | --- | --- | --- | --- | --- |"
        role = f"calibrates {row.calibrates}" if row.calibrates else "held out"
        yield (
            f"| {row.name} | {row.published:,.4g} | {row.predicted:,.4g} | {row.deviation:+.1%} | {role} "
            f"| {row.how} |"
        )
