"""What transformers calls the matrices of each family's layers, and which of them are one module.

PEFT adapts modules by their names, and bitsandbytes quantises modules by their type: what either leaves out
is known here. Routed experts are parameters in transformers 5, not modules. bitsandbytes leaves those in 16
bits, and PEFT would make all of a layer's experts anew in each pass: neither is counted as done.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lostflops.plan.shape import Shape

if TYPE_CHECKING:
    from lostflops.plan.train.static_memory import Lora

Modules = tuple[tuple[str, tuple[str, ...]], ...]

APART: Modules = (("q_proj", ("q",)), ("k_proj", ("k",)), ("v_proj", ("v",)))
GATED: Modules = (("gate_proj", ("gate",)), ("up_proj", ("up",)), ("down_proj", ("down",)))
LLAMA: Modules = (*APART, ("o_proj", ("o",)))
TOGETHER = ("q", "k", "v")
FAMILIES: dict[str, Modules] = {
    "phi3": (
        ("qkv_proj", TOGETHER),
        ("o_proj", ("o",)),
        ("gate_up_proj", ("gate", "up")),
        ("down_proj", ("down",)),
    ),
    "gpt2": (
        ("c_attn", TOGETHER),
        ("attn.c_proj", ("o",)),
        ("c_fc", ("up",)),
        ("mlp.c_proj", ("down",)),
    ),
    "gpt_neox": (
        ("query_key_value", TOGETHER),
        ("dense", ("o",)),
        ("dense_h_to_4h", ("up",)),
        ("dense_4h_to_h", ("down",)),
    ),
    "opt": (*APART, ("out_proj", ("o",)), ("fc1", ("up",)), ("fc2", ("down",))),
    "vit": (*LLAMA, ("fc1", ("up",)), ("fc2", ("down",))),
    "bert": (
        ("query", ("q",)),
        ("key", ("k",)),
        ("value", ("v",)),
        ("attention.output.dense", ("o",)),
        ("intermediate.dense", ("up",)),
        ("output.dense", ("down",)),
    ),
}
FAMILIES["falcon"] = FAMILIES["gpt_neox"]
T5: Modules = (("q", ("q",)), ("k", ("k",)), ("v", ("v",)), ("o", ("o",)))
T5_GATED: Modules = (("wi_0", ("gate",)), ("wi_1", ("up",)), ("wo", ("down",)))
T5_PLAIN: Modules = (("wi", ("up",)), ("wo", ("down",)))
LATENT: Modules = (("kv_a_proj_with_mqa", ("kv_a",)), ("kv_b_proj", ("kv_b",)), ("o_proj", ("o",)))
COMPRESSED: Modules = (("q_a_proj", ("q_a",)), ("q_b_proj", ("q_b",)))
# Where the feed-forward of a model with experts is modules as well: PEFT takes these names for the routed
# experts' in all other families.
SHARED_ARE_MODULES = ("qwen2_moe", "llama4_text")

# What queries, keys and values are made by where they are compressed.
PATHS = {"q": ("q", "q_a", "q_b"), "k": ("k", "kv_a", "kv_b"), "v": ("v", "kv_a", "kv_b")}
# What a name names besides, because PEFT takes it as the end of a longer one.
ALSO = {("bert", "down"): ("o",)}
# Matrices that stay in 16 bits whatever the base has: tables, heads, and what routes.
SIXTEEN_BITS = ("embedding", "head", "router", "positions", "relative_positions", "segments", "transform")


def modules(shape: Shape) -> Modules:
    """The modules of a layer by name, with the projections that each holds."""
    if shape.family == "t5":
        return (*T5, *(T5_GATED if shape.gated else T5_PLAIN))
    if shape.family in FAMILIES:
        return FAMILIES[shape.family]
    attention = LLAMA
    if shape.latent:
        attention = ((*COMPRESSED,) if shape.latent.query else APART[:1]) + LATENT
    return attention if shape.experts and shape.family not in SHARED_ARE_MODULES else (*attention, *GATED)


def adapted(shape: Shape, lora: Lora) -> Lora:
    """The adapters with the projections of `shape` that they really stand beside, and what stays in 16 bits.

    A module that holds several projections has one adapter for all of them.
    """
    wanted = {name for target in lora.targets for name in PATHS.get(target, (target,))}
    wanted |= {name for target in lora.targets for name in ALSO.get((shape.family, target), ())}
    found = [(name, members) for name, members in modules(shape) if wanted & {*members, name}]
    return replace(
        lora,
        targets=tuple(member for _, members in found for member in members) or lora.targets,
        modules=tuple(name for name, _ in found),
        joined=tuple(members for _, members in found if len(members) > 1),
        kept=kept(shape),
    )


def kept(shape: Shape) -> tuple[str, ...]:
    """Names of matrices that transformers and bitsandbytes leave in 16 bits where the others have 4."""
    names = [*SIXTEEN_BITS, *(f"expert.{name}" for name in ("gate", "up", "down"))]
    if shape.family == "t5":
        names.append("down")  # `wo`, which transformers holds to be too narrow in 16 bits of fp16
    if shape.family == "bert":
        names.remove("transform")
    if shape.family == "vit":
        names.remove("head")
    return tuple(names)


def quantisable(shape: Shape) -> bool:
    """Whether bitsandbytes finds a module to quantise: Falcon's are a class of its own."""
    return shape.family != "falcon"
