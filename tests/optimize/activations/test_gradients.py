"""Gradients under the offload engine are those without it, to the bit, in every way of training."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils import checkpoint

import tiny_models
from lostflops.optimize import offload
from lostflops.optimize.device import peak
from lostflops.optimize.device.devices import ThreadedDevice
from lostflops.optimize.refused import Refused
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


@pytest.mark.parametrize("case", ["full fine-tune", "LoRA, checkpointed", "accumulation", "views"])
def test_gradients_are_the_same_to_the_bit(case: str) -> None:
    build, step = CASES[case]
    model = build()
    with offload(model, plan="everything", threshold=64, device=ThreadedDevice()) as engine:
        found = trained(model, step, 3)
    assert differences(expected(case), found) == []
    report = engine.report()
    assert report.out.bytes > 0
    assert report.into.bytes > 0


@pytest.mark.parametrize(("case", "done"), [(case, ("never", 5)[n % 2]) for n, case in enumerate(CASES)])
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


# Sharded over processes.

TENSOR_PARALLEL = """
import json, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from lostflops.optimize import offload
from lostflops.optimize.device import peak
from lostflops.optimize.device.devices import ThreadedDevice
from lostflops.optimize.refused import Refused

rank, file = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + file, rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
parallelize_module(model, mesh, {"0": ColwiseParallel(use_local_output=False), "2": RowwiseParallel()})
x = torch.randn(48, 32)

def step():
    for p in model.parameters():
        p.grad = None
    loss = model(x).square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad.to_local().clone() for p in model.parameters())]

plain = step()
try:
    with saved_tensors_hooks(lambda t: torch.empty(t.shape).copy_(t), lambda t: t):
        step()
    naive = "no error"
except RuntimeError as error:
    naive = "mixed" if "DTensor" in str(error) else str(error)
with offload(model, plan="everything", threshold=64, device=ThreadedDevice()) as engine:
    found = [step() for _ in range(3)]
same = all(torch.equal(a, b) for one in found for a, b in zip(plain, one))
print(json.dumps({"same": same, "naive": naive, "in": engine.report().into.bytes}))
dist.destroy_process_group()
"""


def test_tensor_parallel_training_is_the_same_with_and_without(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TENSOR_PARALLEL]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "meet")], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for rank in ranks:
        told, _ = rank.communicate(timeout=120)
        found = json.loads(told.splitlines()[-1])
        assert found["same"]
        assert found["in"] > 0
        assert found["naive"] == "mixed"


# Tensors made of tensors.


def nf4(seed: int = 0) -> Any:
    from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import linear_nf4, to_nf4

    class Quantised(nn.Module):
        """A frozen NF4 weight and a trainable adapter."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(seed)
            self.weight = nn.Parameter(to_nf4(torch.randn(64, 64), 32, 2), requires_grad=False)
            self.down, self.up = nn.Linear(64, 4, bias=False), nn.Linear(4, 64, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return linear_nf4(x, self.weight) + self.up(self.down(x)).tanh()

    return nn.Sequential(Quantised(), nn.GELU(), Quantised())


def fp8() -> Any:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    return convert_to_float8_training(tiny_models.mlp(hidden=64), config=Float8LinearConfig(emulate=True))


def pairs(model: Any, number: int) -> None:
    """Activations that are a subclass, made of two tensors."""
    from torch.testing._internal.two_tensor import TwoTensor

    x = tiny_models.mlp_batch(hidden=64, seed=number)
    y = TwoTensor(x, 2 * x)
    for layer in model:
        y = layer(y)
    (y * y).mean().backward()


def pair_of_weights(hidden: int = 64) -> Any:
    from torch.testing._internal.two_tensor import TwoTensor

    model = tiny_models.mlp(layers=2, hidden=hidden)
    for module in model:
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(TwoTensor(parameter.detach(), parameter.detach() / 2)))
    return model


@pytest.mark.parametrize(
    ("build", "step"),
    [
        (nf4, plain(loss_of, lambda number: tiny_models.mlp_batch(hidden=64, seed=number))),
        (fp8, plain(loss_of, lambda number: tiny_models.mlp_batch(hidden=64, seed=number))),
        (pair_of_weights, pairs),
    ],
)
def test_tensors_made_of_tensors_are_taken_apart_and_put_together(build: Any, step: Step) -> None:
    right = trained(build(), step, 3)
    model, device = build(), LazyDevice()
    with device, offload(model, plan="everything", threshold=64, device=device) as engine:
        found = trained(model, step, 3)
    assert differences(right, found) == []
    assert engine.report().into.bytes > 0
    assert device.lost == []


# Anything at all.

SIZES = st.integers(0, 40)
DO = st.one_of(
    st.tuples(
        st.sampled_from(["exp", "sin", "sigmoid", "square", "transpose", "tail", "expand"]), SIZES, SIZES
    ),
    st.tuples(st.sampled_from(["mul", "add", "drop", "matmul"]), SIZES, SIZES),
    st.tuples(st.sampled_from(["backward", "again", "fail", "linear"]), SIZES, SIZES),
)


class Failed(Exception):
    pass


def run(program: list[tuple[str, int, int]], weight: torch.Tensor) -> None:
    """Does as told with a list of matrices; what does not fit is passed by."""
    live = [weight * 1.5, weight.sin()]
    for what, i, j in program:
        if not live:
            live.append(weight * 2)
        x, y = live[i % len(live)], live[j % len(live)]
        if what in ("exp", "sin", "sigmoid", "square"):
            live.append(getattr(torch, what)(x.clamp(-2, 2)))
        elif what == "transpose":
            live.append(x.t())
        elif what == "tail":
            live.append(x[j % (len(x) + 1) :, :: 1 + j % 3])
        elif what == "expand" and len(x):
            live.append(x[:1].expand(3 + j % 5, -1) * 0.5 if j % 2 else x[:1].expand(3 + j % 5, -1))
        elif what in ("mul", "add") and x.shape == y.shape:
            live.append(x * y if what == "mul" else x + y)
        elif what == "matmul" and x.shape[1] == y.shape[0]:
            live.append((x @ y).clamp(-2, 2))
        elif what == "linear" and x.shape[1] == weight.shape[0]:
            live.append((x @ weight).tanh())
        elif what == "drop":
            del live[i % len(live)]
        elif what in ("backward", "again"):
            x.mean().backward(retain_graph=True) if x.numel() else None
            if what == "again" and x.numel():
                x.mean().backward(retain_graph=True)
        elif what == "fail" and j > 30:
            raise Failed
        del x, y


@settings(
    max_examples=10,
    phases=[Phase.explicit, Phase.generate],
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    programs=st.lists(st.lists(DO, min_size=3, max_size=20), min_size=2, max_size=3), seed=st.integers(0, 99)
)
def test_any_program_has_its_gradients_and_leaves_nothing_behind(programs: Any, seed: int) -> None:
    """What lives afterwards is what lives without the engine: the weight and its gradient."""

    def gradients_of(model: nn.Module) -> list[bytes | None]:
        found: list[bytes | None] = []
        for program in programs:
            model.zero_grad()
            with suppress(Failed):
                run(program, next(model.parameters()))
            gradient = next(model.parameters()).grad
            found.append(None if gradient is None else gradient.numpy().tobytes())
        return found

    torch.manual_seed(seed)
    model = nn.Linear(12, 12, bias=False)
    right = gradients_of(model)
    device = LazyDevice(seed)
    engine = offload(model, plan="everything", threshold=64, device=device)
    found = None
    with peak.measured("cpu") as meter, device:
        with suppress(Refused), engine:  # where nothing could move
            found = gradients_of(model)
        engine._schedule.finish()
        engine.report()
        torch.ones(1)
        if meter.live_bytes > 2 * 576:  # an exception and its frames are a cycle
            gc.collect()
            torch.ones(1)
    weights = [t for p in model.parameters() for t in (p, p.grad) if t is not None]
    assert found is None or found == right
    assert engine._schedule.resident_bytes == engine._arena.used_bytes == 0
    assert meter.live_bytes <= sum(t.numel() * 4 for t in weights) + 16
    assert device.lost == []


def test_inference_before_anything_is_learned_is_the_same_to_the_bit() -> None:
    """torch's transformer layers have a fast path, which rounds otherwise, for inference without hooks."""
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    x, padded = torch.randn(3, 7, 16), torch.zeros(3, 7, dtype=torch.bool)
    padded[0, -1] = True
    stack = nn.ModuleDict({"layer": model})
    stack.forward = lambda x: model(x, src_key_padding_mask=padded)  # type: ignore[method-assign]
    with torch.no_grad():
        plain = stack(x)
    with offload(stack, plan="everything", threshold=1, device=ThreadedDevice()):
        for _ in range(3):
            with torch.no_grad():
                assert torch.equal(stack(x), plain)
            stack(x).square().mean().backward()
