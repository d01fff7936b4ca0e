"""Random uses of an optimizer, with its states offloaded now and then: the same bits after every step.

LOSTFLOPS_RANDOM_PROGRAMS=2000 runs as many.
"""

from __future__ import annotations

import io
import os
import random
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lostflops import optimize
from lostflops.optimize.device.devices import ThreadedDevice
from simulated_devices import LazyDevice

torch.set_num_threads(1)

PROGRAMS = int(os.environ.get("LOSTFLOPS_RANDOM_PROGRAMS", "60"))
OPTIMIZERS: tuple[Any, ...] = (
    lambda p: torch.optim.AdamW(p, lr=0.01),
    lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    lambda p: torch.optim.Adafactor(p, lr=0.01, eps=(1e-6, 1e-3)),
    lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
)


class Use:
    """An optimizer, what is done to it, and how it is offloaded; the latter draws numbers of its own."""

    def __init__(self, seed: int, disk: Path | None) -> None:
        self._choice, self._way, self._disk = random.Random(seed), random.Random(seed + 1), disk
        torch.manual_seed(seed)
        self.weights = [self._weight() for _ in range(8)]
        groups = [{"params": self.weights[:3]}, {"params": self.weights[3:6], "lr": 0.02}]
        self.optimizer = self._choice.choice(OPTIMIZERS)(groups)
        self._offloaded: Any = None
        self._saved: tuple[bytes, int] | None = None
        self._offload()

    def _weight(self) -> nn.Parameter:
        shape = [self._choice.randrange(1, 40) for _ in range(self._choice.choice((1, 2, 2)))]
        weight = torch.randn(shape)
        return nn.Parameter(weight.bfloat16() if self._choice.random() < 0.2 else weight)

    def _offload(self) -> None:
        if self._disk is None:
            return
        way = self._way
        disk = way.choice([None, self._disk])
        device: Any = ThreadedDevice() if disk or way.random() < 0.5 else LazyDevice(way.randrange(9))
        where = {"disk": disk, "host": way.choice([0, 4000])} if disk else {}
        sizes = {"chunk": way.choice([500, 3000, 10**6]), "least": way.choice([1, 400])}
        self._offloaded = optimize.optimizer_offload(
            self.optimizer, device=device, slots=way.choice([1, 2, 3]), **sizes, **where
        )

    def next(self) -> Any:
        """Does one thing; the weights and states after it."""
        what = self._choice.choices(
            (self.step, self.save, self.load, self.more, self.remove, self.scale, self.undo),
            weights=(12, 2, 2, 1, 1, 1, 2),
        )[0]
        what()
        states = [
            {key: value.float().reshape(-1).tolist() for key, value in each.items() if value is not None}
            for each in self.optimizer.state_dict()["state"].values()
        ]
        return [weight.detach().float().tolist() for weight in self.weights], states

    def step(self) -> None:
        for weight in self.weights:
            given = self._choice.random() < 0.7
            weight.grad = torch.randn_like(weight) if given else None
        nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimizer.step()

    def save(self) -> None:
        file = io.BytesIO()
        torch.save(self.optimizer.state_dict(), file)
        self._saved = file.getvalue(), len(self.optimizer.param_groups)

    def load(self) -> None:
        if self._saved is not None and self._saved[1] == len(self.optimizer.param_groups):
            self.optimizer.load_state_dict(torch.load(io.BytesIO(self._saved[0])))

    def more(self) -> None:
        if len(self.optimizer.param_groups) < 3:
            self.optimizer.add_param_group({"params": self.weights[6:]})

    def remove(self) -> None:
        self.optimizer.state.pop(self._choice.choice(self.weights), None)

    def scale(self) -> None:
        """One in place, or bound anew."""
        state = self.optimizer.state.get(self._choice.choice(self.weights), {})
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.dim():
                state[key] = value.mul_(0.5) if self._choice.random() < 0.5 else value * 0.5

    def undo(self) -> None:
        again = self._choice.random() < 0.8
        if self._offloaded is not None:
            self._offloaded.undo()
            self._offloaded = None
        if again:
            self._offload()


def test_random_uses_of_an_optimizer_have_the_same_weights_and_states(tmp_path: Path) -> None:
    for seed in range(PROGRAMS):
        found: list[Any] = []
        for disk in (None, tmp_path):
            use = Use(seed, disk)
            found.append([use.next() for _ in range(10)])
        assert found[0] == found[1], seed
    assert list(tmp_path.iterdir()) == []
