"""Families whose layers are not Llama's: BERT, GPT-2 and ViT, OPT, GPT-NeoX, Falcon, Llama 4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lostflops.errors import BadModel
from lostflops.plan.shape import BIASES, PLAIN, Shape, whole_every

if TYPE_CHECKING:
    from lostflops.plan.model_config import Config


def _plain(config: Config, name: str, **more: Any) -> Shape:
    """Attention with as many key-value heads as heads, and two matrices behind it without a gate."""
    usual: dict[str, Any] = {
        "kv_heads": config.num_attention_heads,
        "tied": config.tie_word_embeddings,
        **PLAIN,
        "longest": config.max_position_embeddings or 0,
    }
    usual |= {
        "feed_forward": config.intermediate_size,
        "head_size": config.hidden_size // config.num_attention_heads,
    }
    return Shape(
        name=name,
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        vocabulary=config.vocab_size,
        **(usual | more),
    )


def gpt2(config: Config, name: str) -> Shape:
    """GPT-2."""
    if config.add_cross_attention:
        raise BadModel(name, "its layers have cross attention, and this knows GPT-2 as a decoder alone")
    positions = config.max_position_embeddings or 1024
    return _plain(
        config,
        name,
        **BIASES,
        dropout=True,
        positions=positions,
        longest=positions,
        composed=config.activation_function == "gelu_new",
    )


def vit(config: Config, name: str) -> Shape:
    """Layers as GPT-2's, over patches of an image."""
    tokens = (config.image_size // config.patch_size) ** 2 + 1
    biases = BIASES | {"attention_bias": config.qkv_bias}
    patch = config.num_channels * config.patch_size**2
    return _plain(
        config, name, **biases, tied=False, positions=tokens, longest=tokens, causal=False, patch=patch
    )


def bert(config: Config, name: str) -> Shape:
    """As it is trained: with the head that fills in masked words, and without the pooler."""
    if config.is_decoder or config.add_cross_attention:
        raise BadModel(name, "it is a decoder, and this knows BERT as an encoder")
    if not config.tie_word_embeddings:
        raise BadModel(name, "its head is not its embedding, and this knows BERT with one table")
    positions = config.max_position_embeddings or 512
    return _plain(
        config, name, **BIASES, dropout=True, causal=False, positions=positions, longest=positions,
        segments=config.type_vocab_size, embedding_norm=True, final_norms=0, transform=True,
    )  # fmt: skip


def opt(config: Config, name: str) -> Shape:
    """Positions begin at the third row of their table."""
    if not (config.do_layer_norm_before and config.enable_bias and config.layer_norm_elementwise_affine):
        raise BadModel(name, "its norms stand behind, or have no weights, or its matrices have no biases")
    if config.word_embed_proj_dim not in (None, config.hidden_size):
        raise BadModel(name, f"its embedding has {config.word_embed_proj_dim} columns and is projected")
    positions = (config.max_position_embeddings or 2048) + 2
    relu = config.activation_function == "relu"
    norms = 0 if config.remove_final_layer_norm else 1
    return _plain(config, name, **BIASES, relu=relu, dropout=True, positions=positions, final_norms=norms)


def neox(config: Config, name: str) -> Shape:
    """GPT-NeoX and Pythia: attention and feed-forward have a norm each, of the same hidden states."""
    biases = BIASES if config.attention_bias else {"mlp_bias": True}
    return _plain(config, name, **biases, parallel=config.use_parallel_residual)


def falcon(config: Config, name: str) -> Shape:
    """The first have one key-value head, the newer ones groups; both halves have one norm, or one each."""
    if config.alibi:
        raise BadModel(
            name, "its positions are biases of attention's scores (ALiBi), which this does not know"
        )
    newer = config.new_decoder_architecture
    heads = config.num_attention_heads
    kv = (config.num_key_value_heads or heads) if newer else 1 if config.multi_query else heads
    parallel = config.parallel_attn or newer
    norms = config.num_ln_in_parallel_attn or (2 if newer else 1)
    biases = BIASES if config.bias else {}
    return _plain(config, name, **biases, kv_heads=kv, parallel=parallel, norms=norms if parallel else 2)


def llama4(config: Config, name: str) -> Shape:
    """The text part: all layers have experts, or the last of each two; three of four layers see a chunk."""
    layers, every = config.num_hidden_layers, config.interleave_moe_layer_step or 1
    if config.moe_layers not in (None, [*range(every - 1, layers, every)]) or layers % every:
        raise BadModel(name, f"its layers with experts are not each {every} of its {layers}")
    experts, width = config.num_local_experts or 0, config.intermediate_size
    chunk = config.attention_chunk_size or 0
    whole: Sequence[int] = whole_every(4, layers)
    if config.layer_types:
        kinds = enumerate(config.layer_types[:layers])
        whole = [number for number, kind in kinds if kind == "full_attention"]
    elif config.no_rope_layers:
        whole = [number for number, rotary in enumerate(config.no_rope_layers[:layers]) if not rotary]
    biases = {"attention_bias": config.attention_bias, "output_bias": config.attention_bias}
    return _plain(
        config, name, **biases, feed_forward=config.intermediate_size_mlp or width, gated=True,
        layer_norm=False, kv_heads=config.num_key_value_heads or config.num_attention_heads,
        head_size=config.head_dim or config.hidden_size // config.num_attention_heads,
        experts=experts, experts_per_token=config.num_experts_per_tok or 1, expert_width=width,
        shared_width=width, expert_every=every, window=chunk, chunked=bool(chunk),
        unwindowed=tuple(whole) if chunk else (),
    )  # fmt: skip


BY_FAMILY = {
    "bert": bert,
    "falcon": falcon,
    "gpt2": gpt2,
    "gpt_neox": neox,
    "llama4_text": llama4,
    "opt": opt,
    "vit": vit,
}
