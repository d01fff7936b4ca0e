"""A write that torch does not count, to one element of a large weight that travels, is seen."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lostflops.optimize.device import written_pages
from lostflops.optimize.device.devices import ThreadedDevice
from lostflops.optimize.device.written_pages import watching
from lostflops.optimize.refused import Refused
from lostflops.optimize.weights import own_writes, streaming
from lostflops.optimize.weights.frozen import stream_frozen
from lostflops.optimize.weights.whole_model import stream_weights

torch.set_num_threads(1)
KERNEL = watching() is not None


def opened() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class Layers(nn.Module):
    """Five of 256 KiB and a bias that is trained. `after[n]` is called when layer n has run."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(5))
        for layer in self.layers:
            layer.weight.requires_grad_(False)
        self.after: dict[int, Any] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = torch.tanh(layer(x))
            if number in self.after:
                self.after[number]()
        return x


def through_data(model: Layers, layer: int, way: int) -> None:
    weight: Any = model.layers[layer].weight
    if way == 0:
        weight.data[101, 37] += 0.5
    elif way == 1:
        weight.detach().numpy()[200, 3] = 0.25
    else:  # the kernel writes: a read from a file goes straight into the weight
        with Path(__file__).open("rb", buffering=0) as file:
            file.readinto(memoryview(weight.detach().numpy()).cast("B")[90_000:90_001])


def trained(streams: bool, within: bool) -> list[torch.Tensor]:
    model = Layers()
    x = torch.randn(4, 256, generator=torch.Generator().manual_seed(1))
    found: list[torch.Tensor] = []
    streamed = stream_frozen(model, device=ThreadedDevice()) if streams else None
    for turn in range(15):
        at = (turn // 3) % 5
        if within:  # to the next layer, which is on its way
            model.after = {at: lambda at=at, turn=turn: through_data(model, (at + 1) % 5, turn % 3)}
        given = x.clone().requires_grad_()
        loss = model(given).square().sum()
        if within:
            through_data(model, 4 - at, turn % 3)  # between a forward and its backward
        loss.backward()
        found += [loss.detach(), given.grad]
        if not within:
            through_data(model, at, turn % 3)
    if streamed:
        streamed.undo()
    return found + [layer.weight.detach().clone() for layer in model.layers]


@pytest.mark.parametrize(
    "within", [False, pytest.param(True, marks=pytest.mark.skipif(not KERNEL, reason="Linux 6.7"))]
)
def test_one_element_written_through_data_or_numpy_counts(within: bool) -> None:
    for one, other in zip(trained(True, within), trained(False, within), strict=True):
        assert torch.equal(one, other)


def test_between_passes_it_counts_where_the_kernel_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "watching", lambda: None)
    for one, other in zip(trained(True, False), trained(False, False), strict=True):
        assert torch.equal(one, other)
    model, plain = Layers(), Layers()
    x = torch.ones(2, 256)
    with stream_weights(model, device=ThreadedDevice()), torch.no_grad():
        for turn in range(4):
            assert torch.equal(model(x), plain(x))
            for each in (model, plain):
                through_data(each, turn % 2, 0)


class Sometimes(nn.Module):
    """Writes to its own weight in every third forward, after or before it is used."""

    def __init__(self, *, after: bool) -> None:
        super().__init__()
        self.inner, self.after, self.calls = nn.Linear(32, 32), after, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        late = self.inner(x) if self.after else None
        if self.calls % 3 == 0:
            self.inner.weight.data[1, 2] = 0.25 * self.calls
        return self.inner(x) if late is None else late


def sometimes(*, after: bool) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Sometimes(after=after) for _ in range(4))).requires_grad_(False)


@pytest.mark.parametrize("after", [False, True])
def test_a_layer_may_begin_to_write_to_its_own_weights_later(after: bool) -> None:
    model, plain = sometimes(after=after), sometimes(after=after)
    x = torch.ones(2, 32)
    with stream_weights(model, device=ThreadedDevice(), layers=list(model)), torch.no_grad():
        for _ in range(7):
            assert torch.equal(model(x), plain(x))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


def test_where_the_host_does_not_wait_for_it_what_such_a_layer_wrote_is_refused_when_it_is_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own_writes, "KNOWN_AT_ONCE", ())
    x = torch.ones(2, 32)
    for again in (True, False):
        model = sometimes(after=False)
        streamed = stream_weights(model, device=ThreadedDevice(), layers=list(model))
        with torch.no_grad():
            for _ in range(3):
                model(x)
            if again:
                with pytest.raises(Refused, match="'0' wrote to its own weights"):
                    model(x)
        with pytest.raises(Refused, match="what it wrote is lost"):
            streamed.undo()
        streamed.undo()
        assert model[0].inner.weight[1, 2] != 0.75


@pytest.mark.skipif(not KERNEL, reason="Linux before 6.7, or a container that forbids it")
def test_nothing_is_copied_again_that_was_not_written() -> None:
    model, x = Layers(), torch.ones(2, 256)
    streamed = stream_weights(model, device=ThreadedDevice())
    with torch.no_grad():
        for _ in range(3):
            model(x)
        before = streamed.report().bytes_in
        model(x)
        each_pass = streamed.report().bytes_in - before
        through_data(model, 2, 0)
        model(x)
        assert streamed.report().bytes_in - before == 2 * each_pass
    streamed.undo()


@pytest.mark.skipif(not KERNEL, reason="Linux before 6.7, or a container that forbids it")
def test_each_write_to_a_page_is_told_once_and_nothing_stays_open() -> None:
    before = opened()
    pages = watching()
    assert pages is not None
    memory = torch.zeros(200 * mmap.PAGESIZE, dtype=torch.uint8)
    first = -(-memory.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (memory.data_ptr() + len(memory)) // mmap.PAGESIZE * mmap.PAGESIZE
    pages.watch(first, end)
    assert not pages.written(first, end)
    memory[:: 2 * mmap.PAGESIZE] = 1
    assert pages.written(first, end) and not pages.written(first, end)
    memory[first - memory.data_ptr() + mmap.PAGESIZE] += 1
    assert not pages.written(first, first + mmap.PAGESIZE)
    assert pages.written(first, end)
    pages.close()
    memory[:] = 3
    assert opened() == before


def test_a_kernel_that_cannot_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written_pages, "SCAN", 0)
    before = opened()
    assert watching() is None
    monkeypatch.setattr(written_pages, "SYSTEM_CALL", {})
    assert watching() is None
    assert opened() == before
