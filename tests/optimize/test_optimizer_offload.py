"""The optimizer on the host: what is refused, what is noticed, and what stays exposed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lostflops import optimize
from lostflops.optimize.training import optimizer_offloading as module
from lostflops.optimize.training.optimizer_offloading import guard

torch.set_num_threads(1)


def test_on_a_cpu_it_is_refused() -> None:
    with pytest.raises(optimize.Refused, match="parameters lie on cpu"):
        optimize.optimizer_offload(torch.nn.Linear(3, 2).parameters(), lr=1e-3)


def test_what_torchao_would_silently_do_wrong_is_refused() -> None:
    weights = torch.nn.Linear(3, 2).parameters
    with pytest.raises(optimize.Refused, match=r"clipping to 1\.5 has no effect"):
        optimize.optimizer_offload(weights(), max_grad_norm=1.5)
    with pytest.raises(optimize.Refused, match="of 4 backward passes only the last"):
        optimize.optimizer_offload(weights(), offload_gradients=True, accumulation_steps=4)
    frozen = torch.nn.Parameter(torch.zeros(2), requires_grad=False)
    with pytest.raises(optimize.Refused, match="nothing to train"):
        optimize.optimizer_offload([{"params": [frozen]}])


class EarlyCopy(torch.optim.SGD):
    """As torchao's: steps with the gradients as the backward left them."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__(parameters, lr=0.5)
        self.copies: dict[torch.nn.Parameter, torch.Tensor] = {}
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self.copy)  # pyright: ignore

    def copy(self, parameter: Any) -> None:
        self.copies[parameter] = parameter.grad.clone()

    def step(self, closure: Any = None) -> None:  # pyright: ignore
        with torch.no_grad():
            for parameter, grad in self.copies.items():
                parameter -= 0.5 * grad


@pytest.mark.parametrize("guarded", [False, True])
def test_clipping_that_comes_too_late_is_noticed(guarded: bool) -> None:
    model = torch.nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    optimizer = EarlyCopy([model.weight])
    if guarded:
        guard(optimizer, [model.weight])
    for _ in range(2):  # unclipped steps go through
        optimizer.zero_grad()
        model(torch.tensor([[2.0, 3.0, 5.0]])).sum().backward()
        optimizer.step()
    model(torch.ones(1, 3)).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    before = model.weight.clone()
    if not guarded:  # the naive one: the step is not clipped, and nobody hears of it
        optimizer.step()
        assert (model.weight - before).norm() > 1
        return
    with pytest.raises(optimize.Refused, match="changed after it had been copied"):
        optimizer.step()
    assert torch.equal(model.weight, before)


def test_gradients_that_accumulate_are_no_change() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = EarlyCopy(list(model.parameters()))
    guard(optimizer, model.parameters())
    for _ in range(3):
        model(torch.ones(2, 3)).sum().backward()
    optimizer.step()


def test_the_exposed_time_is_what_the_window_does_not_hide() -> None:
    # 40 ms of Adam, 11 GB at 55 GB/s = 200 ms.
    exposed = optimize.exposed_optimizer_seconds
    assert exposed(0.040, 11_000_000_000, 55e9, 0.070) == pytest.approx(0.170)
    assert exposed(0.040, 11_000_000_000, 55e9, 0.300) == 0.0
    with pytest.raises(optimize.Refused):
        exposed(0.040, 1, 0.0, 0.1)
    with pytest.raises(optimize.Refused):
        exposed(-0.040, 1, 1.0, 0.1)


def test_the_hosts_adam_is_measured() -> None:
    measured = optimize.measure_cpu_adam(300_000, repeats=3)
    assert measured["parameters_per_second"] == pytest.approx(300_000 / measured["step_seconds"])
    assert measured["bytes_per_second"] == pytest.approx(28 * measured["parameters_per_second"])
    assert measured["threads"] == 1 and 0 < measured["step_seconds"] <= measured["slowest_step_seconds"]
    with pytest.raises(optimize.Refused):
        optimize.measure_cpu_adam(0)


def test_several_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEVICES", ("cpu",))
    monkeypatch.setattr(module, "_world", lambda: 2)
    with pytest.raises(optimize.Refused, match="before they are reduced"):
        optimize.optimizer_offload(torch.nn.Linear(3, 2).parameters())
