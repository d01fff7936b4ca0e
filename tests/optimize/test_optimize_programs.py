"""What autograd saves comes back as it was: any view, in any program of views, writes and functions.

LOSTFLOPS_RANDOM_PROGRAMS=2000 runs as many programs; each under three budgets, three steps each.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from lostflops import optimize
from lostflops.optimize import claims
from lostflops.optimize.device.devices import ThreadedDevice
from lostflops.optimize.refused import Refused
from random_programs import Program, Weights
from simulated_devices import LazyDevice

torch.set_num_threads(1)

PROGRAMS = int(os.environ.get("LOSTFLOPS_RANDOM_PROGRAMS", "60"))
STEPS = 3


def gradient(layer: nn.Linear, loss: Any) -> torch.Tensor:
    layer.zero_grad()
    loss(layer).backward()
    assert layer.weight.grad is not None
    return layer.weight.grad.clone()


def square(layer: nn.Linear) -> torch.Tensor:
    z = layer(X)[:, :256]
    return (z @ z.T).square().mean()


def shared_query_and_key(layer: nn.Linear) -> torch.Tensor:
    """As long as a head is wide, so that the transpose has the same size."""
    heads = layer(X[:64]).unflatten(-1, (4, 192))[..., :64].transpose(0, 1)
    scores = (heads @ heads.transpose(-1, -2)).softmax(-1)
    return (scores @ heads).square().mean()


def half_slices(layer: nn.Linear) -> torch.Tensor:
    z = layer(X[:192])
    return (z[:, :192] @ z[:, :192].T + z[:, :192] * z[:, :192].T).sin().mean()


def interleaved(layer: nn.Linear) -> torch.Tensor:
    z = layer(X)
    real, imaginary = z[:, 0:512:2], z[:, 1:512:2]
    return (real @ real.T + imaginary @ imaginary.T + real * imaginary.T).square().mean()


def gates_that_count_their_writes_apart(layer: nn.Linear) -> torch.Tensor:
    """Each is half of the storage, and written in place as the cells of recurrent networks do."""
    first, second = layer(X[:64]).unsafe_chunk(2)
    return (first.sigmoid_() * second.tanh_()).square().mean()


def a_gate_written_after_all_of_it_was_saved(layer: nn.Linear) -> torch.Tensor:
    """Both are at version 1, of two counts."""
    z = layer(X[:64])
    first = z.unsafe_chunk(2)[0]
    z.mul_(2)
    aside = z.cos()
    return first.mul_(3).sin().square().mean() + 0 * aside.detach().mean()


def in_place_through_an_alias(layer: nn.Linear) -> torch.Tensor:
    """The alias counts with what it is of, and shares its copy."""
    z = layer(X[:64]).sin()
    return (z * z.detach()).square().mean()


X = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "everything fits": {"budget": "1 GiB", "threshold": 1},
    "everything moves": {"plan": "everything", "threshold": 1},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("verify", ["first step", None])
@pytest.mark.parametrize(
    "loss",
    [
        square,
        shared_query_and_key,
        half_slices,
        interleaved,
        gates_that_count_their_writes_apart,
        a_gate_written_after_all_of_it_was_saved,
        in_place_through_an_alias,
    ],
)
def test_two_views_of_one_size_and_place_are_not_the_same(loss: Any, way: str, verify: Any) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(256, 768)
    expected = gradient(layer, loss)
    with optimize.offload(layer, device=ThreadedDevice(), verify=verify, **WAYS[way]):
        for _ in range(STEPS):
            assert torch.equal(gradient(layer, loss), expected)


# Any views of any storages.


class Saves(torch.autograd.Function):
    """Saves views as a function of somebody's would, and says what it got back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, views: Any, got: list[Any]) -> torch.Tensor:
        ctx.got = got
        ctx.save_for_backward(*views)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.got.extend(bytes_of(view) for view in ctx.saved_tensors)
        return gradients[0], None, None


def bytes_of(view: torch.Tensor) -> Any:
    """All that a function can see of its elements."""
    plain = view.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format).reshape(-1)
    return tuple(view.shape), view.dtype, bytes(plain.view(torch.uint8).tolist())


DTYPES = (torch.float32, torch.bfloat16, torch.uint8, torch.complex64, torch.int64, torch.float8_e4m3fn)


@st.composite
def view(draw: Any) -> Any:
    """Which storage, and what is looked at in it."""
    dimensions = draw(st.lists(st.tuples(st.integers(1, 7), st.integers(0, 40)), max_size=3))
    of = draw(st.tuples(st.integers(0, 2), st.sampled_from(DTYPES), st.integers(0, 60)))
    return (
        *of,
        dimensions,
        draw(st.sampled_from(["", "", "transposed", "imaginary", "conjugated", "real", "twin"])),
    )


def seen(storages: list[torch.Tensor], described: Any) -> torch.Tensor:
    number, dtype, offset, dimensions, then = described
    base = storages[number]
    base = base[: base.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
    sizes, strides = [size for size, _ in dimensions], [stride for _, stride in dimensions]
    extent = 1 + sum((size - 1) * stride for size, stride in dimensions)
    if offset + extent > base.numel():
        sizes, strides, offset = [base.numel()], [1], 0
    found = base.as_strided(sizes, strides, offset)
    if then == "transposed" and found.dim() == 2:
        return found.t()
    if then == "twin" and len(sizes) == 2:  # other strides, the same size and beginning
        strides.reverse()
        extent = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        return base.as_strided(sizes, strides, offset) if offset + extent <= base.numel() else found
    if found.is_complex() and then in ("imaginary", "conjugated"):
        return found.conj().imag if then == "imaginary" else found.conj()
    return torch.view_as_real(found) if found.is_complex() and then == "real" else found


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.sampled_from([24, 512, 1024, 4096]), min_size=3, max_size=3),
    st.lists(view(), min_size=1, max_size=8),
    st.sampled_from(sorted(WAYS)),
    st.sampled_from(["first step", None]),
    st.integers(0, 9),
)
def test_any_views_of_any_storages_come_back_as_they_were(
    sizes: list[int], described: list[Any], way: str, verify: Any, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Linear(4, 4)
    device = LazyDevice(seed)
    engine = optimize.offload(model, device=device, verify=verify, **{"threshold": 1, **WAYS[way]})
    with device, engine:
        for _ in range(STEPS):
            storages = [torch.randint(0, 255, (n,), generator=generator, dtype=torch.uint8) for n in sizes]
            views = [seen(storages, one) for one in described]
            expected, got = [bytes_of(one) for one in views], list[Any]()
            loss = Saves.apply(model(torch.ones(4)), views, got).sum()  # type: ignore[attr-defined]
            del storages, views
            loss.backward()
            assert got == expected


# Any programs.


def tight(weights: Weights) -> dict[str, Any]:
    """A little more than what is there at all times, so that most of what is saved has to move."""
    held = sum(2 * p.numel() * p.element_size() for p in weights.parameters())
    return {"budget": held + 24_000, "threshold": 1}


BUDGETS = {
    "everything moves": lambda _: {"plan": "everything", "threshold": 1},
    "everything fits": lambda _: {"budget": "1 GiB", "threshold": 1},
    "tight": tight,
}


@pytest.mark.parametrize("part", range(4))
def test_random_programs_have_the_same_gradients_to_the_bit(part: int) -> None:
    ended = Counter[str]()
    wrong = list[Any]()
    for seed in range(part, PROGRAMS, 4):
        weights = Weights(seed)
        expected = Program(seed).run(weights)
        ended["raises" if expected[0] == "raised" else "has gradients"] += 1
        for name, options in BUDGETS.items():
            device = LazyDevice(seed) if seed % 2 else ThreadedDevice()
            engine = optimize.offload(weights, device=device, **options(weights))
            for step in range(STEPS):
                try:
                    if isinstance(device, LazyDevice):
                        with device, engine:
                            found = Program(seed).run(weights)
                    else:
                        with engine:
                            found = Program(seed).run(weights)
                except Refused as refused:
                    ended[refused.reason.split(":")[0][:60]] += 1
                    break
                if found != expected:
                    wrong.append((seed, name, step))
            ended["moved"] += engine.report().moved > 0
            if isinstance(device, LazyDevice):
                assert device.lost == []
    print(ended)
    assert wrong == []
    assert ended["moved"] > PROGRAMS // 4


def as_saved(seed: int, weights: Weights) -> Any:
    """With every saved tensor copied at its save: what a write that nobody sees does not reach."""

    def pack(tensor: torch.Tensor) -> Any:
        return claims.Version(tensor), tensor.detach().clone(memory_format=torch.preserve_format)

    def unpack(packed: Any) -> torch.Tensor:
        packed[0].check()
        return packed[1]

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return Program(seed, unseen=15).run(weights)


def test_what_is_written_through_data_is_as_saved_where_it_moves_and_as_written_where_it_stays() -> None:
    """Or the first step is refused: a second save of memory that was written in between."""
    ended = Counter[str]()
    for seed in range(100_000, 100_000 + max(20, PROGRAMS // 5)):
        weights = Weights(seed)
        plain = Program(seed, unseen=15).run(weights)
        saved = as_saved(seed, weights)
        for name, options in BUDGETS.items():
            device = LazyDevice(seed)
            engine = optimize.offload(weights, device=device, **options(weights))
            try:
                with device, engine:
                    found = Program(seed, unseen=15).run(weights)
            except Refused as refused:
                ended[refused.reason.split(":")[0][:60]] += 1
                continue
            if plain == saved:
                assert found == plain, (seed, name)
            # What was gathered from a larger storage is a copy, which lets that storage go, and is as saved.
            if name == "everything fits":
                assert found in (plain, saved), (seed, name)
            ended["plain" if found == plain else "as saved" if found == saved else "some of each"] += 1
            ended["tells apart"] += plain != saved
    print(ended)
    assert ended["plain"] and ended["tells apart"]


@pytest.mark.parametrize("way", ["claims", "engine"])
def test_a_weight_that_is_given_other_memory_has_it_in_the_backward(way: str) -> None:
    """As without hooks: autograd saves the weight itself, and not the memory that it had."""
    layer = nn.Module()
    layer.weight = nn.Parameter(torch.arange(4.0))
    engine = optimize.offload(layer, plan="everything", threshold=0, device=ThreadedDevice())
    with claims.hooks() if way == "claims" else engine:
        for step in range(3):
            x = torch.ones(4, requires_grad=True)
            loss = (x * layer.weight).sum()
            layer.weight.data = torch.full((4,), 5.0 + step)
            (first,) = torch.autograd.grad(loss, x, create_graph=True)
            assert first.tolist() == [5.0 + step] * 4
            (second,) = torch.autograd.grad(first.sum(), layer.weight)
            assert second.tolist() == [1.0] * 4
            loss = (x * layer.weight).sum()
            with torch.no_grad():
                layer.weight.mul_(2)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()


def test_inside_a_checkpointed_function_the_engine_is_refused_or_changes_nothing() -> None:
    """Refused where it would switch checkpointing off; the other kind computes without hooks."""
    ended = Counter[str]()
    for seed in range(200_000, 200_000 + max(40, PROGRAMS // 5)):
        weights = Weights(seed)
        program = Program(seed)
        expected = program.run(weights)
        if "checkpointed" not in program.inside:
            continue
        options = ({"plan": "everything"}, {"budget": "1 GiB"})[seed % 2]
        engine = optimize.offload(weights, threshold=1, device=ThreadedDevice(), **options)
        weights.around = lambda engine=engine: engine
        try:
            found = Program(seed).run(weights)
        except Refused as refused:
            known = "inside a checkpointed function", "saved during the backward"  # all that was to move
            found = [reason for reason in known if reason in refused.reason]
            assert found, (seed, refused)
            ended[found[0]] += 1
            assert not engine.entered
        else:
            assert found == expected, seed
            ended["same"] += 1
        del weights.around
        assert Program(seed).run(weights) == expected, seed
    assert ended["inside a checkpointed function"] and ended["same"], ended
