"""Each wait and guard of the offload engine is needed: without it, the simulated device finds a fault."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

import tiny_models
from lostflops.optimize import offload
from lostflops.optimize.activations.offload import schedule
from lostflops.optimize.activations.offload.memory import arena
from simulated_devices import Stream
from test_gradients import CASES, trained
from test_races import (
    all_wait,
    gives_up_memory,
    noise_from_a_side_stream,
    on_three_streams,
    small,
    two_independent_steps,
)
from waits_left_out import Omitting, Place, Site, sites

torch.set_num_threads(1)


class OnStreams(Omitting):
    """With two more compute streams."""

    def __init__(self, site: Site | None, done: str | int = "never") -> None:
        super().__init__(site, done)
        self.streams: list[Stream] = [self.compute, self.new_stream(), self.new_stream()]


class Reusing(OnStreams):
    """A block that was freed is written when it is given out again, not at once."""

    def _freed(self, address: int) -> None:
        number, owner, size = self._blocks.pop(address)
        self._free[owner.number, size].append(number)


EVERYTHING: dict[str, Any] = {"plan": "everything", "threshold": 64, "verify": None}


def three_streams(device: OnStreams) -> None:
    model = small(tiny_models.transformer)
    with offload(model, device=device, **EVERYTHING):
        trained(model, on_three_streams(device), 3, lambda: all_wait(device))


def shapes_that_change(device: OnStreams) -> None:
    build, step = CASES["dynamic shapes"]
    model = build()
    with offload(model, device=device, **EVERYTHING) as engine:
        trained(model, step, 4)
        engine.report()


def two_halves(device: OnStreams) -> None:
    with device.unseen():
        model = torch.nn.ModuleList([tiny_models.mlp(layers=2, seed=n) for n in range(2)])
    for half, stream in zip(model, device.streams[1:], strict=True):
        for parameter in half.parameters():
            device._current = stream
            device._memory(parameter)
    with offload(model, device=device, **EVERYTHING):
        two_independent_steps(device, model, 4)


def a_side_stream(device: OnStreams) -> None:
    model = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(6))
    with offload(model, device=device, **EVERYTHING):
        noise_from_a_side_stream(device, model, 3)


def a_graph_that_is_dropped(device: OnStreams) -> None:
    """Its copies out are under way, and nobody asks for them; the engine ends amid others."""
    model = small(tiny_models.transformer)
    with offload(model, device=device, **EVERYTHING):
        for seed in range(3):
            tiny_models.loss_of(model, tiny_models.transformer_batch(hidden=16, seed=seed)).backward()
            loss = tiny_models.loss_of(model, tiny_models.transformer_batch(hidden=16, seed=seed))
            del loss
        loss = tiny_models.loss_of(model, tiny_models.transformer_batch(hidden=16))
    del loss


def memory_that_is_given_up(device: OnStreams) -> None:
    weight = torch.nn.Parameter(torch.linspace(-1, 1, 64))
    with offload(torch.nn.Linear(1, 1), device=device, **EVERYTHING):
        for _ in range(2):
            gives_up_memory(weight)


PROGRAMS: tuple[tuple[Any, Callable[[Any], None]], ...] = (
    (OnStreams, three_streams),
    (OnStreams, two_halves),
    (Reusing, a_side_stream),
    (OnStreams, shapes_that_change),
    (OnStreams, a_graph_that_is_dropped),
    (OnStreams, memory_that_is_given_up),
)
# What no simulation of order can miss, and why it is there all the same.
NOT_FOR_ORDER = {
    "schedule._wait 0 is_done": "tells a stall from a copy that was in time; either way the stream waits",
    "schedule._wait 1 wait": "of an event that is done: so that sanitizers know the order, too",
    "schedule.finish 0 synchronize": "host memory that goes waits for its readers itself",
    "arena._wait_for_readers 0 synchronize": "the engine's end has waited for all copies by then",
}


RUNS = [(done, *program) for done in ("never", 3, "always") for program in PROGRAMS]


def ran(site: Site | None, done: str | int, kind: Any, program: Callable[[Any], None]) -> OnStreams:
    device = kind(site, done)
    with device:
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


@pytest.mark.parametrize("site", [*sites(schedule), *sites(arena)], ids=str)
def test_without_one_of_them_there_is(site: Site) -> None:
    found, omitted = faults(site)
    if str(site) in NOT_FOR_ORDER:
        assert not found
        return
    assert omitted > 0, "no program comes by here"
    assert found
