"""Each wait of streamed weights is needed: without it, the simulated device finds a fault."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import nn

import tiny_models
from lostflops import optimize
from lostflops.optimize.weights import layers, slots, sources
from lostflops.optimize.weights.sources import FileSources, LayerBuffer
from waits_left_out import Omitting, Place, Site, sites

torch.set_num_threads(1)


def adapted(count: int = 5) -> nn.Module:
    model = tiny_models.transformer(count, hidden=16)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("mlp.1.bias"))
    return model


def train(device: Omitting) -> None:
    """Forwards and backwards, and then everything is let go at once."""
    model = adapted()
    with optimize.stream_frozen(model, device=device) as streamed:
        for seed in range(2):
            tiny_models.loss_of(model, tiny_models.transformer_batch(6, hidden=16, seed=seed)).backward()
        assert streamed._slots is not None
        streamed.report()
        if streamed._slots._pending:
            device.early.append("copies are missing from the report")


def many_passes(device: Omitting) -> None:
    """More waits than are kept without looking at their times."""
    model = adapted()
    with optimize.stream_frozen(model, device=device), torch.no_grad():
        for _ in range(25):
            model(tiny_models.transformer_batch(2, hidden=16))


def leave_early(device: Omitting) -> None:
    """Undone while copies ahead are under way."""
    model = adapted()
    streamed = optimize.stream_frozen(model, device=device)
    with torch.no_grad():
        model(tiny_models.transformer_batch(6, hidden=16))
    streamed.undo()


def two_streams(device: Omitting) -> None:
    """Every other layer on another stream, in turn on each of them."""
    device.own_races = True
    model = adapted()
    streams = [device.compute, device.new_stream()]
    for place, block in enumerate(model.blocks):
        block.register_forward_pre_hook(lambda *_, place=place: device.switch(streams[(place + turn[0]) % 2]))
    turn = [0]
    with optimize.stream_frozen(model, device=device), torch.no_grad():
        for turn[0] in range(3):
            model(tiny_models.transformer_batch(6, hidden=16))
        device.switch(device.compute)


def a_part_beside(device: Omitting) -> None:
    """A part of each layer runs on another stream, which has not waited for that of the layer."""
    model, side = adapted(), device.new_stream()
    x, kept = tiny_models.transformer_batch(6, hidden=16), list[torch.Tensor]()
    for block in model.blocks:
        forward = block.forward

        def beside(given: torch.Tensor, block: Any = block, forward: Any = forward) -> torch.Tensor:
            device._current = side
            kept.append(block.mlp(x))
            device._current = device.compute
            return forward(given)

        block.forward = beside
    with optimize.stream_frozen(model, device=device), torch.no_grad():
        model(x)
    device.wait(device.compute, device.record(side))


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(4, 16, 16) / 4)

    def forward(self, x: torch.Tensor, top_k_index: torch.Tensor) -> torch.Tensor:
        return torch.stack([(x @ self.up[number]).sin() for number in top_k_index.unique().tolist()]).sum(0)


class Routed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleDict({"experts": Experts()}) for _ in range(6))

    def forward(self, x: torch.Tensor, chosen: int) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = layer["experts"](x, top_k_index=torch.tensor([(chosen + number) % 4, 1]))
        return x


def experts(device: Omitting) -> None:
    """Two callers on streams of their own; each layer twice, the second time for one more expert."""
    device.own_races = True
    model = Routed()
    streams = [device.compute, device.new_stream()]
    with optimize.stream_weights(model, device=device, experts=True, look_ahead=1), torch.no_grad():
        for chosen in range(4):
            device._current = streams[chosen % 2]
            model(torch.randn(2, 16), chosen)
            for number in (chosen, chosen + 1):
                model.layers[2]["experts"](torch.randn(2, 16), top_k_index=torch.tensor([number % 4]))
        device._current = device.compute


def from_files(device: Omitting, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.torch import save_file

    torch.manual_seed(0)
    stored = tiny_models.transformer(7, hidden=16)
    save_file(stored.state_dict(), folder / "model.safetensors")
    with optimize.without_weights():
        model = tiny_models.Transformer(7, 16)
    begin = FileSources._begin

    def reading(found: FileSources, buffer: LayerBuffer, layer: int) -> None:
        begin(found, buffer, layer)  # a thread reads into the buffer from now on
        device._launch(device._host_stream, set(), device._memory(buffer.memory), "read to host memory")
        device._host_did = True  # who copies it has waited for the thread

    monkeypatch.setattr(FileSources, "_begin", reading)
    orders = ([0, 1, 2, 3, 4, 5, 6], [3, 0, 5, 1, 6, 2, 4], [6, 5, 4, 3, 2, 1, 0])
    with optimize.stream_weights(model, device=device, files=folder), torch.no_grad():
        for order in orders:
            x = tiny_models.transformer_batch(6, hidden=16)
            for number in order:
                x = model.blocks[number](x)


PROGRAMS: tuple[Callable[..., None], ...] = (
    *(train, leave_early, two_streams, a_part_beside, experts, many_passes),
)
# What the simulation cannot miss, and why it is there all the same.
NOT_FOR_ORDER = {
    "slots._seen 0 is_done": "saves looking again and again at a copy that still runs",
    "slots._refuse 0 synchronize": "lets copies on threads end before a layer is refused",
    "sources.close 0 synchronize": "the slots, closed before, have waited for the same copies",
}


RUNS = [(done, program) for done in ("never", "always") for program in (*PROGRAMS, from_files)]


def ran(site: Site | None, done: str, program: Callable[..., None]) -> Omitting:
    device = Omitting(site, done)
    with device:
        if program is from_files:
            with pytest.MonkeyPatch.context() as patched, TemporaryDirectory() as folder:
                from_files(device, Path(folder), patched)
        else:
            program(device)
    return device


@cache
def with_all() -> list[tuple[list[str], set[Place]]]:
    """The faults of each run with every wait, and where it comes by."""
    return [(device.faults, device.places) for device in (ran(None, *run) for run in RUNS)]


def faults(site: Site) -> tuple[list[str], int]:
    """Of the runs that come by the site, until one has any; and how often the site was left out."""
    omitted = 0
    for run, (_, places) in zip(RUNS, with_all(), strict=True):
        if any(site.is_at(*place) for place in places):
            device = ran(site, *run)
            omitted += device.omitted
            if device.faults:
                return device.faults, omitted
    return [], omitted


def test_with_all_waits_there_is_no_fault() -> None:
    assert [found for found, _ in with_all()] == [[]] * len(RUNS)


@pytest.mark.parametrize("site", [*sites(slots), *sites(sources), *sites(layers)], ids=str)
def test_without_one_of_them_there_is(site: Site) -> None:
    found, omitted = faults(site)
    if str(site) in NOT_FOR_ORDER:
        assert not found
    else:
        assert omitted > 0, "no program comes by here"
        assert found
