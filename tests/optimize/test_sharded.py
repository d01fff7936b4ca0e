"""Remedies on two ranks, under DDP, FSDP1 and FSDP2: exact to the bit, each rank for what it has."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from lostflops import optimize
from lostflops.optimize.device.devices import ThreadedDevice
from several_ranks import on_ranks
from simulated_devices import LazyDevice, RaceDevice


class Model(nn.Module):
    """Sizes that two ranks cannot share evenly: rank 1 has nothing of `one`, and less of `odd`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(13, 24)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(24, 35), nn.Tanh(), nn.Linear(35, 24)) for _ in range(3)
        )
        self.one = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(24, 13, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen = nn.Parameter(torch.randn(24, 24) / 5, requires_grad=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = x + layer(x) @ self.frozen
        return self.head(x * self.one).logsumexp(-1).mean()


def wrapped(how: str) -> Any:
    model = Model()
    if how == "DDP":
        return nn.parallel.DistributedDataParallel(model)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh())
    return fully_shard(model, mesh=mesh())


def mesh() -> Any:
    return dist.device_mesh.init_device_mesh("cpu", (2,))


def groups(model: Any) -> list[dict[str, Any]]:
    every = [p for p in model.parameters() if p.requires_grad]
    return [{"params": every[:3], "weight_decay": 0.1}, {"params": every[3:], "lr": 0.03}]


def train(model: Any, optimizer: Any, rank: int, first: int, steps: int) -> None:
    """Two microbatches of this rank for each step, clipped by the norm of all ranks."""
    for number in range(first, first + steps):
        for part in range(2):
            seed = 100 * rank + 10 * part + number
            ids = torch.randint(0, 13, (2, 5), generator=torch.Generator().manual_seed(seed))
            if hasattr(model, "set_requires_gradient_sync"):
                model.set_requires_gradient_sync(part == 1)
            (model(ids) / 2).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.02)
        assert float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm) > 0.02, "it clips"
        optimizer.step()
        optimizer.zero_grad()


def local(value: Any) -> bytes:
    value = value.to_local() if hasattr(value, "to_local") else value
    return value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def everything(model: Any, optimizer: Any) -> Any:
    states = [
        (key, local(value)) for values in optimizer.state.values() for key, value in sorted(values.items())
    ]
    return [local(p) for p in model.parameters()], states


def adam(model: Any) -> Any:
    return torch.optim.AdamW(groups(model), lr=0.05)


def stepping(rank: int, how: str, where: str) -> Any:
    """Bits with and without; and what was found on the way."""
    plain = wrapped(how)
    optimizer = adam(plain)
    train(plain, optimizer, rank, 0, 6)
    expected = everything(plain, optimizer)
    device: Any = {"threads": ThreadedDevice, "late": LazyDevice, "races": RaceDevice}[where]()
    model = wrapped(how)
    optimizer = adam(model)
    offloaded = optimize.optimizer_offload(optimizer, device=device, chunk=4000, least=64)
    if where == "threads":
        train(model, optimizer, rank, 0, 2)
    else:
        with device:
            train(model, optimizer, rank, 0, 2)
    # A checkpoint: the sharded states, read by another model and optimizer.
    options = StateDictOptions(full_state_dict=False)
    weights = copy.deepcopy(model.state_dict())
    states = copy.deepcopy(get_optimizer_state_dict(model, optimizer, options=options))
    other = wrapped(how)
    fresh = adam(other)
    again = optimize.optimizer_offload(fresh, device=ThreadedDevice(), chunk=4000, least=64)
    other.load_state_dict(weights)
    set_optimizer_state_dict(other, fresh, states, options=options)
    train(other, fresh, rank, 2, 2)
    again.undo()
    train(other, fresh, rank, 4, 2)
    train(model, optimizer, rank, 2, 4)
    report = offloaded.report()
    whole = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))
    return {
        "same": everything(model, optimizer) == expected,
        "loaded": everything(other, fresh) == expected,
        "races": getattr(device, "races", []),
        "lost": getattr(device, "lost", []),
        "host_bytes": report.host_bytes,
        "moved": report.into.bytes,
        "kept": report.kept_bytes,
        "gathered": sum(value.numel() for each in whole["state"].values() for value in each.values()),
    }


@pytest.mark.parametrize(("how", "where"), [("FSDP2", "late"), ("FSDP2", "races"), ("DDP", "threads")])
def test_an_offloaded_optimizer_is_exact_with_clipping_accumulation_and_checkpoints(
    how: str, where: str
) -> None:
    found = on_ranks(stepping, how, where)
    for each in found:
        assert each["same"] and each["loaded"] and each["races"] == [] and each["lost"] == []
        assert each["moved"] > 0 and set(each["kept"]) <= {"below 64 B"}
    if how == "FSDP2":
        assert all(each["host_bytes"] < 0.7 * 2 * 4 * 5530 for each in found), "half, and its alignment"


class Adapted(nn.Module):
    """Frozen layers with adapters beside them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Adapter() for _ in range(5))
        self.head = nn.Linear(24, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x).logsumexp(-1).mean()


class Adapter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(24, 24).requires_grad_(False)
        self.down, self.up = nn.Linear(24, 3, bias=False), nn.Linear(3, 24, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.base(x).tanh() + self.up(self.down(x))


def frozen_of(module: nn.Module) -> set[nn.Parameter]:
    return {each for each in module.parameters() if not each.requires_grad}


def adapted(left_out: bool = True) -> Any:
    model = Adapted()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh(), ignored_params=frozen_of(layer) if left_out else None)
    return fully_shard(model, mesh=mesh(), ignored_params=frozen_of(model) if left_out else None)


def streaming(rank: int, checkpointed: bool) -> Any:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    found: list[Any] = []
    report: Any = None
    for way in (False, True):
        model = adapted()
        if checkpointed:
            model.layers = nn.ModuleList(checkpoint_wrapper(layer) for layer in model.layers)
        device = RaceDevice()
        streamed = optimize.stream_frozen(model, device=device) if way else None
        optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=0.05)
        offloaded = optimize.optimizer_offload(optimizer, device=ThreadedDevice(), least=1) if way else None
        with device:
            for number in range(4):
                generator = torch.Generator().manual_seed(10 * rank + number)
                model(torch.randn(3, 24, generator=generator)).backward()
                nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.01)
                optimizer.step()
                optimizer.zero_grad()
        if streamed and offloaded:
            report = streamed.report(), offloaded.report(), device.races
            streamed.undo()
        found.append([local(p) for p in model.parameters()])
    refused = ""
    try:
        optimize.stream_frozen(adapted(left_out=False), device=ThreadedDevice())
    except optimize.Refused as error:
        refused = str(error)
    return found[0] == found[1], report[0].bytes_in, report[1].into.bytes, report[2], refused


@pytest.mark.parametrize("checkpointed", [False, True])
def test_frozen_weights_that_fsdp_leaves_alone_are_streamed(checkpointed: bool) -> None:
    for same, bytes_in, states_in, races, refused in on_ranks(streaming, checkpointed):
        assert same and bytes_in > 0 and states_in > 0 and races == []
        assert "is a DTensor" in refused and "ignored_params=" in refused


def by_fsdp1(strategy: ShardingStrategy, flat: bool) -> Any:
    return FullyShardedDataParallel(
        Model().requires_grad_(), sharding_strategy=strategy, use_orig_params=not flat,
        device_id=torch.device("cpu"),
        auto_wrap_policy=ModuleWrapPolicy({nn.Sequential}),
    )  # fmt: skip


WAYS = [(ShardingStrategy.FULL_SHARD, True), (ShardingStrategy.SHARD_GRAD_OP, False)]


def fsdp1(rank: int) -> Any:
    """Weights after three steps with and without checkpointing; then fp16, with an overflow on one rank."""

    def some_ids(seed: int) -> torch.Tensor:
        return torch.randint(0, 13, (2, 5), generator=torch.Generator().manual_seed(10 * rank + seed))

    found: dict[str, Any] = {"checkpointed": []}
    for way in WAYS:
        bits: list[Any] = []
        for checkpointed in (False, True):
            model = by_fsdp1(*way)
            optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=0.05)
            remedy = optimize.checkpoint(model, keep=()) if checkpointed else None
            for step in range(3):
                model(some_ids(step)).backward()
                optimizer.step()
                optimizer.zero_grad()
            bits.append([local(p) for p in model.parameters()])
            found["checkpointed"].append(remedy.recomputed if remedy else 0)
        assert bits[0] == bits[1]
    model = by_fsdp1(*WAYS[0])
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.05)
    scaled = optimize.to_fp16(model, optimizer, scale=64.0, max_norm=1e-3)
    scaled.backward(model(some_ids(0)))
    assert scaled.step()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    found["squares"] = sum(float(each.square().sum()) for each in gradients)
    optimizer.zero_grad()
    scaled.backward(model(some_ids(1)))
    if rank:
        next(p.grad for p in model.parameters() if p.grad is not None).view(-1)[0] = torch.inf
    found["stepped"] = scaled.step()
    found["scale"] = scaled.scale
    scaled.undo()
    model = by_fsdp1(*WAYS[1])  # whose weights stay whole until the backward
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.05)
    scaled = optimize.to_fp16(model, optimizer, scale=64.0)
    scaled.backward(model(some_ids(2)))
    found["refused"] = False
    try:
        model(some_ids(3)).backward()
    except optimize.Refused as refused:
        found["refused"] = "was not scaled would add" in str(refused)
    scaled.undo()
    optimizer.zero_grad()
    model(some_ids(3)).backward()
    return found


def test_fsdp1_is_checkpointed_to_the_bit_and_skips_and_clips_on_all_ranks_alike() -> None:
    first, second = on_ranks(fsdp1)
    assert first["checkpointed"] == second["checkpointed"] == [0, 9, 0, 9]
    assert first["squares"] + second["squares"] == pytest.approx(1e-6, rel=1e-3)
    assert (first["stepped"], first["scale"]) == (second["stepped"], second["scale"]) == (False, 32.0)
    assert first["refused"] and second["refused"]


@pytest.mark.parametrize("kind", ["DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"])
def test_what_has_to_come_before_wrapping_is_refused_after_it(kind: str) -> None:
    wrapped = type(kind, (nn.Sequential,), {})(nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32)))
    with pytest.raises(optimize.Refused, match=rf"wrapped already \({kind}\), and the ranks would not"):
        optimize.lora(wrapped, targets=["0"])
    with pytest.raises(optimize.Refused, match="which stays fp32"):
        optimize.to_bf16(wrapped)
    if kind != "DistributedDataParallel":  # DDP goes on with the parameters that FP8's layers share
        with pytest.raises(optimize.Refused, match="cannot share"):
            optimize.to_fp8(wrapped, small=True)
