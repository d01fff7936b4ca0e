"""The `config.json` of a Hugging Face model: which model it describes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any

import msgspec

from lostflops.errors import BadModel, shown
from lostflops.plan.model_families import BY_FAMILY
from lostflops.plan.shape import Latent, Shape, whole_every

FAMILIES = (
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "deepseek_v2",
    "deepseek_v3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi3",
    "granite",
    "smollm3",
    "gpt_oss",
    "llama4_text",
    "gpt2",
    "gpt_neox",
    "opt",
    "falcon",
    "bert",
    "t5",
    "vit",
)
# What makes a family another model than this counts.
UNKNOWN = {
    "whisper": "its encoder reads 1,500 frames of sound for any text, and a plan has one sequence length",
}
# Models of text and images, of which the text is planned, and the family that reads it.
TEXTS = {"gemma3": "gemma3_text", "llama4": "llama4_text", "mistral3": "mistral"}
# What a configuration's `architectures` end with: the models whose weights are counted.
HEADS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForMaskedLM", "ForImageClassification")

Count = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
Perhaps = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]


class Config(msgspec.Struct):
    """What is read of a `config.json`; the rest of it does not change memory or time."""

    model_type: str
    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Annotated[int, msgspec.Meta(ge=1, le=10_000)]
    num_attention_heads: Count
    vocab_size: Count
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    num_local_experts: Perhaps | None = None
    num_experts: Perhaps | None = None
    n_routed_experts: Perhaps | None = None
    num_experts_per_tok: Perhaps | None = None
    moe_intermediate_size: Perhaps | None = None
    shared_expert_intermediate_size: Perhaps | None = None
    n_shared_experts: Perhaps | None = None
    first_k_dense_replace: Perhaps | None = None
    decoder_sparse_step: Perhaps | None = None
    mlp_only_layers: list[Perhaps] | None = None
    moe_layer_freq: Perhaps | None = None
    q_lora_rank: Perhaps | None = None
    kv_lora_rank: Perhaps | None = None
    qk_nope_head_dim: Perhaps | None = None
    qk_rope_head_dim: Perhaps | None = None
    v_head_dim: Perhaps | None = None
    topk_group: Perhaps | None = None
    num_nextn_predict_layers: Perhaps | None = None
    max_position_embeddings: Perhaps | None = None
    sliding_window: Perhaps | None = None
    sliding_window_pattern: Perhaps | None = None
    use_sliding_window: bool = False
    max_window_layers: Perhaps | None = None
    layer_types: list[str] | None = None
    num_decoder_layers: Perhaps | None = None
    feed_forward_proj: str = "relu"
    is_gated_act: bool | None = None
    relative_attention_num_buckets: Perhaps = 32
    image_size: Count = 224
    patch_size: Count = 16
    num_channels: Count = 3
    qkv_bias: bool = True
    id2label: dict[str, Any] | None = None
    architectures: list[str] | None = None
    add_cross_attention: bool = False
    is_decoder: bool = False
    type_vocab_size: Perhaps = 2
    activation_function: str = "relu"
    do_layer_norm_before: bool = True
    enable_bias: bool = True
    layer_norm_elementwise_affine: bool = True
    remove_final_layer_norm: bool = False
    word_embed_proj_dim: Perhaps | None = None
    use_parallel_residual: bool = True
    alibi: bool = False
    multi_query: bool = True
    parallel_attn: bool = True
    bias: bool = False
    new_decoder_architecture: bool = False
    num_ln_in_parallel_attn: Perhaps | None = None
    interleave_moe_layer_step: Perhaps | None = None
    intermediate_size_mlp: Perhaps | None = None
    moe_layers: list[Perhaps] | None = None
    attention_chunk_size: Perhaps | None = None
    no_rope_layers: list[Perhaps] | None = None


# What the families call the fields of `Config`, and what their configurations leave out.
ALIASES = {
    "gpt2": {
        "n_embd": "hidden_size", "n_inner": "intermediate_size", "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads", "n_positions": "max_position_embeddings",
    },
    "t5": {
        "d_model": "hidden_size", "d_ff": "intermediate_size", "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads", "d_kv": "head_dim", "n_positions": "max_position_embeddings",
    },
    "opt": {"ffn_dim": "intermediate_size", "_remove_final_layer_norm": "remove_final_layer_norm"},
    "falcon": {"ffn_hidden_size": "intermediate_size", "num_kv_heads": "num_key_value_heads"},
}  # fmt: skip
# Unless the configuration says otherwise.
TIED = ("gemma", "gemma2", "gemma3_text", "smollm3", "gpt2", "t5", "bert", "opt", "falcon")
WITH_BIASES = ("gpt_oss", "gpt_neox")
# Families that heed `attention_bias`, at the output as well, and those that do not, as transformers has them.
BIASED = (
    *("llama", "granite", "smollm3", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text"),
    "gpt_oss",
)
UNBIASED = ("mistral", "mixtral", "phi3")
# What transformers fills in where a configuration does not name it: null says that there is none.
DEFAULTS: dict[str, dict[str, int]] = {
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096, "max_position_embeddings": 131072},
    "mixtral": {"num_key_value_heads": 8, "num_experts_per_tok": 2, "max_position_embeddings": 131072},
    "qwen2": {"num_key_value_heads": 32, "max_position_embeddings": 32768},
    "qwen2_moe": {
        "num_key_value_heads": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632, "max_position_embeddings": 32768,
    },
    "qwen3": {"num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 32768},
    "qwen3_moe": {
        "num_key_value_heads": 4, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
        "max_position_embeddings": 32768,
    },
    "deepseek_v2": {
        "num_key_value_heads": 32, "moe_intermediate_size": 1407, "n_shared_experts": 2, "q_lora_rank": 1536,
    },
    "deepseek_v3": {
        "num_key_value_heads": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
        "n_shared_experts": 1, "first_k_dense_replace": 3, "q_lora_rank": 1536, "topk_group": 4,
    },
    "gemma": {"num_key_value_heads": 16, "head_dim": 256, "max_position_embeddings": 8192},
    "gemma2": {
        "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096, "max_position_embeddings": 8192,
    },
    "gemma3_text": {
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208,
        "sliding_window": 4096, "max_position_embeddings": 131072,
    },
    "smollm3": {"num_key_value_heads": 4, "max_position_embeddings": 32768},
    "gpt_oss": {
        "num_key_value_heads": 8, "head_dim": 64, "num_experts_per_tok": 4, "sliding_window": 128,
        "max_position_embeddings": 131072,
    },
    "llama4_text": {
        "num_key_value_heads": 8, "head_dim": 128, "num_experts_per_tok": 1, "intermediate_size_mlp": 16384,
        "attention_chunk_size": 8192, "max_position_embeddings": 131072,
    },
    "falcon": {"max_position_embeddings": 2048},
    "opt": {"intermediate_size": 3072, "max_position_embeddings": 2048},
    "vit": {"intermediate_size": 3072},
    "bert": {"intermediate_size": 3072, "max_position_embeddings": 512},
    "llama": {"max_position_embeddings": 2048},
    "granite": {"max_position_embeddings": 2048},
    "gpt_neox": {"max_position_embeddings": 2048},
    "phi3": {"max_position_embeddings": 4096},
    "gpt2": {"max_position_embeddings": 1024},
    "t5": {"head_dim": 64},
}  # fmt: skip
# Families that are mixtures of experts: how many there are is not made up.
ROUTED = ("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss", "llama4_text")


def _defaults(kind: str, named: dict[str, Any]) -> dict[str, int]:
    """What transformers fills in; groups of heads that these heads do not come in are left out."""
    usual = dict(DEFAULTS.get(kind, {}))
    heads = named.get("num_attention_heads", usual.get("num_attention_heads"))
    if isinstance(heads, int) and heads % usual.get("num_key_value_heads", 1):
        del usual["num_key_value_heads"]
    return usual


def _known_names(written: dict[str, Any]) -> dict[str, Any]:
    kind = written.get("model_type")
    if isinstance(kind, str) and kind in TEXTS and isinstance(text := written.get("text_config"), dict):
        of_text = msgspec.convert(text, dict[str, Any])
        kind = TEXTS[kind]
        if of_text.get("model_type", kind) == kind:
            written = {**of_text, "model_type": kind}
    aliases = ALIASES.get(kind, {}) if isinstance(kind, str) else {}
    named = {aliases.get(name, name): value for name, value in written.items()}
    if isinstance(kind, str):
        named = {**_defaults(kind, named), **named}
    found: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    if kind in TIED:
        found.setdefault("tie_word_embeddings", True)
    if kind in WITH_BIASES:
        found.setdefault("attention_bias", True)
    if kind in ("gpt2", "falcon") and isinstance(found.get("hidden_size"), int):
        found["intermediate_size"] = found.get("intermediate_size") or 4 * found["hidden_size"]
    if kind == "gpt2":
        found.setdefault("activation_function", "gelu_new")
    if kind == "t5" and found.get("num_hidden_layers") is not None:
        found["num_decoder_layers"] = found.get("num_decoder_layers") or found["num_hidden_layers"]
    if kind == "vit":
        found["vocab_size"] = len(found.get("id2label") or "no") or 2
    return found


def _decoded(content: bytes) -> dict[str, Any]:
    """Python writes Infinity and NaN, as in configurations of Mamba, which are no JSON."""
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except msgspec.DecodeError:
        if b"Infinity" not in content and b"NaN" not in content:
            raise
        try:
            return msgspec.convert(json.loads(content), dict[str, Any])
        except ValueError as error:
            raise msgspec.DecodeError(str(error)) from error


def from_config(content: bytes, name: str) -> Shape:
    """The model that a Hugging Face `config.json` describes."""
    try:
        written = _known_names(_decoded(content))
        # A family that is not known names its sizes as it likes: that comes before what is missing.
        kind = written.get("model_type")
        if isinstance(kind, str) and kind not in FAMILIES:
            why = UNKNOWN.get(kind, "the weights of that family are not known")
            raise BadModel(name, f"its model_type is '{shown(kind)}', and {why}", FAMILIES)
        config = msgspec.convert(written, Config)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadModel(name, str(error)) from error
    kind = config.model_type
    for architecture in config.architectures or ():
        if not architecture.endswith(HEADS):
            raise BadModel(
                name,
                f"it is a {shown(architecture)}, and only models of the kinds {', '.join(HEADS)} are counted",
            )
    if config.head_dim is None and config.kv_lora_rank is None:
        _divides(name, "num_attention_heads", config.num_attention_heads, "hidden_size", config.hidden_size)
    kv = (0 if kind == "t5" else config.num_key_value_heads) or config.num_attention_heads
    _divides(name, "num_key_value_heads", kv, "num_attention_heads", config.num_attention_heads)
    if config.mlp_only_layers or (config.decoder_sparse_step or 1) != 1 or (config.moe_layer_freq or 1) != 1:
        raise BadModel(name, "its expert layers are not all the layers behind the first dense ones")
    return _shape(config, kind, name, kv)


def _window(config: Config, kind: str) -> tuple[int, tuple[int, ...]]:
    """Tokens that attention sees, and the layers that see everything all the same."""
    layers, window = config.num_hidden_layers, config.sliding_window or 0
    if not window or (kind.startswith("qwen") and not config.use_sliding_window):
        return 0, ()
    if config.layer_types:
        kinds = enumerate(config.layer_types[:layers])
        return window, tuple(number for number, kind in kinds if kind != "sliding_attention")
    if kind.startswith("qwen"):
        first = config.max_window_layers
        return window, tuple(range(min(layers, 28 if first is None else first)))
    if kind in ("gemma2", "gemma3_text", "gpt_oss"):
        return window, whole_every(
            config.sliding_window_pattern or (6 if kind == "gemma3_text" else 2), layers
        )
    return window, ()


def _divides(name: str, a: str, few: int, b: str, many: int) -> None:
    if many % few:
        raise BadModel(name, f"its {b} ({many}) is not divisible by its {a} ({few})")


def _shape(config: Config, kind: str, name: str, kv: int) -> Shape:
    experts = config.n_routed_experts or config.num_experts or config.num_local_experts or 0
    width = config.moe_intermediate_size or config.intermediate_size
    per_token = config.num_experts_per_tok or 0
    if experts and not 1 <= per_token <= experts:
        raise BadModel(name, f"it has {experts} experts and gives each token to {per_token}")
    latent = None
    if kind in ("deepseek_v2", "deepseek_v3"):
        sizes = (config.kv_lora_rank, config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim)
        if not all(sizes):
            raise BadModel(
                name, "its kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim or v_head_dim is absent"
            )
        if config.attention_bias:
            raise BadModel(name, "its latent attention has biases")
        latent = Latent(config.q_lora_rank or 0, *(size or 0 for size in sizes))
    if kind in ROUTED and not experts:
        counted = "num_local_experts, num_experts or n_routed_experts"
        raise BadModel(name, f"how many experts it has is absent: its {counted}")
    if kind in BY_FAMILY:
        return replace(BY_FAMILY[kind](config, name), family=kind)
    decoder = config.num_decoder_layers or 0
    said = config.is_gated_act
    gated = config.feed_forward_proj.startswith("gated") if said is None else said
    window, unwindowed = _window(config, kind)
    return Shape(
        name=name,
        family=kind,
        hidden=config.hidden_size,
        feed_forward=config.intermediate_size,
        layers=config.num_hidden_layers + (decoder if kind == "t5" else 0),
        heads=config.num_attention_heads,
        kv_heads=kv,
        head_size=config.head_dim or config.hidden_size // config.num_attention_heads,
        vocabulary=config.vocab_size,
        tied=config.tie_word_embeddings,
        attention_bias=(config.attention_bias and kind not in UNBIASED)
        or kind == "qwen2"
        or (kind == "qwen2_moe" and config.qkv_bias),
        output_bias=config.attention_bias and kind in BIASED,
        sinks=kind == "gpt_oss",
        expert_bias=kind == "gpt_oss",
        mlp_bias=config.mlp_bias and kind in ("llama", "granite", "smollm3"),
        query_key_norm=kind in ("qwen3", "qwen3_moe", "gemma3_text"),
        norms=4 if kind in ("gemma2", "gemma3_text") else 2,
        gated=kind != "t5" or gated,
        dropout=kind == "t5",
        encoder_layers=config.num_hidden_layers if kind == "t5" else 0,
        buckets=config.relative_attention_num_buckets if kind == "t5" else 0,
        final_norms=2 if kind == "t5" else 1,
        longest=config.max_position_embeddings or 0,
        expert_nodes=(config.topk_group or 0) if kind == "deepseek_v3" else 0,
        ahead=(config.num_nextn_predict_layers or 0) if kind == "deepseek_v3" else 0,
        experts=experts,
        experts_per_token=per_token if experts else 0,
        expert_width=width if experts else 0,
        shared_width=(config.n_shared_experts or 0) * width
        if config.n_shared_experts
        else (config.shared_expert_intermediate_size or 0) * (kind == "qwen2_moe"),
        shared_gate=kind == "qwen2_moe",
        dense_layers=min(config.first_k_dense_replace or 0, config.num_hidden_layers) if experts else 0,
        router_bias=kind == "gpt_oss" and experts > 0,  # DeepSeek-V3's is a buffer, which nothing trains
        latent=latent,
        window=window,
        unwindowed=unwindowed,
    )
