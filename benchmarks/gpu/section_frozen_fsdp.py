"""LoRA under FSDP2, which shards the adapters and leaves the frozen weights to `stream_frozen`: one rank."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from page import gb, ms, share, table
from section_frozen import least_resident
from setting import Case, Setting, in_turns, middle, trained

TITLE = "Frozen weights streamed under FSDP2"


def rows(setting: Setting) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        backend = "gloo" if setting.threads else "nccl"
        dist.init_process_group(backend, init_method=f"file://{folder}/meet", rank=0, world_size=1)
        try:
            return _rows(setting)
        finally:
            dist.destroy_process_group()


def _rows(setting: Setting) -> list[dict[str, Any]]:
    from lostflops import optimize

    size = "tiny" if setting.threads else "3b"
    model = sharded(setting, size)
    batch = setting.batch(min(setting.tokens), model.config.vocab_size)
    least = least_resident(model, setting)

    def case_of(resident: int | None) -> Case:
        def case(undo: ExitStack) -> Any:
            streamed = None
            if resident is not None:
                device = setting.engine_device()
                streamed = undo.enter_context(optimize.stream_frozen(model, resident=resident, device=device))
            return trained(model, batch, remedy=streamed)

        return case

    return in_turns(setting, {"all resident": case_of(None), "least resident": case_of(least)}, 2, 2)


def sharded(setting: Setting, size: str) -> Any:
    from torch.distributed.fsdp import fully_shard

    from lostflops import optimize

    model = setting.model(size)
    optimize.lora(model)
    model.train()
    mesh = dist.device_mesh.init_device_mesh(setting.device.type, (1,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, ignored_params=frozen_of(layer))
    return fully_shard(model, mesh=mesh, ignored_params=frozen_of(model))


def frozen_of(module: torch.nn.Module) -> set[torch.nn.Parameter]:
    return {each for each in module.parameters() if not each.requires_grad}


def page(rows: list[dict[str, Any]]) -> str:
    base = middle(rows[0]["step_ns"])
    return table(
        ("", "step, ms", "over all", "peak, GB", "GB in", "failed"),
        [
            (
                row["case"],
                ms(middle(row["step_ns"])),
                share(middle(row["step_ns"]), base),
                gb(row["peak_bytes"]),
                gb((row.get("report") or {}).get("bytes_in")),
                row.get("failed", ""),
            )
            for row in rows
        ],
    )
