"""Gradients under the offload engine are those without it, to the bit, in every way of training."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils import checkpoint

import tiny_models
from lostflops.optimize import offload
from lostflops.optimize.device import ThreadedDevice
from simulated_devices import LazyDevice
from tiny_models import gradients, loss_of

torch.set_num_threads(1)

Step = Callable[[Any, int], Any]

llama = partial(tiny_models.llama, layers=2)
transformer = partial(tiny_models.transformer, layers=2)
mlp = partial(tiny_models.mlp, layers=3)


def lora() -> Any:
    return tiny_models.lora(llama())


def llama_batch(number: int) -> Any:
    return tiny_models.llama_batch(sequence=16, seed=number)


def transformer_batch(number: int) -> Any:
    return tiny_models.transformer_batch(sequence=16, seed=number)


def trained(
    model: Any, step: Step, steps: int, before_freeing: Callable[[], None] = lambda: None
) -> list[dict[str, torch.Tensor]]:
    """The gradients of each step, with plain SGD between them."""
    found: list[dict[str, torch.Tensor]] = []
    for number in range(steps):
        torch.manual_seed(number)
        step(model, number)
        found.append(gradients(model))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=0.1)
        before_freeing()
        for parameter in model.parameters():
            parameter.grad = None
    return found


def differences(one: list[dict[str, torch.Tensor]], other: list[dict[str, torch.Tensor]]) -> list[str]:
    assert [step.keys() for step in one] == [step.keys() for step in other]
    assert all(one)
    return [
        f"step {number}: {name}"
        for number, step in enumerate(one)
        for name in step
        if not torch.equal(step[name], other[number][name])
    ]


def plain(loss: Callable[[Any, Any], torch.Tensor], batch: Callable[[int], Any]) -> Step:
    return lambda model, number: loss(model, batch(number)).backward()


def accumulated(model: Any, number: int) -> None:
    for part in range(3):
        (loss_of(model, llama_batch(10 * number + part)) / 3).backward()


def retained(model: Any, number: int) -> None:
    loss = loss_of(model, llama_batch(number))
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)
    loss.backward()


def two_losses(model: Any, number: int) -> None:
    """The second forward comes before the first backward, and both backwards go through what they share."""
    first = loss_of(model, llama_batch(number))
    second = loss_of(model, llama_batch(number + 100))
    (first * 2).backward(retain_graph=True)
    (first + second).backward()


def autocast(model: Any, number: int) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(model, llama_batch(number))
    loss.backward()


def scaled(model: Any, number: int) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with torch.autocast("cpu", torch.float16):
        loss = loss_of(model, transformer_batch(number))
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


def penalised(model: Any, number: int) -> None:
    """The gradient of a gradient."""
    x = tiny_models.mlp_batch(seed=number).requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).square().mean(), x, create_graph=True)
    (gradient.square().sum() + model(x).mean()).backward()


def lengths(model: Any, number: int) -> None:
    loss_of(model, tiny_models.llama_batch(sequence=(16, 9, 24)[number % 3], seed=number)).backward()


def half_empty(model: Any, number: int) -> None:
    x = tiny_models.mlp_batch(seed=number)
    loss = torch.cat([model(x[:0]).square(), model(x).square()]).mean() + (model(x[:0]) * 2).sum()
    loss.backward()


def twice(model: Any, number: int) -> None:
    x = transformer_batch(number)
    for _ in range(2):
        for block in model.blocks:
            x = block(x)
    model.head(x).square().mean().backward()


def views(model: Any, number: int) -> None:
    """Saves shifted, transposed, strided and expanded views, mostly the only keepers of their memory."""
    y = model(tiny_models.mlp_batch(seed=number))
    shifted = y.exp()[:, 1:]
    transposed = y.sigmoid().t()
    strided = y.tanh()[::3, ::2]
    expanded = y.mean(0).exp().expand(7, -1)
    tail = y.cos()[-5:]
    del y
    parts = (shifted * shifted, transposed.square(), strided**3, expanded * expanded.sin(), tail * tail)
    sum(part.mean() for part in parts).backward()


def frozen_inputs(model: Any) -> Any:
    model.enable_input_require_grads()
    return model


def hf_checkpointed(model: Any) -> Any:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def _keep_products(_: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
    keep = func in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
    policy = checkpoint.CheckpointPolicy
    return policy.MUST_SAVE if keep else policy.PREFER_RECOMPUTE


def selective(model: Any) -> Any:
    contexts = partial(checkpoint.create_selective_checkpoint_contexts, _keep_products)
    for block in model.blocks:
        block.forward = partial(
            checkpoint.checkpoint, block.forward, use_reentrant=False, context_fn=contexts
        )
    return model


def compiled(model: Any) -> Any:
    """As torch.compile leaves it where no compiler is: the graph's saves belong to one autograd function."""
    for block in model.blocks:
        block.mlp = torch.compile(block.mlp, backend="aot_eager")
    return model


CASES: dict[str, tuple[Callable[[], Any], Step]] = {
    "full fine-tune": (llama, plain(loss_of, llama_batch)),
    "LoRA": (lora, plain(loss_of, llama_batch)),
    "LoRA with dropout": (lambda: tiny_models.lora(llama(), dropout=0.3), plain(loss_of, llama_batch)),
    "checkpointed": (lambda: hf_checkpointed(llama()), plain(loss_of, llama_batch)),
    "LoRA, checkpointed": (
        lambda: hf_checkpointed(frozen_inputs(lora())),
        plain(loss_of, llama_batch),
    ),
    "selectively checkpointed": (
        lambda: selective(transformer()),
        plain(loss_of, transformer_batch),
    ),
    "three backwards of one graph": (llama, retained),
    "two losses": (llama, two_losses),
    "accumulation": (llama, accumulated),
    "autocast": (llama, autocast),
    "scaled fp16": (transformer, scaled),
    "tied weights": (partial(llama, tie_word_embeddings=True), plain(loss_of, llama_batch)),
    "modules called twice": (transformer, twice),
    "dynamic shapes": (llama, lengths),
    "empty tensors": (mlp, half_empty),
    "double backward": (mlp, penalised),
    "views": (mlp, views),
    "compiled": (lambda: compiled(transformer()), plain(loss_of, transformer_batch)),
}
_EXPECTED: dict[str, Any] = {}


def expected(case: str) -> Any:
    if case not in _EXPECTED:
        build, step = CASES[case]
        _EXPECTED[case] = trained(build(), step, 3)
    return _EXPECTED[case]


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_the_same_to_the_bit(case: str) -> None:
    build, step = CASES[case]
    model = build()
    with offload(model, plan="everything", threshold=64, device=ThreadedDevice()) as engine:
        found = trained(model, step, 3)
    assert differences(expected(case), found) == []
    report = engine.report()
    assert report.out.bytes > 0
    assert report.into.bytes > 0


@pytest.mark.parametrize("done", ["never", 5])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_the_same_where_copies_run_as_late_as_they_may(case: str, done: str | int) -> None:
    build, step = CASES[case]
    model = build()
    device = LazyDevice(done)
    with device, offload(model, plan="everything", threshold=64, device=device) as engine:
        found = trained(model, step, 3)
    assert differences(expected(case), found) == []
    assert device.lost == []
    assert device.copies > 0
    assert engine.report().into.bytes > 0
