"""Whether bringing keys and values back beats computing them again, before anything is run. All of it
predicted.

A token of a dialogue takes `2 * layers * KV heads * head size * bytes` to bring over the link, and about
2 floating-point operations per active parameter to compute again. Which is faster is a matter of the model's
width and the link, hardly of the dialogue's length: both grow with the tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from lostflops.copies import link_card
from lostflops.errors import Refused

FLOPS = 450e12  # per second, of whole 16-bit layers on an H100 or H200: assumed
ALTERNATIVES = (
    "vLLM: --kv-transfer-config with the OffloadingConnector",
    "vLLM or SGLang with LMCache",
    "TensorRT-LLM: kv_cache_config with host_cache_size",
    "SGLang: --enable-hierarchical-cache (HiCache)",
    "NVIDIA Dynamo: its KV block manager",
)
WIDTHS = (2, 4, 8)  # bytes of a key's or value's number
WANTED = 1 << 20  # bytes of a block of one layer: copies of 0.5-2 MB run at the link's full rate
FEWEST, MOST = 16, 512  # tokens of a block


def kv_prediction(
    model_config: Any,
    tokens: int,
    link: Mapping[str, Any] | float,
    *,
    hit_share: float = 1.0,
    prefill_share: float = 1.0,
    flops_per_second: float = FLOPS,
    bytes_each: int = 2,
    active_parameters: int | None = None,
) -> dict[str, Any]:
    """What suspending and resuming a dialogue of `tokens` tokens costs and gains, as a JSON record.

    model_config: a Hugging Face config, its dict, or a model. link: bytes per second from host to device, or
    a card of `optimize.measure_link()`. hit_share: the part of the tokens that is held. prefill_share: the
    part of the time to the first token that prefill takes, when nothing is held. Attention's quadratic term
    is left out of the recomputation, contention for the link out of the reload.

        gain = hit_share * prefill_share * time to first token - reload
    """
    if tokens < 1 or not 0 <= hit_share <= 1 or not 0 < prefill_share <= 1 or flops_per_second <= 0:
        raise Refused(
            f"{tokens} tokens, shares of {hit_share} and {prefill_share}, {flops_per_second} FLOP/s",
            "tokens are 1 or more, shares lie between 0 and 1, rates above 0",
        )
    if bytes_each not in WIDTHS:
        raise Refused(
            f"keys and values of {bytes_each} bytes are not handled", "2, 4 or 8: what the model computes in"
        )
    config = _text(config_of(model_config))
    row, layers = _numbers_of_a_layer(config) * bytes_each, _number(config, "num_hidden_layers")
    launch_ns, out, into = _rates(link)
    per_token = layers * row
    hit = round(hit_share * tokens)
    block = block_tokens(row)
    copies = layers * -(-hit // block)
    reload = hit * per_token / into + copies * launch_ns / 1e9
    store = tokens * per_token / out + copies * launch_ns / 1e9
    active = active_parameters or _active(config)
    recompute = 2 * active * tokens / flops_per_second
    without = recompute / prefill_share
    gain = hit_share * recompute - reload
    reasons: list[str] = []
    if gain <= 0:
        reasons.append(
            "nothing is held: there is nothing to gain"
            if not hit
            else f"bringing it back takes {1e3 * reload:.3g} ms, and computing it again "
            f"{1e3 * hit_share * recompute:.3g} ms"
        )
    if block * row < 64 << 10:
        reasons.append(f"copies of {block * row:,} bytes are mostly launch cost: keep this cache on the GPU")
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        reasons.append(
            "layers with a sliding window reload less than is counted here, which takes all layers as full"
        )
    return {
        "kind": "kv prediction",
        "status": "predicted",
        "tokens": tokens,
        "hit_tokens": hit,
        "bytes_per_token": per_token,
        "bytes": tokens * per_token,
        "block_tokens": block,
        "copy_bytes": block * row,
        "copies": copies,
        "in_bytes_per_second": into,
        "out_bytes_per_second": out,
        "flops_per_second": flops_per_second,
        "active_parameters": active,
        "store_ms": 1e3 * store,
        "reload_ms": 1e3 * reload,
        "reload_us_per_token": 1e6 * per_token / into,
        "recompute_ms": 1e3 * recompute,
        "recompute_us_per_token": 2e6 * active / flops_per_second,
        "first_token_ms": 1e3 * without,
        "first_token_with_ms": 1e3 * (without - gain),
        "gain_ms": 1e3 * gain,
        "worth_it": gain > 0 and block * row >= 64 << 10,
        "reasons": reasons,
        "for_servers": list(ALTERNATIVES),
    }


def block_tokens(row: int) -> int:
    """Tokens per block, a power of two, so that a layer's share of it is 1 MiB; 16 to 512."""
    tokens = FEWEST
    while tokens < MOST and tokens * row < WANTED:
        tokens *= 2
    return tokens


def config_of(model: Any) -> dict[str, Any]:
    """A model's configuration, or that given, as plain data; empty when it has none."""
    config: Any = getattr(model, "config", model)
    if isinstance(config, Mapping):
        return dict(cast("Mapping[str, Any]", config))
    return cast("dict[str, Any]", config.to_dict()) if hasattr(config, "to_dict") else {}


def _rates(link: Mapping[str, Any] | float) -> tuple[int, float, float]:
    """Launch time in ns, bytes per second out and in."""
    if isinstance(link, Mapping):
        _, out = link_card.rate(link, "device_to_host")
        launch, into = link_card.rate(link, "host_to_device")
        return launch, out, into
    if link <= 0:
        raise Refused(
            f"a link of {link} bytes per second moves nothing", "give bytes per second, for example 55e9"
        )
    return 0, float(link), float(link)


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = config.get("text_config")
    return cast("Mapping[str, Any]", inner) if isinstance(inner, Mapping) else config


def _number(config: Mapping[str, Any], name: str) -> int:
    found = config.get(name)
    if type(found) is not int or found < 1:
        raise Refused(
            f"this model's configuration has no '{name}'",
            "give a decoder's config.json as a dict, its config, or the model",
        )
    return found


def _numbers_of_a_layer(config: Mapping[str, Any]) -> int:
    """Per token, as transformers caches it: of latent attention, the keys and values of all heads."""
    heads = _number(config, "num_attention_heads")
    if config.get("kv_lora_rank"):
        keys = _number(config, "qk_nope_head_dim") + _number(config, "qk_rope_head_dim")
        return heads * (keys + _number(config, "v_head_dim"))
    size = config.get("head_dim") or _number(config, "hidden_size") // heads
    return 2 * (config.get("num_key_value_heads") or heads) * size


def _active(config: Mapping[str, Any]) -> int:
    """Parameters in the matrices that every token goes through: of a dense gated decoder, without
    embeddings.
    """
    for name in ("num_local_experts", "num_experts", "n_routed_experts", "kv_lora_rank"):
        if config.get(name):
            raise Refused(
                f"how many parameters of this model are active is not known here ('{name}')",
                "give active_parameters=, for example as `lostflops plan serve` counts them",
            )
    hidden, heads = _number(config, "hidden_size"), _number(config, "num_attention_heads")
    size = config.get("head_dim") or hidden // heads
    kv_heads = config.get("num_key_value_heads") or heads
    attention = 2 * hidden * heads * size + 2 * hidden * kv_heads * size
    layer = attention + 3 * hidden * _number(config, "intermediate_size")
    return _number(config, "num_hidden_layers") * layer + _number(config, "vocab_size") * hidden
