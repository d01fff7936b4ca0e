"""What `lostflops record` was asked for; it lies beside this package, so that only PYTHONPATH must travel."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from .log import BOOT


@dataclass(frozen=True)
class Settings:
    first: int
    last: int
    ranks: list[list[int]] | None  # closed ranges; None is every rank
    cuda: bool
    shapes: bool
    python: bool
    memory: bool
    grow: int  # bytes that the process may grow by while a window is open; 0: the default
    keep_free: int  # bytes that an export leaves free on the disk

    def wants(self, rank: int) -> bool:
        return self.ranks is None or any(low <= rank <= high for low, high in self.ranks)


def read() -> Settings:
    with open(os.path.join(BOOT, "settings.jsonl")) as file:
        return Settings(**json.load(file))
