"""Where random numbers are now, to go on there again: Python's, torch's and, if imported, NumPy's."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


class RandomPlaces:
    """From its making on. `on_gpus`: those of all GPUs, too, which begins to use them."""

    def __init__(self, *, on_gpus: bool = False) -> None:
        numpy = _numpy()
        self._python, self._torch = random.getstate(), torch.get_rng_state()
        self._numpy = numpy.get_state() if numpy else None
        self._gpus = torch.cuda.get_rng_state_all() if on_gpus else None

    def restore(self) -> None:
        """As often as wanted."""
        random.setstate(self._python)
        torch.set_rng_state(self._torch)
        if self._numpy is not None:
            _numpy().set_state(self._numpy)
        if self._gpus is not None:
            torch.cuda.set_rng_state_all(self._gpus)


def random_state() -> tuple[Any, ...]:
    """The same without GPUs, to compare."""
    numpy = _numpy()
    others = () if numpy is None else (numpy.get_state()[1].tobytes(), numpy.get_state()[2])
    return random.getstate(), torch.get_rng_state().numpy().tobytes(), *others


def seed_all(number: int) -> None:
    """All of them, on all devices."""
    torch.manual_seed(number)  # pyright: ignore[reportUnknownMemberType]
    random.seed(number)
    if (numpy := _numpy()) is not None:
        numpy.seed(number % 2**32)


def _numpy() -> Any:
    return getattr(sys.modules.get("numpy"), "random", None)
