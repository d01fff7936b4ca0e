"""Random models live the same life with their weights streamed: the same bits in all that they find.

LOSTFLOPS_RANDOM_PROGRAMS=2000 runs as many lives.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch

from lostflops import optimize
from lostflops.optimize.device.devices import ThreadedDevice
from lostflops.optimize.refused import Refused
from random_layers import Life, Nested, Serving
from simulated_devices import LazyDevice

torch.set_num_threads(1)

PROGRAMS = int(os.environ.get("LOSTFLOPS_RANDOM_PROGRAMS", "16"))
EVENTS = 8


def streamed(call: Any, devices: list[Any], model: Any, way: random.Random) -> Any:
    """With a device, layers, slots and a budget that `way` draws."""
    device = LazyDevice(way.randrange(9)) if way.random() < 0.3 else ThreadedDevice()
    devices.append(device)
    more: dict[str, Any] = {"device": device, "look_ahead": way.choice([1, 1, 2])}
    if way.random() < 0.3:  # the layers inside of layers by themselves
        parts = [part for layer in model.layers if isinstance(layer, Nested) for part in layer.parts]
        more["layers"] = [*model.layers, *parts]
    stay = way.choice([None, None, 0, 1, 2])
    if stay is None:
        return call(model, **more)
    with call(model, **more) as least:
        place = least.placement
    return call(model, place.device_bytes + stay * place.slot_bytes, **more)


def lived(kind: Any, seed: int, apply: Any) -> tuple[list[Any], str | None]:
    """What was found until something was refused, and how that was told."""
    found: list[Any] = []
    try:
        life = kind(seed, apply)
        found.extend(life.next() for _ in range(EVENTS))  # keeps those before the one that raises
        found.append(life.end())
    except Refused as refused:
        return found, str(refused)
    return found, None


def fails(came: Any) -> bool:
    return "fails" in came[1:2]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize(
    ("kind", "call"), [(Life, optimize.stream_frozen), (Serving, optimize.stream_weights)]
)
def test_random_lives_are_the_same_to_the_bit(kind: Any, call: Any, part: int) -> None:
    ended, wrong = Counter[str](), list[Any]()
    for seed in range(part, PROGRAMS, 2):
        expected, _ = lived(kind, seed, None)
        devices: list[Any] = []
        found, refused = lived(kind, seed, partial(streamed, call, devices))
        # An error where plain torch has none is no silent one: the life is compared up to it.
        loud = next(
            (n for n, (a, b) in enumerate(zip(found, expected, strict=False)) if fails(a) > fails(b)), None
        )
        found = found[:loud]
        ended["fails" if loud is not None else "the same" if refused is None else refused[:60]] += 1
        differs = [number for number, each in enumerate(found) if each != expected[number]]
        if differs:
            wrong.append((seed, differs[0], found[differs[0]][0]))
        assert all(device.lost == [] for device in devices if isinstance(device, LazyDevice)), seed
    print(ended)
    assert wrong == []
    assert ended["the same"] > 0.9 * ended.total()
    assert ended["fails"] <= 0.02 * ended.total()
