"""Samples that take as long as the GPU's step, with 0 and 4 workers, and as `tune_loader` sets it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

import torch
from page import ms, share, table
from setting import Case, Setting, in_turns, middle, trained
from torch.utils.data import DataLoader, Dataset

TITLE = "Data loader"
STEPS = 8


class Slow(Dataset[torch.Tensor]):
    """Token sequences that take a while, as if they were decoded and tokenised."""

    def __init__(self, tokens: int, words: int, seconds: float) -> None:
        self.tokens, self.words, self.seconds = tokens, words, seconds

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.full((self.tokens,), index % self.words)


def rows(setting: Setting) -> list[dict[str, Any]]:
    from lostflops import optimize

    model = setting.model(layers=2)
    words, tokens = model.config.vocab_size, setting.tokens[0]
    plain = trained(model, setting.batch(tokens, words))
    for _ in range(3):
        plain()
    setting.synchronize()
    began = time.perf_counter()
    plain()
    setting.synchronize()
    step_seconds = time.perf_counter() - began
    loader = DataLoader(Slow(tokens, words, max(step_seconds, 0.004)), batch_size=1)
    tuned = optimize.tune_loader(loader, step_seconds=step_seconds, seconds=min(8, setting.seconds / 3))

    def of(make: Any) -> Case:
        def case(undo: ExitStack) -> Any:
            batches = [iter(make())]
            undo.callback(batches.clear)  # its workers end with it

            def step() -> None:
                ids = next(batches[0]).to(setting.device, non_blocking=True)
                trained(model, {"input_ids": ids, "labels": ids})()

            return step

        return case

    pinned = not setting.threads
    cases = {
        "0 workers": of(lambda: DataLoader(loader.dataset, batch_size=1)),
        "4 workers": of(lambda: DataLoader(loader.dataset, batch_size=1, num_workers=4, pin_memory=pinned)),
        f"tune_loader: {tuned.workers} workers": of(lambda: tuned.apply(loader)),
    }
    measured = in_turns(setting, cases, warm_up=3, steps=STEPS)
    return [{"case": "step alone", "step_ns": [round(step_seconds * 1e9)]}, *measured]


def page(rows: list[dict[str, Any]]) -> str:
    base = middle(rows[0]["step_ns"])
    return table(
        ("", "step, ms", "over the step alone", "failed"),
        [
            (row["case"], ms(middle(row["step_ns"])), share(middle(row["step_ns"]), base), row.get("failed"))
            for row in rows
        ],
    )
