"""Published sizes beside what this planner computes: where they differ by over 1 %, the row says why.

`computed` is always exact in parameters; where the source used a nominal count a second row repeats it with
that. A None stands for what could not be reproduced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from . import hardware, models, published_speeds, shape
from .published_speeds import GIB
from .train.activation_memory import Kernels, kept_bytes, layer_bytes
from .train.job import CUDA_CONTEXT, Prediction, Training
from .train.layout import Layout
from .train.static_memory import OPTIMIZERS, Lora, states

ADAM = OPTIMIZERS["adam"]
NOMINAL_70B = "the source takes 70e9 parameters; there are 68,976,648,192"
ROUNDED = "the source rounds to one digit"


@dataclass(frozen=True)
class PublishedNumber:
    """One published number in GB, or in `unit`."""

    table: str
    name: str
    published: float
    computed: float | None
    recipe: str
    why: str = ""
    unit: str = "GB"

    @property
    def difference(self) -> float | None:
        """Of the computed number from the published, as a share of that."""
        return None if self.computed is None else self.computed / self.published - 1


def rows() -> tuple[PublishedNumber, ...]:
    """All published tables, row by row."""
    return (
        *_zero(),
        *_estimators(),
        *_korthikanti(),
        *_megatron(),
        *_llama(),
        *_mistral(),
        *_mixture(),
        *_torchtitan(),
    )


def _zero() -> Iterator[PublishedNumber]:
    table = "ZeRO paper, 7.5e9 parameters on 64 GPUs"
    for stage, published in enumerate((120, 31.4, 16.6, 1.88)):
        name = f"stage {stage}" if stage else "none"
        computed = sum(states(7_500_000_000, ADAM, stage, 64)) / 1e9
        yield PublishedNumber(table, name, published, computed, "2 + 2 + 12 bytes per parameter, sharded")


def _llama() -> Iterator[PublishedNumber]:
    table = "Llama-2-70B, 4,096 tokens, batch 1 (Grace Hopper talk, 2024)"
    model, here, tokens = models.named("llama-2-70b"), Layout(), 4096
    count, layer = model.parameters(), shape.elements(model.layer(0))
    lora = Lora()  # PEFT's default adapters on q and v, fp32, without dropout
    one = layer_bytes(model, 0, tokens, here, lora)
    inputs = kept_bytes(model, 0, tokens, here, lora, "full")
    pure = OPTIMIZERS["adam-16bit"]
    exact = "exact count"
    yield PublishedNumber(table, "parameters, LoRA", 140, 2 * count / 1e9, f"2 bytes, {exact}", NOMINAL_70B)
    yield PublishedNumber(table, "the same", 140, 2 * 70e9 / 1e9, "2 bytes, nominal 70e9")
    yield PublishedNumber(
        table, "parameters, full", 560, sum(states(count, pure)) / 1e9, f"8 bytes, {exact}", NOMINAL_70B
    )
    yield PublishedNumber(
        table, "the same", 560, sum(states(70 * 10**9, pure)) / 1e9, "8 bytes, nominal: no fp32 master"
    )
    half = "140 / 80 is 1.75: the source divides the nominal count, head and embedding included, and rounds"
    yield PublishedNumber(table, "one layer, LoRA", 1.8, 2 * layer / 1e9, "2 bytes, exact layer", half)
    yield PublishedNumber(
        table, "one layer, full", 7, 8 * layer / 1e9, "8 bytes, exact layer", "560 / 80 of the nominal count"
    )
    yield PublishedNumber(table, "the same", 7, 8 * 70e9 / 80 / 1e9, "8 bytes, nominal / 80")
    yield PublishedNumber(
        table, "activations of a layer, checkpointed", 0.07, inputs / 1e9, "its input", ROUNDED
    )
    yield PublishedNumber(
        table, "activations of a layer", 1.4, one / 1e9, "fp32 adapters on q and v, rank 16"
    )
    fit = "the source names no adapters: other usual ones give 95 to 117"
    yield PublishedNumber(table, "activations", 112, 80 * one / 1e9, "80 layers", fit)
    yield PublishedNumber(
        table, "activations, checkpointed", 6.7, (80 * inputs + one) / 1e9, "80 inputs and a live layer"
    )


def _mistral() -> Iterator[PublishedNumber]:
    table = "Mistral-7B, static (BSC course)"
    nominal = states(7 * 10**9, ADAM)
    names = ("weights", "gradients", "optimizer")
    for name, published, computed in zip(names, (14, 14, 84), nominal, strict=True):
        yield PublishedNumber(table, name, published, computed / 1e9, "nominal 7e9")
    yield PublishedNumber(table, "together", 112, sum(nominal) / 1e9, "nominal 7e9")
    shared = sum(states(7 * 10**9, ADAM, 3, 4)) / 1e9
    yield PublishedNumber(table, "each of four, ZeRO-3", 28, shared, "nominal 7e9")
    count = models.named("mistral-7b").parameters()
    why = "the source takes 7e9 parameters; there are 7,241,732,096"
    yield PublishedNumber(table, "together", 112, sum(states(count, ADAM)) / 1e9, "exact count", why)
    exact = sum(states(count, ADAM, 3, 4)) / 1e9
    yield PublishedNumber(table, "each of four, ZeRO-3", 28, exact, "exact count", why)


def _mixture() -> Iterator[PublishedNumber]:
    """Hidden 7680, 15 layers, two experts of twice the width: 10e9 parameters; 8 x 8,192 tokens."""
    table = "MoE temporaries, 675 tensors (Grace Hopper talk, 2024)"
    tokens, hidden, layers = 8 * 8192, 7680, 15
    state = 2 * tokens * hidden  # one 16-bit hidden state
    for name, published, count in (
        ("below 100 MB, 270 tensors", 0.2, 18),
        ("100-499 MB, 195 tensors", 51.7, 13),
        ("500-999 MB, 60 tensors", 33.3, 4),
    ):
        share = published * 1e9 / count / layers / state
        unknown = (
            f"not comparable: {count} tensors a layer of {share:.2g} hidden states, and the talk says "
            "neither what they are nor how many tokens each expert gets"
        )
        yield PublishedNumber(table, name, published, None, "", unknown)
    nine = 9 * layers * state / 1e9
    yield PublishedNumber(table, "1000-1999 MB, 135 tensors", 135.9, nine, "nine hidden states in each layer")
    yield PublishedNumber(
        table, "over 2000 MB, 15 tensors", 30.2, 2 * layers * state / 1e9, "one of twice the size"
    )
    why = "Korthikanti's 34 bytes are of a dense layer with dropout; the two middle bins are not known"
    yield PublishedNumber(
        table, "together", 251.2, 17 * layers * state / 1e9, "34 bytes per token and width", why
    )


def _estimators() -> Iterator[PublishedNumber]:
    """Per GPU, of what the estimators of DeepSpeed and Accelerate say where they are right."""
    table = "Estimators of DeepSpeed and Accelerate, model states"
    fp32_gradients = OPTIMIZERS["adam-fp32-gradients"]
    for name, gpus in (("llama-3-8b", 8), ("llama-3-70b", 64)):
        model = models.named(name)
        count = model.parameters()
        largest = max(weight.elements // weight.copies for weight in model.weights())
        zero = (4 * largest + 18 * count // gpus) / 1e9
        ours = (sum(states(count, fp32_gradients, 3, gpus)) + 4 * largest) / 1e9
        how = "18 bytes per parameter, sharded, and the largest matrix gathered in fp32"
        yield PublishedNumber(table, f"{name} on {gpus}, DeepSpeed ZeRO-3", zero, ours, how)
    for name, gib, optimizer, how in (
        ("llama-2-70b", 512.59, "adam-16bit", "16 bits, `Training using Adam`"),
        ("llama-2-70b", 1024.0 * 1.0011, "adam-fp32", "32 bits, `Training using Adam`: printed as 1.0 TB"),
    ):
        computed = sum(states(models.named(name).parameters(), OPTIMIZERS[optimizer])) / 2**30
        yield PublishedNumber(table, f"{name}, Accelerate", gib, computed, how, unit="GiB")


def _korthikanti() -> Iterator[PublishedNumber]:
    """Bytes of a GPT layer on one of eight tensor ranks, by the formulas of the paper's table 2."""
    table = "Korthikanti et al. 2022, activations of a layer of GPT-175B, microbatch 1, 8 tensor ranks"
    model, s = models.named("gpt-175b"), 2048
    unit, scores = s * model.hidden, 5 * model.heads * s / model.hidden
    flat, split = Layout(8, 8), Layout(8, 8, sequence_parallel=True)
    kept, flash = Kernels(fused=True, scores=s), Kernels(fused=True)
    statistics = "statistics of rows are counted here and not there"
    for name, published, here, how in (
        ("tensor parallel", unit * (10 + 24 / 8 + scores / 8), flat, kept),
        ("and sequence parallel", unit * (34 + scores) / 8, split, kept),
        ("and flash attention or selective recomputation", unit * 34 / 8, split, flash),
    ):
        computed = layer_bytes(model, 0, s, here, None, how) / 1e6
        yield PublishedNumber(
            table, name, published / 1e6, computed, "sbh (10 + 24/t + 5as/ht), sbh 34/t", statistics, "MB"
        )


# Data-parallel, pipeline and tensor ranks, sequences of a microbatch and of a step; GiB.
MEASURED = (
    (8, 1, 1, 2, 2048, 69.1),
    (4, 1, 2, 4, 512, 55.7),
    (4, 2, 1, 2, 2048, 49.8),
    (1, 1, 8, 4, 128, 28.8),
)


def _megatron() -> Iterator[PublishedNumber]:
    """Measured: `torch.cuda.max_memory_allocated`, which has no context of CUDA in it."""
    table = "Llama-2-7B in Megatron-LM on eight H800, measured (NVIDIA/Megatron-LM#482)"
    model = replace(models.named("llama-2-7b"), layer_norm=True, dropout=True)
    card = hardware.gpu("h800")
    for data, pipeline, tensor, batch, whole, published in MEASURED:
        here = Layout(8, tensor, pipeline=pipeline, sharding="zero-1")
        peak = Prediction(
            Training(
                model,
                card,
                hardware.link(card.link),
                here,
                OPTIMIZERS["adam-fp32-gradients"],
                2048,
                batch,
                whole // (batch * data),
            )
        ).peak
        allocated = sum(part.bytes for part in peak.parts if part.name != CUDA_CONTEXT)
        how = (
            "its distributed optimizer and flash attention; LayerNorm, dropout and a SwiGLU in PyTorch's own "
            "kernels, as its flags were; 2,048 tokens, as in its example"
        )
        name = f"data {data}, pipeline {pipeline}, tensor {tensor}, microbatch {batch}"
        why = "what kernels take for as long as they run, such as gradients of activations, is left out"
        yield PublishedNumber(table, name, published, allocated / GIB, how, why, "GiB")


WITHIN = 0.05  # of a published number: what is farther off is explained


def _torchtitan() -> Iterator[PublishedNumber]:
    """What torchtitan prints is what the allocator reserved: holes between tensors are in it."""
    table = "torchtitan's peaks, reserved by the allocator (its benchmarks, 2024-12)"
    for row in published_speeds.rows():
        if row.memory:
            published, predicted = row.memory
            why = (
                "rounded blocks, and holes but those of gradients and of a forward at the loss, are left out"
            )
            if "pipeline" in row.how:
                why = "with the logits of all microbatches, which PyTorch's pipeline joins when a step ends"
            if predicted < (1 - WITHIN) * published:
                why += (
                    f"; {published - predicted:.0f} GiB are not accounted for: another sequence length or "
                    "schedule with as many tokens in the same layout reserved that much less, and which "
                    "stage is fullest is not said; a memory snapshot would tell"
                )
            yield PublishedNumber(table, row.name, published, predicted, row.how, why, "GiB")


def lines() -> Iterator[str]:
    """The tables in Markdown."""
    table = ""
    for row in rows():
        if row.table != table:
            table = row.table
            yield from ("", f"**{table}**", "", "| | published | computed | difference | how |")
            yield "| --- | --- | --- | --- | --- |"
        computed = "not reproduced" if row.computed is None else f"{row.computed:.4g}"
        difference = "" if row.difference is None else f"{row.difference:+.1%}"
        how = ": ".join(part for part in (row.recipe, row.why) if part)
        published = f"{row.published:g} {row.unit}".strip()
        yield f"| {row.name} | {published} | {computed} | {difference} | {how} |"
