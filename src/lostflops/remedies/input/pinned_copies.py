"""Copies from page-locked memory that the CPU does not wait for."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python

REMEDY = Remedy(
    name="pinned-copies",
    does="Batches are copied from page-locked memory while the GPU computes and the CPU goes on.",
    changes={
        "pytorch": Change(
            "Pin the host's memory and copy without waiting: `DataLoader(pin_memory=True)` and "
            "`.to(device, non_blocking=True)`.",
            snippets=(
                python(
                    "-loader = DataLoader(dataset, batch_size=batch_size)",
                    "+loader = DataLoader(dataset, batch_size=batch_size, pin_memory=True)",
                ),
                python("-batch = batch.to(device)", "+batch = batch.to(device, non_blocking=True)"),
            ),
        ),
        "hf": Change(
            'Copy without waiting: `accelerator_config={"non_blocking": True}` in '
            "`TrainingArguments`; batches are pinned by default, but `non_blocking` is off.",
            snippets=(python('TrainingArguments(accelerator_config={"non_blocking": True})'),),
        ),
        "accelerate": Change(
            "Copy without waiting: `DataLoaderConfiguration(non_blocking=True)` with a "
            "`DataLoader(pin_memory=True)`; it is off by default.",
            snippets=(
                python(
                    "loader = DataLoader(dataset, batch_size=batch_size, pin_memory=True)",
                    "accelerator = Accelerator(",
                    "    dataloader_config=DataLoaderConfiguration(non_blocking=True)",
                    ")",
                ),
            ),
        ),
        "lightning": Change(
            "Give the `DataLoader` `pin_memory=True`; Lightning copies without waiting by itself.",
            snippets=(
                python(
                    "def train_dataloader(self):",
                    "    return DataLoader(self.dataset, batch_size=batch_size, pin_memory=True)",
                ),
            ),
        ),
        "bridge": Change(
            "Keep `cfg.dataset.pin_memory = True` (the default) for the batches, and pin what "
            "else is copied.",
            snippets=(python("cfg.dataset.pin_memory = True"),),
        ),
        "megatron": Change(
            "Batches are pinned already: pin what else is copied, with `non_blocking=True`.",
            snippets=(
                python(
                    "-values = values.to(device)",
                    "+values = values.pin_memory().to(device, non_blocking=True)",
                ),
            ),
            note="There is no flag: batches are pinned inside.",
        ),
        "torchtitan": Change(
            "Pin the batches: `config.dataloader.pin_memory = True` (the default is False).",
            snippets=(python("config.dataloader.pin_memory = True"),),
        ),
    },
    safety="bit-identical",
    safe="A pinned buffer that is overwritten before its copy has ended is a race; loaders do not do that.",
    costs="Page-locked memory for the batches in flight.",
    limits="`non_blocking=True` from pageable memory still waits; pinning alone changes little. Much "
    "page-locked memory needs `ulimit -l`.",
    seen="Copies are listed as pinned, their calls return within microseconds, and they run beside kernels.",
    recipe="copy_summary_by_time",
    edit="pinned",
)
