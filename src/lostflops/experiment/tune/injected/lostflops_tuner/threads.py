"""No more threads than cores."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any


def capped(module: Any, note: Callable[[str], None], threads: int) -> None:
    """OpenMP has read its variable by now; a script that asks for more threads later gets these."""
    torch: Any = sys.modules["torch"]
    ask = torch.set_num_threads

    @functools.wraps(ask)
    def set_num_threads(number: int) -> None:
        if number > threads:
            note(f"torch.set_num_threads({number}) -> {threads}")
        ask(min(number, threads))

    torch.set_num_threads = set_num_threads
    note(f"OMP_NUM_THREADS={threads}")
