"""What checkpointing did to one step: saved bytes, peak, recomputed products and gradients, without and with
it."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lostflops.optimize.activations.random_numbers import RandomNumbers
from lostflops.optimize.amounts import written
from lostflops.optimize.device import peak
from lostflops.optimize.remedy import Report

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

GEMMS = frozenset(
    f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_grouped_mm", "convolution")
)


@dataclass(frozen=True)
class CheckpointingMeasured(Report):
    """A step without checkpointing and one with it. Bytes of saved tensors count each storage once, and no
    parameters."""

    document = "checkpointing measured"

    saved_bytes_before: int
    saved_bytes_after: int
    of_these_kept_bytes: int
    peak_bytes_before: int
    peak_bytes_after: int
    gemms_before: int
    gemms_recomputed: int
    layers_recomputed: int
    gradients_differing: tuple[str, ...]
    gradients_repeatable: bool  # two steps without checkpointing have equal gradients
    peak_by: str

    def record(self) -> dict[str, Any]:
        """The same as `to_json`."""
        return self.to_json()

    def __str__(self) -> str:
        share = 100 * self.gemms_recomputed / self.gemms_before if self.gemms_before else 0.0
        if not self.gradients_differing:
            gradients = "equal to the bit"
        elif self.gradients_repeatable:
            gradients = f"DIFFERENT in {len(self.gradients_differing)}: {self.gradients_differing[0]}, ..."
        else:
            gradients = "differ, but so do those of two steps without checkpointing"
        saved = f"{written(self.saved_bytes_before)} -> {written(self.saved_bytes_after)}"
        highest = f"{written(self.peak_bytes_before)} -> {written(self.peak_bytes_after)}"
        products = f"{self.gemms_recomputed} matrix products more ({share:.0f} % of {self.gemms_before})"
        lines = [
            f"saved          {saved}, of these {written(self.of_these_kept_bytes)} kept by policy",
            f"peak           {highest}, measured by {self.peak_by}",
            f"recomputed     {self.layers_recomputed} modules; {products}",
            f"gradients      {gradients}",
        ]
        if self.peak_bytes_after >= self.peak_bytes_before:
            lines.append(
                "THE PEAK DID NOT FALL: it lies elsewhere, in the logits and the loss or in the recomputation"
            )
        return "\n".join(lines)


@dataclass(frozen=True)
class Step:
    saved_bytes: int
    kept_bytes: int
    peak_bytes: int
    gemms: int
    recomputed: int
    gradients: list[torch.Tensor | None]


class Storages:
    """Bytes of the storages that were shown to it, each once and no parameters. Keeps them alive, so that
    none gets the address of another."""

    def __init__(self, besides: Sequence[torch.Tensor]) -> None:
        self._besides = {
            peak.address_of(storage) for tensor in besides for storage in peak.storages_of(tensor)
        }
        self._seen: dict[int, torch.UntypedStorage] = {}

    @property
    def nbytes(self) -> int:
        return sum(storage.nbytes() for storage in self._seen.values())

    def pack(self, tensor: Any) -> Any:
        for storage in peak.storages_of(tensor):
            if peak.address_of(storage) not in self._besides:
                self._seen[peak.address_of(storage)] = storage
        # A saved output that is handed back as it is keeps its own node alive for ever.
        return tensor.detach() if isinstance(tensor, torch.Tensor) else tensor


class Gemms(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += func.name().partition(".")[0] in GEMMS
        return func(*args, **(kwargs or {}))


@contextmanager
def state_put_back(model: torch.nn.Module) -> Generator[None]:
    """Gradients away, and everything that a step changes back afterwards, random numbers included."""
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        numbers = RandomNumbers(model)
        with cast("Any", torch.random).fork_rng(), numbers.as_they_were(numbers.states()):
            yield
    finally:
        with torch.no_grad():
            for buffer, was in buffers:
                if not torch.equal(buffer, was):
                    buffer.copy_(was)
        for parameter, gradient in gradients:
            parameter.grad = gradient


def differing(
    names: Sequence[str], one: Sequence[torch.Tensor | None], other: Sequence[torch.Tensor | None]
) -> list[str]:
    def equal(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
        return a is b if a is None or b is None else torch.equal(a, b)

    return [name for name, a, b in zip(names, one, other, strict=True) if not equal(a, b)]
