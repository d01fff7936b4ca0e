"""Decoding of a mixture of experts from host memory: whole layers, and the chosen experts only."""

from __future__ import annotations

from contextlib import ExitStack
from statistics import median
from typing import Any

import torch
from page import gb, table
from section_streaming import seconds_per_token
from setting import Setting

TITLE = "Experts streamed one by one"


def rows(setting: Setting) -> list[dict[str, Any]]:
    from lostflops import optimize

    model = mixture(setting)
    ids = setting.batch(32, model.config.vocab_size)["input_ids"]
    found: list[dict[str, Any]] = []
    said = ids
    for name, way in (
        ("all on the GPU", None),
        ("whole layers", {}),
        ("chosen experts", {"experts": True}),
    ):
        with ExitStack() as undo:
            streamed = None
            if way is not None:
                streamed = undo.enter_context(
                    optimize.stream_weights(model, device=setting.engine_device(), **way)
                )
            seconds, now = seconds_per_token(model, ids, setting)
            report = None if streamed is None else streamed.report().to_json()
        said = now if way is None else said
        found.append(
            {"case": name, "seconds_per_token": seconds, "same": torch.equal(said, now), "report": report}
        )
        setting.save(found)
    return found


def mixture(setting: Setting) -> Any:
    """Of Mixtral's kind, 8 experts of which 2 are chosen: 6.4 GB, or tiny."""
    from transformers import MixtralConfig, MixtralForCausalLM

    hidden, wide, layers, heads, kv_heads = (64, 96, 4, 4, 2) if setting.threads else (2048, 4096, 16, 32, 8)
    config = MixtralConfig(
        hidden_size=hidden,
        intermediate_size=wide,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        num_local_experts=8,
        num_experts_per_tok=2,
        vocab_size=256 if setting.threads else 32_000,
    )
    torch.manual_seed(0)
    with setting.device:
        model = MixtralForCausalLM(config).eval()
    return (model if setting.threads else model.bfloat16()).requires_grad_(False)


def page(rows: list[dict[str, Any]]) -> str:
    return table(
        ("", "tokens/s", "GB copied in", "same tokens"),
        [
            (
                row["case"],
                1 / median(row["seconds_per_token"]),
                gb((row.get("report") or {}).get("bytes_in")),
                "yes" if row["same"] else "no",
            )
            for row in rows
        ],
    )
