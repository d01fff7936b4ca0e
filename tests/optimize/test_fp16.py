"""fp16 with a scaled loss: gradients are true wherever they are used, and undoing leaves true ones."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import tiny_models
from lostflops import optimize
from lostflops.optimize import Refused

torch.set_num_threads(1)


def fp16(lr: float = 0.1, **options: Any) -> tuple[Any, Any, Any]:
    model = tiny_models.mlp(2, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    return model, optimizer, optimize.to_fp16(model, optimizer, scheduler, **options)


def test_a_skipped_step_skips_the_scheduler_too() -> None:
    model, optimizer, scaled = fp16()
    weights = [parameter.clone() for parameter in model.parameters()]
    rates = [optimizer.param_groups[0]["lr"]]
    stepped = []
    for overflow in (True, False, True):
        loss = model(tiny_models.mlp_batch(4, 8)).float().square().mean()
        scaled.backward(loss * (1e38 if overflow else 1))
        stepped.append(scaled.step())
        optimizer.zero_grad()
        rates.append(optimizer.param_groups[0]["lr"])
    assert stepped == [False, True, False]
    assert rates == [0.1, 0.1, 0.05, 0.05]
    assert scaled.skipped == [1, 3] and scaled.scale == 16384
    assert "2 of 3 steps, 2 in the first 100" in str(scaled.report())
    assert not torch.equal(next(model.parameters()), weights[0])
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("naive", [False, True])
def test_clipping_sees_true_gradients(naive: bool) -> None:
    """Clipped before unscaling, gradients shrink by the scale: the naive loop hardly moves the weights."""
    model, optimizer, scaled = fp16(lr=1.0, max_norm=0.01)
    before = torch.cat([parameter.detach().flatten().clone() for parameter in model.parameters()])
    scaled.backward(model(tiny_models.mlp_batch(4, 8)).float().square().mean() * 10)
    if naive:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        with pytest.warns(UserWarning, match="65,536 times too large"):
            scaled.scaler.step(optimizer)
    else:
        assert scaled.step()
    moved = (torch.cat([parameter.detach().flatten() for parameter in model.parameters()]) - before).norm()
    assert (abs(moved.item() - 0.01) < 1e-4) != naive


def test_accumulated_gradients_are_those_of_fp32() -> None:
    model, optimizer, scaled = fp16(lr=1.0)
    reference = tiny_models.mlp(2, 8)
    for seed in (1, 2, 3):
        batch = tiny_models.mlp_batch(4, 8, seed)
        scaled.backward(model(batch).float().square().mean() / 3)
        (reference(batch).square().mean() / 3).backward()
    scaled.scaler.unscale_(optimizer)
    for parameter, other in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(parameter.grad, other.grad, rtol=2e-2, atol=1e-5)


def test_churn_is_counted_after_the_warm_up() -> None:
    model, optimizer, scaled = fp16(lr=0.0)
    batch = tiny_models.mlp_batch(4, 8)

    def steps(count: int, overflows: int) -> None:
        for number in range(count):
            scaled.backward(model(batch).float().square().mean() * (1e38 if number < overflows else 1))
            scaled.step()
            optimizer.zero_grad()

    steps(100, 5)
    assert scaled.churn is None and "CHURN" not in str(scaled.report())
    steps(100, 1)
    assert scaled.churn == 0.01 and "CHURN" not in str(scaled.report())
    steps(10, 2)
    assert scaled.churn == 3 / 110 and "CHURN          2.7 of 100" in str(scaled.report())
    again = fp16()[2]
    again.load_state_dict(scaled.state_dict())
    assert again.skipped == scaled.skipped and again.scale == scaled.scale == 65536 / 2**8
    assert again.report() == scaled.report()


def test_the_optimizers_own_step_is_refused_where_gradients_are_scaled() -> None:
    model, optimizer, scaled = fp16()
    weights = [parameter.clone() for parameter in model.parameters()]
    scaled.backward(model(tiny_models.mlp_batch(4, 8)).float().square().mean())
    with pytest.raises(Refused, match="65,536 times too large"):
        optimizer.step()
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), weights, strict=True))
    assert scaled.step()
    optimizer.zero_grad()
    scaled.undo()
    model(tiny_models.mlp_batch(4, 8)).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize(("scale", "overflows"), [(1024.0, False), (2.0**30, True)])
def test_undone_before_a_step_gradients_are_unscaled_and_those_that_overflowed_are_dropped(
    scale: float, overflows: bool
) -> None:
    found: list[Any] = []
    for scaled in (True, False):
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 8)
        x = torch.randn(4, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if scaled:
            with optimize.to_fp16(model, optimizer, scale=scale) as fp16:
                fp16.backward(model(x).float().square().mean())
                fp16.backward(model(x).float().square().mean())
        else:
            for _ in range(2):
                model(x).square().mean().backward()
        found.append(model.weight.grad)
        optimizer.step()
        assert bool(torch.isfinite(model.weight).all())
    if overflows:
        assert found[0] is None
    else:
        torch.testing.assert_close(found[0], found[1], rtol=0.01, atol=1e-3)


def test_gradients_that_are_scaled_by_hand_or_left_by_a_step_that_failed_are_no_others() -> None:
    """A bare step went by gradients 65,536 times too large where the scaler was used by hand."""
    x = tiny_models.mlp_batch(4, 8)
    model, optimizer, scaled = fp16(max_norm=1.0)
    weights = [parameter.clone() for parameter in model.parameters()]
    scaled.scaler.scale(model(x).float().square().mean()).backward()
    with pytest.raises(Refused, match="65,536 times too large"):
        optimizer.step()
    with pytest.raises(Refused, match="another optimizer"):  # SGD, made of some of the same parameters
        torch.optim.SGD(list(model.parameters())[:1], 0.1).step()
    broken = optimizer.register_step_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        scaled.step()
    with pytest.raises(Refused, match="have been unscaled for a step"):
        scaled.backward(model(x).float().square().mean())
    broken.remove()
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), weights, strict=True))
    assert scaled.step() and scaled.steps == 1
    optimizer.zero_grad()
    model(x).float().square().mean().backward()
    with pytest.raises(Refused, match="no loss was scaled"):
        optimizer.step()
    with pytest.raises(Refused, match="a closure computes"):
        optimizer.step(lambda: model(x).float().square().mean())
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="does not require grad"):
        scaled.backward(torch.ones(()))
    model(x).float().square().mean().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    scaled.undo()
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
    optimizer.step()


def test_a_loss_that_was_not_scaled_adds_nothing_to_scaled_gradients_and_clipping_them_is_warned_of() -> None:
    """Both counted as 1/65,536 of what they are, without a word."""
    x = tiny_models.mlp_batch(4, 8)
    model, optimizer, scaled = fp16()
    parameters = list(model.parameters())
    for by_hand in (False, True):
        loss = model(x).float().square().mean()
        scaled.scaler.scale(loss).backward() if by_hand else scaled.backward(loss)
        gradients = [each.grad.clone() for each in parameters]
        torch.autograd.grad(model(x).float().sum(), parameters)  # adds to none
        with pytest.raises(
            Refused, match="not scaled would add to gradients that are 65,536 times too large"
        ):
            model(x).float().sum().backward()
        assert all(torch.equal(p.grad, g) for p, g in zip(parameters, gradients, strict=True))
        scaled.scaler.unscale_(optimizer)
        model(x).float().sum().backward()  # of true ones
        assert scaled.step()
        optimizer.zero_grad()
    scaled.backward(model(x).float().square().mean())
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    with pytest.warns(UserWarning, match="65,536 times too large: clipping makes them too small"):
        scaled.step()
    optimizer.zero_grad(set_to_none=False)
    scaled.backward(model(x).float().square().mean())
    with warnings.catch_warnings(action="error"):
        scaled.scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        scaled.step()
    scaled.backward(model(x).float().square().mean())
    scaled.undo()
    model(x).float().sum().backward()


def test_clipping_between_two_backwards_of_a_step_is_warned_of_and_other_memory_or_zeros_are_not() -> None:
    x = tiny_models.mlp_batch(4, 8)
    model, optimizer, scaled = fp16()
    parameters = list(model.parameters())

    def moved() -> None:
        for each in parameters:
            each.grad = each.grad.clone()

    def clamped() -> None:
        for each in parameters:
            each.grad = each.grad.clamp(-1, 1)

    for between, words in (
        (lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0), "changed between .* and the next backward"),
        (clamped, "changed between .* and the next backward"),
        (moved, None),
        (lambda: optimizer.zero_grad(set_to_none=False), None),
    ):
        scaled.backward(model(x).float().square().mean())
        between()
        with pytest.warns(UserWarning, match=words) if words else warnings.catch_warnings(action="error"):
            scaled.backward(model(x).float().square().mean())
        assert scaled.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("zeroed", [True, False])
def test_a_parameter_outside_the_optimizer_and_gradients_that_nobody_zeroed_are_true_ones(
    zeroed: bool,
) -> None:
    """Those outside stayed scaled; what was left from a step was added to scaled ones."""
    found: list[list[torch.Tensor]] = []
    for kind in ("fp16", "by hand", "plain"):
        torch.manual_seed(0)
        weights = [nn.Parameter(torch.randn(3)) for _ in range(3)]
        model = nn.ParameterList(weights)
        optimizer = torch.optim.SGD(weights[:2], lr=0.25)
        scaled = None if kind == "plain" else optimize.to_fp16(model, optimizer, scale=1024.0)
        for number in range(3):
            loss = sum((weight * (number + 1)).square().sum() for weight in weights)
            if scaled is None:
                loss.backward()
                optimizer.step()
            elif kind == "fp16":
                scaled.backward(loss)
                scaled.step()
            else:
                scaled.scaler.scale(loss).backward()
                scaled.scaler.step(optimizer)
                scaled.scaler.update()
            if zeroed:
                optimizer.zero_grad()
        if number == 2 and scaled is not None:
            scaled.undo()
        found.append([*(w.detach() for w in weights), *(w.grad for w in weights if w.grad is not None)])
    for each in found[:2]:
        assert all(torch.equal(one, other) for one, other in zip(each, found[2], strict=True))


def test_a_step_without_gradients_is_one_and_undo_makes_all_gradients_true() -> None:
    model, optimizer, scaled = fp16()
    x, rate = tiny_models.mlp_batch(4, 8), optimizer.param_groups[0]["lr"]
    scaled.backward(model(x).float().square().mean())
    optimizer.zero_grad()
    assert scaled.step() and optimizer.param_groups[0]["lr"] == rate / 2
    outside = nn.Parameter(torch.ones(2))
    model.outside = outside
    scaled.backward(outside.square().sum())
    state = scaled.state_dict()
    scaled.backward(model(x).float().square().mean())
    with pytest.raises(Refused, match="loading changes the scale"):
        scaled.load_state_dict(state)
    scaled.undo()
    assert outside.grad.tolist() == [2.0, 2.0]
    assert not {"scale", "step", "update", "unscale_"} & set(vars(scaled.scaler))


def test_a_model_that_is_cast_already_is_not_cast_again() -> None:
    """The first one's dtype went on, and fp16 was reported of products in bf16."""
    model = tiny_models.mlp(2, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with optimize.autocast(model):
        for again in (optimize.autocast, lambda model: optimize.to_fp16(model, optimizer)):
            with pytest.raises(Refused, match="computes in bfloat16 by optimize already"):
                again(model)
        copied = copy.deepcopy(model)
    optimize.to_fp16(model, optimizer)
    optimize.autocast(copied)


def test_a_loss_that_is_not_finite_skips_every_step_and_the_scheduler_for_good() -> None:
    """The scale is halved until it is 0, from which it cannot fall."""
    _, optimizer, scaled = fp16(scale=2.0**-140)
    weight, rate = nn.Parameter(torch.ones(1)), optimizer.param_groups[0]["lr"]
    optimizer.add_param_group({"params": [weight]})
    for _ in range(15):
        scaled.backward((weight * float("nan")).sum())
        assert not scaled.step()
        optimizer.zero_grad()
    assert scaled.scale == 0 and len(scaled.skipped) == 15
    assert optimizer.param_groups[0]["lr"] == rate and weight == 1


def test_fp16_refuses_fp16_weights_and_a_step_without_gradients() -> None:
    model = tiny_models.mlp(2, 8).half()
    with pytest.raises(Refused, match="fp32"):
        optimize.to_fp16(model, torch.optim.SGD(model.parameters(), 0.1))
    model, _, scaled = fp16()
    with pytest.raises(Refused, match="no backward"):
        scaled.step()
    scaled.undo()
    assert "forward" not in model.__dict__
