"""Makes a remedy's change inside a training job, whose files stay as they are.

Standard library only, Python 3.10 and later, no import of lostflops: the job's environment need not have it.
`settings.json` beside this package names the changes. Each is one function of a file here, called when the
module that it changes has executed. What was changed is noted once per process and change, so that a change
that nothing took up is told from one that took effect.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

SETTINGS, NOTES = "settings.json", "applied-{}.jsonl"
# The module that a change waits for, and the function that makes it.
CHANGES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "loader-workers": (("torch.utils.data.dataloader", "loader.workers"),),
    "pinned-copies": (("torch.utils.data.dataloader", "loader.pinned"),),
    "gc-freeze": (("torch.optim.optimizer", "collector.freeze"),),
    "cpu-threads": (("torch._torch_docs", "threads.capped"),),
    "overlap-communication": (("torch.nn.parallel.distributed", "gradients.in_pieces"),),
    "selective-checkpointing": (("torch.utils.checkpoint", "activations.kept"),),
    "log-less": (("torch.optim.optimizer", "logs.written_aside"),),
    "bucket-size": (("torch.nn.parallel.distributed", "gradients.buckets"),),
    "gradient-accumulation": (("torch.nn.parallel.distributed", "gradients.sent_once"),),
    "fused-optimizer": (("torch.optim.optimizer", "optimizers.fused"),),
    "bf16": (("torch.nn.modules.module", "precision.bf16"),),
    "bf16-on-cpu": (("torch.nn.modules.module", "precision.bf16"),),
    "tf32": (("torch.optim.optimizer", "precision.tf32"),),
}

_noted: set[tuple[int, str]] = set()
_folder = ""


def arm(folder: str) -> None:
    """Wait for the modules that the changes are made in."""
    global _folder
    _folder = folder
    with open(os.path.join(folder, SETTINGS), encoding="utf-8") as file:
        asked: dict[str, dict[str, Any]] = json.load(file)
    waited: dict[str, list[Callable[[Any], None]]] = {}
    for name, options in asked.items():
        for module, function in CHANGES[name]:
            waited.setdefault(module, []).append(_call(name, function, options))
    if waited:
        from .imports import arm as wait

        wait(waited)


def _call(name: str, function: str, options: Mapping[str, Any]) -> Callable[[Any], None]:
    def made_to(what: str) -> None:
        note(name, what)

    def call(module: Any) -> None:
        file, _, made = function.partition(".")
        try:
            getattr(import_module(f".{file}", __package__), made)(module, made_to, **options)
        except Exception as error:
            note(name, f"failed: {type(error).__name__}: {error}", failed=True)

    return call


def note(name: str, what: str, failed: bool = False) -> None:
    """Say once per process that a change was made, and to what."""
    key = (os.getpid(), name + "!" * failed)
    if key in _noted:
        return
    _noted.add(key)
    line = json.dumps({"change": name, "what": what, "failed": failed}) + "\n"
    try:
        with open(os.path.join(_folder, NOTES.format(os.getpid())), "a", encoding="utf-8") as file:
            file.write(line)
    except OSError as error:
        print(f"lostflops tune: {error}", file=sys.stderr)
