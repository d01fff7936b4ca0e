"""Decoding with weights that stay in .safetensors files, all of them or what host memory has no room for.

The files were just written, so the kernel may have them in memory: the rate is that of reading them, at most.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from statistics import median
from typing import Any

import torch
from page import gb, table
from section_streaming import seconds_per_token
from setting import Setting

TITLE = "Weights streamed from files"


def rows(setting: Setting) -> list[dict[str, Any]]:
    from transformers import LlamaForCausalLM

    from lostflops import optimize

    size = "tiny" if setting.threads else "1b"
    model = setting.model(size).eval().requires_grad_(False)
    ids = setting.batch(32, model.config.vocab_size)["input_ids"]
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        plain, said = seconds_per_token(model, ids, setting)
        found.append({"case": "all on the GPU", "seconds_per_token": plain, "same": True, "report": None})
        config = model.config
        del model
        setting.clear()
        for name, host in (("in host memory", 4 * weights), ("in files", None)):
            with optimize.without_weights():
                other = LlamaForCausalLM(config).eval()
            with ExitStack() as undo:
                streamed = undo.enter_context(
                    optimize.stream_weights(other, files=folder, host=host, device=setting.engine_device())
                )
                seconds, now = seconds_per_token(other, ids, setting)
                report = streamed.report().to_json()
            same = torch.equal(said, now)
            found.append({"case": name, "seconds_per_token": seconds, "same": same, "report": report})
            setting.save(found)
    return found


def page(rows: list[dict[str, Any]]) -> str:
    found: list[tuple[Any, ...]] = []
    for row in rows:
        report = row.get("report") or {}
        found.append(
            (
                row["case"],
                1 / median(row["seconds_per_token"]),
                report.get("layers_in_files"),
                gb(report.get("read_bytes")),
                gb(report.get("pinned_held_bytes")),
                "yes" if row["same"] else "no",
            )
        )
    return table(
        ("weights", "tokens/s", "layers in files", "GB read", "GB of host memory", "same tokens"), found
    )
