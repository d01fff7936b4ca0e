"""Decoding with weights streamed from host memory under a budget: tokens/s, predicted and measured."""

from __future__ import annotations

import time
from contextlib import ExitStack
from statistics import median
from typing import Any

import torch
from page import gb, table
from section_frozen import least_resident
from setting import Setting

TITLE = "Weight streaming"
TOKENS = 8


def rows(setting: Setting) -> list[dict[str, Any]]:
    from lostflops import optimize

    model = setting.model().eval()
    model.requires_grad_(False)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    least = least_resident(model, setting)
    ids = setting.batch(32, model.config.vocab_size)["input_ids"]
    plain, said = seconds_per_token(model, ids, setting)
    rate = _inbound(setting)
    found: list[dict[str, Any]] = [
        {"budget_bytes": weights, "seconds_per_token": plain, "predicted_seconds": None, "same": True}
    ]
    for share in (0.75, 0.5, 0.0):
        budget = max(least, int(share * weights))
        with ExitStack() as undo:
            streaming = undo.enter_context(
                optimize.stream_weights(model, budget=budget, device=setting.engine_device())
            )
            seconds, now = seconds_per_token(model, ids, setting)
            report = streaming.report()
        expected = optimize.streaming_prediction(
            weights,
            budget,
            rate,
            compute_seconds=median(plain),
            slot_bytes=report.slots * report.slot_bytes,
        )
        setting.save(found)
        found.append(
            {
                "budget_bytes": budget,
                "seconds_per_token": seconds,
                "predicted_seconds": expected.seconds,
                "same": torch.equal(said, now),
                "report": report.to_json(),
            }
        )
    return found


def seconds_per_token(model: Any, ids: torch.Tensor, setting: Setting) -> tuple[list[float], torch.Tensor]:
    """Of each of several runs, and the tokens, which are the likeliest."""
    times: list[float] = []
    said = ids
    for turn in range(4):
        setting.synchronize()
        began = time.perf_counter()
        said = model.generate(
            ids, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False, use_cache=True
        )
        setting.synchronize()
        if turn:
            times.append((time.perf_counter() - began) / TOKENS)
    return times, said


def _inbound(setting: Setting) -> float:
    from lostflops import optimize

    card = optimize.measure_link(setting.engine_device(), [1 << 20, 1 << 22, 1 << 24], under_gemm=False)
    return card["host_to_device"]["pinned"]["bytes_per_second"]


def page(rows: list[dict[str, Any]]) -> str:
    return table(
        ("budget, GB", "tokens/s", "predicted", "same tokens"),
        [
            (
                gb(row["budget_bytes"]),
                1 / median(row["seconds_per_token"]),
                row["predicted_seconds"] and 1 / row["predicted_seconds"],
                "yes" if row["same"] else "no",
            )
            for row in rows
        ],
    )
