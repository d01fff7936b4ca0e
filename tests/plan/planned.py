"""A training job to plan, of which a test changes what it is about; and patience for a busy machine."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, settings

from lostflops.plan import hardware
from lostflops.plan.models import named
from lostflops.plan.train.job import Training
from lostflops.plan.train.layout import Layout
from lostflops.plan.train.static_memory import OPTIMIZERS

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def job(model: str = "llama-3-8b", gpu: str = "h200", **more: object) -> Training:
    """A job on a card with one rate for everything, as the reference computes its tables."""
    card = hardware.gpu(gpu)
    asked = Training(
        shape=named(model),
        gpu=hardware.one_rate(card, card.sustained, card.status),
        link=hardware.link("pcie5"),
        layout=Layout(),
        optimizer=OPTIMIZERS["adam"],
        sequence=4096,
    )
    return replace(asked, **more)  # pyright: ignore[reportArgumentType]
