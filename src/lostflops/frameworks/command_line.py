"""Which framework the command line of a recorded job names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lostflops import run_folder

# Words of a command line with blanks between them, in the order of frameworks that stand on others.
NAMED: Mapping[str, str] = {
    "torchtitan": r"(?:^| )(?:-m torchtitan[\w.]*|\S*torchtitan/\S+)",
    "bridge": r"(?:^| )(?:-m (?:megatron\.bridge|nemo)[\w.]*|nemo|\S*/(?:megatron/bridge|nemo)/\S+)(?: |$)",
    "megatron": r"(?:^| )(?:\S*/)?pretrain_(?:gpt|bert|t5|vlm|mamba|hybrid|retro)\w*\.py(?: |$)"
    r"|(?:^| )--(?:tensor-model-parallel-size|num-layers-per-virtual-pipeline-stage)(?:[ =]|$)",
    "lightning": r"(?:^| )(?:\S*/)?(?:lightning|fabric) run(?: |$)",
    "accelerate": r"(?:^| )(?:\S*/)?accelerate(?: |-)launch(?: |$)"
    r"|(?:^| )-m accelerate\.commands\.launch(?: |$)",
    "deepspeed": r"^(?:\S*/)?deepspeed (?!-)|(?:^| )--deepspeed_config(?:[ =]|$)",
}


def framework(paths: Iterable[str | Path]) -> str:
    """The framework that the command of a run folder among the paths names; nothing where none does."""
    for path in paths:
        line = " ".join(_command(Path(path)))
        for name, mark in NAMED.items():
            if re.search(mark, line):
                return name
    return ""


def _command(run: Path) -> list[str]:
    """The words of the command that was recorded last into the folder."""
    last: list[str] = []
    with suppress(OSError), (run / run_folder.RECORDING).open("rb") as file:
        for line in file:
            with suppress(ValueError):
                entry: Any = json.loads(line)
                words: Any = entry.get("command") if isinstance(entry, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
                if isinstance(words, list):
                    last = [str(word) for word in words]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return last
