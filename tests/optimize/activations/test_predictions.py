"""What a plan predicts is what a step then takes: real models and the real engine, on a clock of our own.

benchmarks/predictions.py asks the same of the processor's time.
"""

from __future__ import annotations

import gc
from functools import cache, partial
from typing import Any

import pytest
import torch

import tiny_models as models
from predicted_steps import Configuration, Outcome, outcome, virtual_device

PEAK, STEP = 0.05, 0.10


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Each step collects garbage: what the models import need not be gone through each time."""
    lora(1)
    gc.freeze()


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def llama(layers: int = 3, **more: Any) -> Any:
    return models.llama(layers, 64, **more)


def lora(layers: int = 3, **more: Any) -> Any:
    return models.lora(llama(layers), **more)


def some(name: str, model: Any, tokens: tuple[int, int], *given: float, **more: Any) -> Configuration:
    """`given` are the budget as a share of the peak, and bytes per second out and in."""
    return Configuration(name, model, partial(models.llama_batch, *tokens), *given, **more)


PLANNED = [
    some("full, hidden", llama, (64, 2), 0.7, 2e9, 2e9),
    some("full, slow in", llama, (48, 3), 0.7, 3e9, 3e8),
    some("LoRA q, v", partial(lora, 2), (96, 2), 0.75, 2e9, 1e9),
    some("LoRA, checkpointed", partial(lora, 4), (96, 4), 0.95, 2e9, 2e9, checkpointed=True),
    some("full, recomputed", partial(llama, 2), (96, 2), 0.8, 2e9, 2e9, does="recompute"),
    some("full, moved and recomputed", llama, (64, 2), 0.6, 2e9, 2e9, does="both"),
    Configuration(
        "plain transformer",
        partial(models.transformer, 3, 64),
        partial(models.transformer_batch, 64, 2, 64),
        0.75,
        2e9,
        2e9,
    ),
]
FITTING = some("full, fits", partial(llama, 2), (64, 2), 1.0, 2e9, 2e9)


@cache
def found(configuration: Configuration) -> Outcome:
    return outcome(configuration, virtual_device)


@pytest.mark.parametrize("configuration", PLANNED, ids=lambda c: c.name)
def test_peak_and_step_are_what_the_plan_said(configuration: Configuration) -> None:
    ran = found(configuration)
    assert ran.refused is None
    step, peak = ran.errors("planned")
    assert abs(peak) < PEAK and abs(step) < STEP
    # As it is, nothing is left to be modelled: the profile is the step.
    assert ran.errors("without") == (0, 0)
    assert ran.peak_bytes("planned") < ran.peak_bytes("without")
    assert ran.peak_bytes("planned") <= ran.plan["budget_bytes"] * (1 + PEAK)
    if "offload" in configuration.may:
        assert ran.moved_bytes() >= ran.plan["predicted"]["bytes_out"] > 0
    if configuration.does != "offload":
        assert "recompute" in ran.plan["classes"].values()
        assert ran.step_ns("planned") > ran.step_ns("without")


def test_what_fits_is_declined() -> None:
    ran = found(FITTING)
    assert ran.refused is not None and ran.refused.startswith("it fits as it is")
    assert ran.errors("without") == (0, 0)


def test_a_simulator_without_the_way_back_would_be_seen() -> None:
    """The gate can fail: a prediction in which copies in cost nothing is far from this step."""
    ran = found(PLANNED[1])
    naive = ran.plan["predicted"]["without"]["step_ns"]
    assert naive < (1 - STEP) * ran.step_ns("planned")


def test_a_peak_without_what_is_in_flight_would_be_seen() -> None:
    """The gate can fail: all that moves taken off the peak is far from what is measured."""
    ran = found(PLANNED[0])
    predicted = ran.plan["predicted"]
    naive = predicted["without"]["peak_bytes"] - predicted["bytes_out"]
    assert naive < (1 - PEAK) * ran.peak_bytes("planned")
