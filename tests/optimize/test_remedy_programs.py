"""Random training jobs, with several remedies at once that come and go: the same bits as without.

LOSTFLOPS_RANDOM_PROGRAMS=2000 runs as many.
"""

from __future__ import annotations

import copy
import io
import os
import random
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn

from lostflops import optimize
from lostflops.optimize.device.devices import ThreadedDevice
from lostflops.optimize.refused import Refused
from simulated_devices import LazyDevice

torch.set_num_threads(1)

PROGRAMS = int(os.environ.get("LOSTFLOPS_RANDOM_PROGRAMS", "8"))
EVENTS = 9
SIDE, WORDS = 16, 23
REMEDIES = ["checkpoint", "offload", "optimizer", "stream"]
FROZEN = (".base.", ".out.", "down.weight")  # in the names of what is never trained
F = nn.functional


class Adapted(nn.Module):
    """A frozen matrix with an adapter beside it, that can be merged."""

    def __init__(self, outputs: int, inputs: int, *, dropout: float) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs)
        self.base.requires_grad_(False)
        self.a, self.b = nn.Linear(inputs, 3, bias=False), nn.Linear(3, outputs, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.merged = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.base(x)
        return y if self.merged else y + self.b(self.a(self.dropout(x)))

    def merge(self, *, on: bool) -> None:
        if on != self.merged:
            with torch.no_grad():
                change = self.b.weight @ self.a.weight
                self.base.weight.data += change if on else -change
            self.merged = on


class Block(nn.Module):
    def __init__(self, *, dropout: float) -> None:
        super().__init__()
        self.norm, self.second = nn.LayerNorm(SIDE), nn.LayerNorm(SIDE)
        self.qkv = Adapted(3 * SIDE, SIDE, dropout=dropout)
        self.out = nn.Linear(SIDE, SIDE)
        self.up, self.down = Adapted(2 * SIDE, SIDE, dropout=0.0), nn.Linear(2 * SIDE, SIDE)
        self.drop = nn.Dropout(dropout)
        self.out.requires_grad_(False)
        self.down.weight.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            each.unflatten(-1, (2, -1)).transpose(1, 2) for each in self.qkv(self.norm(x)).chunk(3, -1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(attended.transpose(1, 2).flatten(2)))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Model(nn.Module):
    """One block is called twice in a pass, and the head is the embedding."""

    def __init__(self, choice: random.Random) -> None:
        super().__init__()
        dropout = choice.choice([0.0, 0.1])
        self.embedding = nn.Embedding(WORDS, SIDE)
        blocks = [Block(dropout=dropout) for _ in range(choice.choice([2, 3]))]
        if choice.random() < 0.4:
            blocks.insert(choice.randrange(3), blocks[0])
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(SIDE)
        self.head = nn.Linear(SIDE, WORDS, bias=False)
        if choice.random() < 0.5:
            self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Failed(Exception):
    """Raised on purpose."""


def _halved(parameter: torch.Tensor) -> None:
    if parameter.grad is not None:
        parameter.grad.mul_(0.5)


def _halves(module: nn.Module, given: Any, out: Any) -> Any:
    return None if any(each is None for each in given) else tuple(each * 0.5 for each in given)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().numpy().tobytes()


def optimizer_of(model: nn.Module, choice: random.Random) -> Any:
    kind = choice.choice(["foreach", "fused", "usual", "momentum", "amsgrad"])
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": trained[:3]}, {"params": trained[3:], "lr": 0.02}]
    if kind == "momentum":
        return torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    if kind == "amsgrad":
        return torch.optim.Adam(groups, lr=0.01, amsgrad=True)
    more = {} if kind == "usual" else {kind: True}
    return torch.optim.AdamW(groups, lr=0.01, **more)


class Job:
    """`on` puts remedies on it, drawn by `way`; what happens is drawn by `choice`, and the same without."""

    def __init__(self, seed: int, *, on: bool) -> None:
        self.seed, self.on = seed, on
        self.choice, self.way = random.Random(seed), random.Random(-seed - 1)
        torch.manual_seed(seed)
        self.applied: dict[str, Any] = {}
        self.hooks: list[Any] = []
        self.saved: bytes | None = None
        self.twin: Any = None
        self.losses: list[Any] = []
        self.make()
        self.scaler: Any = (
            torch.amp.GradScaler("cpu", init_scale=64.0) if self.choice.random() < 0.4 else None
        )
        if on:
            for name in self.way.sample(REMEDIES, self.way.choice([2, 3, 4])):
                self.apply(name)

    def make(self) -> None:
        choice = random.Random(self.seed)
        self.model: Any = Model(choice)
        self.optimizer: Any = optimizer_of(self.model, choice)
        schedule: Any = torch.optim.lr_scheduler.ExponentialLR
        self.scheduler: Any = schedule(self.optimizer, 0.9) if choice.random() < 0.5 else None

    # Remedies.

    def device(self) -> Any:
        return ThreadedDevice() if self.way.random() < 0.6 else LazyDevice(self.way.randrange(9))

    def apply(self, name: str) -> None:
        way = self.way
        if name == "checkpoint":
            keep = way.choice([(), ("attention",), ("qkv",), ("attention", "up")])
            made = optimize.checkpoint(self.model, way.choice([1, 1, 2]), keep)
        elif name == "offload":
            more: dict[str, Any] = way.choice([{"plan": "everything"}, {"budget": 1 << 30}, {}])
            made = optimize.offload(self.model, threshold=1, device=ThreadedDevice(), **more)
            made.apply()
        elif name == "optimizer":
            sizes = {"chunk": way.choice([2000, 10**6]), "least": way.choice([1, 400])}
            made = optimize.optimizer_offload(self.optimizer, device=self.device(), **sizes)
        else:
            made = optimize.stream_frozen(self.model, device=ThreadedDevice(), look_ahead=way.choice([1, 2]))
        self.applied[name] = made

    def change(self) -> None:
        """One comes or goes."""
        if not self.on:
            return
        name = self.way.choice(REMEDIES)
        if name in self.applied:
            self.applied.pop(name).undo()
        else:
            self.apply(name)

    # What happens.

    def next(self) -> Any:
        weights = {
            self.step: 12, self.evaluate: 1, self.save: 2, self.load: 2, self.resume: 2, self.freeze: 2,
            self.fail: 3, self.average: 2, self.hook: 2, self.merge: 2, self.written: 1, self.double: 1,
        }  # fmt: skip
        [what] = self.choice.choices([*weights], weights=[*weights.values()])
        self.losses = []
        if self.on and self.way.random() < 0.25:
            self.change()
        what()
        return what.__name__, self.losses, self.state()

    def state(self) -> Any:
        bits: list[Any] = [(name, raw(tensor)) for name, tensor in self.model.state_dict().items()]
        bits += [None if p.grad is None else raw(p.grad) for p in self.model.parameters()]
        for each in self.optimizer.state_dict()["state"].values():
            values = each.items()
            bits.append({key: raw(one) if isinstance(one, torch.Tensor) else one for key, one in values})
        return [*bits, raw(torch.get_rng_state())]

    def batch(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.choice.randrange(1000))
        size = self.choice.choice([1, 2, 3]), self.choice.choice([4, 5, 7])
        return torch.randint(0, WORDS, size, generator=generator)

    def loss(self, model: Any = None) -> torch.Tensor:
        ids = self.batch()
        logits = (model or self.model)(ids)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        self.losses.append(raw(loss))
        return loss

    def step(self) -> None:
        self.merged(on=False)
        self.optimizer.zero_grad(set_to_none=self.choice.random() < 0.7)
        many, late = self.choice.choice([1, 1, 2, 3]), self.choice.random() < 0.2
        between = self.on and self.way.random() < 0.15
        infinite = self.scaler is not None and self.choice.random() < 0.3
        losses: list[Any] = []
        for _ in range(many):
            loss = self.loss() / many
            if infinite:
                loss = loss * float("inf")
            loss = self.scaler.scale(loss) if self.scaler else loss
            if late:
                losses.append(loss)
            else:
                if between:
                    self.change()
                loss.backward()
        if late:
            sum(losses).backward()
        if self.scaler:
            self.scaler.unscale_(self.optimizer)
        if self.choice.random() < 0.5:
            foreach = self.choice.choice([True, False, None])
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.3, foreach=foreach)
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        if self.scheduler:
            self.scheduler.step()

    def double(self) -> None:
        """Twice through one graph."""
        self.merged(on=False)
        self.optimizer.zero_grad()
        if self.on and "checkpoint" in self.applied and self.applied["checkpoint"].keep:
            self.applied.pop("checkpoint").undo()  # with something kept, a graph allows one backward
        loss = self.loss()
        loss.backward(retain_graph=True)
        loss.backward()
        self.optimizer.step()

    def evaluate(self) -> None:
        self.model.eval()
        with torch.inference_mode() if self.choice.random() < 0.5 else torch.no_grad():
            self.loss()
        self.model.train()

    def save(self) -> None:
        self.merged(on=False)
        file = io.BytesIO()
        scheduler = self.scheduler.state_dict() if self.scheduler else None
        states = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**states, "scheduler": scheduler}, file)
        self.saved = file.getvalue()

    def load(self) -> None:
        if self.saved is None:
            return
        self.merged(on=False)
        found = torch.load(io.BytesIO(self.saved))
        self.model.load_state_dict(found["model"])
        self.optimizer.load_state_dict(found["optimizer"])
        if self.scheduler:
            self.scheduler.load_state_dict(found["scheduler"])

    def resume(self) -> None:
        """Another process goes on from the file."""
        if self.saved is None:
            return
        names = [*self.applied]
        if self.way.random() < 0.7:
            for name in self.way.sample(names, len(names)):
                self.applied[name].undo()
        elif "offload" in names:
            self.applied["offload"].undo()
        self.applied.clear()
        self.hooks, self.twin = [], None
        self.make()
        first = self.way.random() < 0.5
        if self.on and first:
            for name in names:
                self.apply(name)
        self.load()
        if self.on and not first:
            for name in names:
                self.apply(name)

    def freeze(self) -> None:
        """Or the other way round, of what is trained."""
        named = self.model.named_parameters()
        one = self.choice.choice([p for name, p in named if not any(part in name for part in FROZEN)])
        one.requires_grad_(not one.requires_grad)
        if not one.requires_grad:
            one.grad = None

    def fail(self) -> None:
        """In the forward or the backward of some block, and on."""
        self.merged(on=False)
        block: Any = self.choice.choice([*self.model.blocks])
        part: Any = self.choice.choice([block, block.qkv, block.norm, block.up])
        forward = self.choice.random() < 0.5

        def raises(*_: Any) -> Any:
            raise Failed

        def in_backward(module: Any, given: Any, out: torch.Tensor) -> None:
            if out.requires_grad:
                out.register_hook(raises)

        handle = part.register_forward_hook(raises if forward else in_backward)
        self.optimizer.zero_grad()
        with suppress(Failed):
            self.loss().backward()
        handle.remove()
        self.optimizer.zero_grad()

    def average(self) -> None:
        """Weights of a copy follow those of the model."""
        if self.twin is None:
            made = copy.deepcopy if self.choice.random() < 0.5 else torch.optim.swa_utils.AveragedModel
            self.twin = made(self.model)
        elif isinstance(self.twin, Model):
            with torch.no_grad():
                for there, here in zip(self.twin.parameters(), self.model.parameters(), strict=True):
                    there.lerp_(here, 0.5)
        else:
            self.twin.update_parameters(self.model)
        with torch.no_grad():
            self.loss(self.twin)

    def hook(self) -> None:
        """On a gradient, which changes it."""
        if self.hooks and self.choice.random() < 0.5:
            self.hooks.pop().remove()
            return
        blocks = [*self.model.blocks]
        block: Any = self.choice.choice(blocks)
        kind = self.choice.randrange(3)
        if kind == 0:
            if block.norm.weight.requires_grad:
                self.hooks.append(block.norm.weight.register_hook(lambda g: g * 0.5))
        elif kind == 1:
            if block.norm.bias.requires_grad:
                self.hooks.append(block.norm.bias.register_post_accumulate_grad_hook(_halved))
        else:
            self.hooks.append(block.register_full_backward_hook(_halves))

    def merge(self) -> None:
        self.merged(on=True)
        self.evaluate()
        if self.choice.random() < 0.5:
            self.merged(on=False)

    def merged(self, *, on: bool) -> None:
        for part in self.model.modules():
            if isinstance(part, Adapted):
                part.merge(on=on)

    def written(self) -> None:
        """A frozen weight is given a value."""
        block: Any = self.choice.choice([*self.model.blocks])
        with torch.no_grad():
            if self.choice.random() < 0.5:
                block.out.weight.mul_(0.9)
            else:
                block.out.weight.data = block.out.weight.data * 0.9


def lived(seed: int, *, on: bool) -> tuple[list[Any], str | None]:
    found: list[Any] = []
    job = None
    try:
        job = Job(seed, on=on)
        found.extend(job.next() for _ in range(EVENTS))  # keeps those before the one that raises
    except Refused as refused:
        return found, str(refused)
    finally:
        for made in job.applied.values() if job else ():
            made.undo()
    return found, None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(2))
def test_random_jobs_under_several_remedies_are_the_same_to_the_bit(part: int) -> None:
    ended, wrong = Counter[str](), list[Any]()
    for seed in range(part, PROGRAMS, 2):
        expected, why = lived(seed, on=False)
        assert why is None
        found, refused = lived(seed, on=True)
        ended["the same" if refused is None else refused[:100]] += 1
        differs = [number for number, each in enumerate(found) if each != expected[number]]
        if differs:
            wrong.append((seed, differs[0], found[differs[0]][0]))
    print(ended)
    assert wrong == []
    assert ended["the same"] > 0.7 * ended.total()
