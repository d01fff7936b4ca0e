"""A planned job as the arguments of Megatron-LM's pretrain_gpt.py: the model, its layout and its batch.

Megatron shards optimizer states (ZeRO stage 1) and no more with its own data parallelism, runs fused kernels
and splits the sequence over tensor ranks. A job that needs anything else is not for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from lostflops.plan.shape import Shape

from . import layout
from .job import Training

# Whose layers its flags describe in full: no biases of positions, multipliers, windows or other gates.
FAMILIES = (
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "deepseek_v2",
    "deepseek_v3",
    "gpt2",
)


def has(training: Training) -> bool:
    """Whether Megatron runs the job as planned."""
    t, here, shape = training, training.layout, training.shape
    decoder = shape.causal and not shape.encoder_layers and shape.norms == 2
    other = shape.family not in FAMILIES or shape.window or shape.shared_gate
    return (
        here.splits and decoder and not other and here.stage <= 1 and here.schedule in ("1f1b", "interleaved")
        and t.lora is None and t.optimizer.master == 4 and not t.optimizer_away and not t.offloaded
        and t.checkpointing in ("none", "full")
        and (here.chunks == 1 or t.microbatches % here.pipeline == 0)  # a rest waits for a full group
    )  # fmt: skip


def pretrain(training: Training) -> tuple[str, tuple[str, ...]]:
    """Arguments, and what has to be done besides."""
    flags = [*_model(training.shape), *_layout(training), *_batch(training)]
    words = " ".join(f"--{name}" if value == "" else f"--{name} {value}" for name, value in flags)
    return words, tuple(_besides(training))


def _model(shape: Shape) -> Iterator[tuple[str, object]]:
    yield "num-layers", shape.layers
    yield "hidden-size", shape.hidden
    yield "ffn-hidden-size", shape.feed_forward
    yield "num-attention-heads", shape.heads
    if shape.latent:
        latent = shape.latent
        yield "multi-latent-attention", ""
        if latent.query:
            yield "q-lora-rank", latent.query
        yield "kv-lora-rank", latent.key_value
        yield "qk-head-dim", latent.plain
        yield "qk-pos-emb-head-dim", latent.rotary
        yield "v-head-dim", latent.value
    else:
        yield "kv-channels", shape.head_size
        if shape.kv_heads < shape.heads:
            yield "group-query-attention", ""
            yield "num-query-groups", shape.kv_heads
    if shape.gated:
        yield "swiglu", ""
    if not shape.layer_norm:
        yield "normalization", "RMSNorm"
    if not shape.mlp_bias:
        yield "disable-bias-linear", ""
    if shape.attention_bias and not shape.mlp_bias:
        yield "add-qkv-bias", ""
    if shape.query_key_norm:
        yield "qk-layernorm", ""
    if not shape.tied:
        yield "untie-embeddings-and-output-weights", ""
    yield "position-embedding-type", "learned_absolute" if shape.positions else "rope"
    if not shape.dropout:
        yield "attention-dropout", 0
        yield "hidden-dropout", 0
    if shape.experts:
        yield from _experts(shape)


def _experts(shape: Shape) -> Iterator[tuple[str, object]]:
    yield "num-experts", shape.experts
    yield "moe-router-topk", shape.experts_per_token
    yield "moe-ffn-hidden-size", shape.expert_width
    if shape.shared_width:
        yield "moe-shared-expert-intermediate-size", shape.shared_width
    if shape.dense_layers:
        yield "moe-layer-freq", f'"[0]*{shape.dense_layers}+[1]*{shape.layers - shape.dense_layers}"'
    yield "moe-token-dispatcher-type", "alltoall"
    yield "moe-grouped-gemm", ""


def _layout(training: Training) -> Iterator[tuple[str, object]]:
    here, shape = training.layout, training.shape
    yield "tensor-model-parallel-size", here.tensor
    yield "pipeline-model-parallel-size", here.pipeline
    if shape.layers % (here.pipeline * here.chunks):
        yield "pipeline-model-parallel-layout", f'"{_pieces(shape.layers, here.pipeline * here.chunks)}"'
    elif here.chunks > 1:
        yield "num-virtual-stages-per-pipeline-rank", here.chunks
    if here.context > 1:
        yield "context-parallel-size", here.context
    if shape.experts:
        yield "expert-model-parallel-size", here.expert
        if here.tensor > 1:
            yield "expert-tensor-parallel-size", here.tensor
    if here.sequence_parallel:
        yield "sequence-parallel", ""
    if here.stage == 1:
        yield "use-distributed-optimizer", ""
        yield "overlap-grad-reduce", ""
        yield "overlap-param-gather", ""


def _pieces(layers: int, pieces: int) -> str:
    """Of layers t, the embedding E and the loss L: which piece has which."""
    sizes = layout.stage_sizes(layers, pieces)
    return "E" + "|".join("t" * size for size in sizes) + "L"


def _batch(training: Training) -> Iterator[tuple[str, object]]:
    t = training
    yield "seq-length", t.sequence
    yield "max-position-embeddings", max(t.sequence, t.shape.longest)
    yield "micro-batch-size", t.microbatch
    yield "global-batch-size", t.microbatch * t.microbatches * t.layout.data
    yield "bf16", ""
    if t.fp8:
        yield "fp8-format", "hybrid"
    if t.attention == "flash":
        yield "attention-backend", "flash"
    if t.checkpointing == "full":
        yield "recompute-granularity", "full"
        yield "recompute-method", "uniform"
        yield "recompute-num-layers", 1


def _besides(training: Training) -> Iterator[str]:
    t = training
    yield "these are the model and its layout: add your data, tokenizer, learning rate and steps"
    if t.kernels == "eager":
        yield "planned with eager kernels: Megatron's are fused, and need less time and memory"
    if t.fused_loss:
        yield "--cross-entropy-loss-fusion instead of a fused loss with the head"
