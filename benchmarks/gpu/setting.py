"""What the sections share: the machine, models of random weights by size, and steps timed in turns."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch

# Decoders like Llama's: hidden, feed-forward, layers, heads, heads of keys, vocabulary.
SIZES = {
    "tiny": (64, 192, 4, 4, 2, 256),  # shows on a CPU that the section runs; its times mean nothing
    "1b": (2048, 8192, 16, 32, 8, 32_000),
    "3b": (3072, 8192, 28, 24, 8, 32_000),
    "8b": (4096, 14_336, 32, 32, 8, 32_000),
}


@dataclass(frozen=True)
class Setting:
    """Where a section runs, on which model, and for how long."""

    size: str
    tokens: tuple[int, ...]  # per sequence
    seconds: float  # that one section may take
    threads: bool  # the CPU plays the GPU
    within: bool = False  # no more unified memory than is free

    def part(self, tokens: int) -> Setting:
        """Of a section that measures one length after the other, what one may take."""
        return replace(self, tokens=(tokens,), seconds=self.seconds / len(self.tokens))

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.threads else "cuda")

    def engine_device(self) -> Any:
        from lostflops.optimize.device.devices import CudaDevice, ThreadedDevice

        return ThreadedDevice() if self.threads else CudaDevice(self.device)

    def model(self, size: str | None = None, layers: int | None = None, words: int | None = None) -> Any:
        """In bf16 (float32 on a CPU), random, in training mode."""
        from transformers import LlamaConfig, LlamaForCausalLM

        hidden, wide, depth, heads, kv_heads, known = SIZES[size or self.size]
        config = LlamaConfig(
            hidden_size=hidden,
            intermediate_size=wide,
            num_hidden_layers=layers or depth,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            vocab_size=words or known,
            max_position_embeddings=1 << 17,
            use_cache=False,
        )
        torch.manual_seed(0)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32 if self.threads else torch.bfloat16)
        try:
            with self.device:
                return LlamaForCausalLM(config).train()
        finally:
            torch.set_default_dtype(before)

    def batch(self, tokens: int, words: int) -> dict[str, torch.Tensor]:
        made = torch.Generator().manual_seed(tokens)
        ids = torch.randint(words, (1, tokens), generator=made).to(self.device)
        return {"input_ids": ids, "labels": ids}

    def save(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """All rows so far, for the record: a section that is ended, or fails, keeps them."""
        print(json.dumps(list(rows)), flush=True)

    def synchronize(self) -> None:
        if not self.threads:
            torch.cuda.synchronize()

    def clear(self) -> None:
        gc.collect()
        if not self.threads:
            torch.cuda.empty_cache()
            empty_pinned = getattr(torch._C, "_host_emptyCache", None)  # what others have pinned and let go
            if empty_pinned is not None:
                empty_pinned()
            torch.cuda.reset_peak_memory_stats()

    def peak(self) -> int | None:
        """Bytes since `clear`; on a CPU nobody counts them."""
        return None if self.threads else torch.cuda.max_memory_allocated()


Case = Callable[[ExitStack], Callable[[], Any]]
"""Sets something up, with what undoes it on the stack, and returns a step."""


def in_turns(
    setting: Setting,
    cases: Mapping[str, Case],
    warm_up: int = 3,
    steps: int = 3,
    about: Mapping[str, Any] | None = None,
    after: Sequence[Mapping[str, Any]] = (),
) -> list[dict[str, Any]]:
    """One row per case: its steps' times in nanoseconds, its peak in bytes, or why it failed.

    Turns go around until the section's time is over, at least twice, so that a clock that drops meets all.
    `about` is in every row; `after` are the rows before these, saved with them after every case.
    """
    began = time.monotonic()
    rows: dict[str, dict[str, Any]] = {
        name: {**(about or {}), "case": name, "step_ns": [], "peak_bytes": None} for name in cases
    }
    turns = 0
    while turns < 2 or (time.monotonic() - began < setting.seconds and turns < 8):
        for name, case in cases.items():
            row = rows[name]
            if "failed" not in row:
                _turn(setting, case, row, warm_up, steps)
                setting.save([*after, *rows.values()])
        turns += 1
    return list(rows.values())


def _turn(setting: Setting, case: Case, row: dict[str, Any], warm_up: int, steps: int) -> None:
    setting.clear()
    try:
        with ExitStack() as undo:
            step = case(undo)
            for _ in range(warm_up):
                step()
            setting.synchronize()
            for _ in range(steps):
                began = time.perf_counter_ns()
                said = step()
                setting.synchronize()
                row["step_ns"].append(time.perf_counter_ns() - began)
            row["peak_bytes"] = setting.peak()
            report = said.to_json() if hasattr(said, "to_json") else said
            if report is not None:
                row["report"] = report
    except Exception as error:  # whatever a peer raises, the other cases go on
        row["failed"] = why(error)
    setting.clear()


def why(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"


def middle(values: list[int]) -> float | None:
    return median(values) if values else None


def trained(
    model: Any, batch: Mapping[str, torch.Tensor], optimizer: Any = None, remedy: Any = None
) -> Callable[[], Any]:
    """A step: forward, backward, and the optimizer where there is one. It returns the remedy's report."""

    def step() -> Any:
        model(**batch).loss.backward()
        if optimizer is not None:
            optimizer.step()
        model.zero_grad(set_to_none=True)
        return remedy.report() if hasattr(remedy, "report") else None

    return step
