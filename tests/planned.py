"""A training job to plan, of which a test changes what it is about."""

from __future__ import annotations

from dataclasses import replace

from lostflops.plan import hardware
from lostflops.plan.layout import Layout
from lostflops.plan.shape import named
from lostflops.plan.static_memory import OPTIMIZERS
from lostflops.plan.training import Training


def job(model: str = "llama-3-8b", gpu: str = "h200", **more: object) -> Training:
    asked = Training(
        shape=named(model),
        gpu=hardware.gpu(gpu),
        link=hardware.link("pcie5"),
        layout=Layout(),
        optimizer=OPTIMIZERS["adam"],
        sequence=4096,
    )
    return replace(asked, **more)  # pyright: ignore[reportArgumentType]
