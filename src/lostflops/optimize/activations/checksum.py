"""A checksum of memory on any device, without moving the memory, and of a tensor however it lies there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from lostflops.optimize.activations.saved_views import by_stride, without_expanded

_ODD = 0x9E3779B1
AT_ONCE = 1 << 24  # bytes: of a tensor that lies scattered no more than this is gathered at a time


def checksum(memory: torch.Tensor) -> torch.Tensor:
    """64 bits of uint8[n], as int64[1] on its device.

    Sums of integers, so the same on every device and in every order of summing. Words count by their row and
    column in a square, so that words that changed places are noticed.
    """
    words = memory.numel() // 8
    side = 1 << max(0, (words.bit_length() + 1) // 2)
    rows = words // side
    if memory.storage_offset() % 8:
        memory = memory.clone()
    numbers = memory[: 8 * words].view(torch.int64)
    # Each launch counts: most tensors are small, and have no rest. Of what is empty all sums are 0.
    parts: list[tuple[int, torch.Tensor]] = []
    if rows:
        square = numbers[: rows * side].view(rows, side)
        parts += (31**3, square.sum(0)), (31**2, square.sum(1))
    if rows * side < words:
        parts.append((31, numbers[rows * side :]))
    if 8 * words < memory.numel():
        parts.append((1, memory[8 * words :].to(torch.int64)))
    total: torch.Tensor | int = memory.numel() * 31**4
    for factor, part in parts:
        last = 2 * _ODD * part.numel()
        places = torch.arange(_ODD, last, 2 * _ODD, device=memory.device)  # 1, 3, 5, ... of it
        weighed = (part * places).sum()
        total = (weighed.mul_(factor) if factor > 1 else weighed) + total
    if isinstance(total, int):
        return torch.full((1,), total, dtype=torch.int64, device=memory.device)
    return total.reshape(1)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What tells a tensor's elements and their places; `order` of its dimensions is how they were read."""

    sums: torch.Tensor  # int64[1], on the tensor's device
    order: tuple[int, ...]


def fingerprint(tensor: torch.Tensor, order: tuple[int, ...] | None = None) -> Fingerprint:
    """Of the elements, whatever the strides; by the `order` of another's it is equal if the elements are.

    Knows nothing of how saved tensors are taken apart, so that it finds what that does wrong.
    """
    tensor = tensor.detach()
    order = tuple(by_stride(tensor)) if order is None else order
    total: torch.Tensor | None = None
    for flat in _flat(tensor, order):
        found = checksum(flat.view(torch.uint8))
        total = found if total is None else total * 31 + found
    if total is None:
        total = torch.zeros(1, dtype=torch.int64, device=tensor.device)
    return Fingerprint(total, order)


def sketch(tensor: torch.Tensor) -> torch.Tensor:
    """float32[2]: the norm, and the sum of the elements with signs that follow no pattern. By as much as they
    differ, two tensors differ, about: rounding changes them little, other numbers a lot."""
    found = torch.zeros(2, device=tensor.device)
    for flat in _flat(tensor.detach(), tuple(by_stride(tensor))):
        for first in range(0, len(flat), AT_ONCE // 16):
            part = flat[first : first + AT_ONCE // 16]
            if part.is_complex():
                part = torch.view_as_real(part).flatten()
            numbers = part.to(torch.float32)
            places = torch.arange(len(numbers), device=tensor.device)
            signs = places.mul_(_ODD).bitwise_right_shift_(16).bitwise_and_(1).mul_(-2).add_(1)
            found += torch.stack([numbers.square().sum(), (numbers * signs).sum()])
    found[0] = found[0].sqrt()
    return found


def _flat(tensor: torch.Tensor, order: tuple[int, ...]) -> Iterator[torch.Tensor]:
    """Each element of memory once, in one dimension: as it lies, or gathered, not too much at a time."""
    read = without_expanded(tensor).permute(order)
    parts: tuple[torch.Tensor, ...] = (read,)
    if read.dim() and not read.is_contiguous():
        rows = max(1, AT_ONCE // max(1, read[:1].nbytes))
        parts = tuple(read.narrow(0, n, min(rows, len(read) - n)) for n in range(0, len(read), rows))
    for part in parts:
        yield part.contiguous().as_strided((part.numel(),), (1,))  # one element may have any stride
