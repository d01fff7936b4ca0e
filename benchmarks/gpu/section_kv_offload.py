"""One generation whose keys and values take a budget of the GPU: time per token, and the same tokens."""

from __future__ import annotations

import time
from contextlib import ExitStack
from statistics import median
from typing import Any

import torch
from page import gb, table
from setting import Setting

TITLE = "KV cache of one generation within a budget"
TOKENS = 8


def rows(setting: Setting) -> list[dict[str, Any]]:
    from lostflops import optimize

    model = setting.model().eval()
    model.generation_config.use_cache = True  # a model made to be trained says that it needs none
    ids = setting.batch(min(setting.tokens), model.config.vocab_size)["input_ids"].expand(4, -1)
    heads = model.config.num_key_value_heads * (model.config.hidden_size // model.config.num_attention_heads)
    width = next(model.parameters()).element_size()
    whole = 2 * width * heads * model.config.num_hidden_layers * ids.numel()
    found: list[dict[str, Any]] = []
    said: dict[str, torch.Tensor] = {}
    for name, budget in (("all on the GPU", None), ("half", whole // 2), ("as little as can be", 0)):
        times: list[float] = []
        row: dict[str, Any] = {"case": name, "whole_bytes": whole, "budget_bytes": budget}
        for turn in range(3):
            with ExitStack() as undo:
                past: dict[str, Any] = {}
                if budget is not None:
                    offloaded = undo.enter_context(
                        optimize.kv_offload(model, budget, device=setting.engine_device())
                    )
                    past = {"past_key_values": offloaded.past}
                setting.synchronize()
                began = time.perf_counter()
                said[name] = model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=TOKENS,
                    min_new_tokens=TOKENS,
                    do_sample=False,
                    use_cache=True,
                    **past,
                )
                setting.synchronize()
                if turn:
                    times.append((time.perf_counter() - began) / TOKENS)
                if past:
                    row["report"] = offloaded.report().to_json()
        row |= {"seconds_per_token": times, "same": torch.equal(said[name], said["all on the GPU"])}
        found.append(row)
        setting.save(found)
        setting.clear()
    return found


def page(rows: list[dict[str, Any]]) -> str:
    return table(
        ("", "budget, GB", "of GB", "tokens/s of 4 sequences", "GB in", "same tokens"),
        [
            (
                row["case"],
                gb(row["budget_bytes"]),
                gb(row["whole_bytes"]),
                4 / median(row["seconds_per_token"]),
                gb(((row.get("report") or {}).get("into") or {}).get("bytes")),
                "yes" if row["same"] else "no",
            )
            for row in rows
        ],
    )
