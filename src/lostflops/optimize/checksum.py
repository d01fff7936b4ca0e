"""A checksum of memory on any device, without moving the memory."""

from __future__ import annotations

import torch

_ODD = 0x9E3779B1


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
    square = numbers[: rows * side].view(rows, side)
    tail = memory[8 * words :].to(torch.int64)
    total = torch.full((), memory.numel(), dtype=torch.int64, device=memory.device)
    for sums in (square.sum(0), square.sum(1), numbers[rows * side :], tail):
        places = 2 * torch.arange(sums.numel(), device=memory.device) + 1
        total = total * 31 + (sums * places * _ODD).sum()
    return total.reshape(1)
