"""A pipeline small enough to check by eye, for examples."""

from __future__ import annotations

from lostflops.recipe import Rows

MS = 1_000_000


def two_stages() -> dict[str, Rows]:
    """Stage 1 takes 30 ms forward and back, stage 0 10 ms; a message travels for 2."""
    kernels = [
        (0, 0, 10, "forward"),
        (1, 12, 42, "forward"),
        (1, 42, 72, "backward"),
        (0, 74, 84, "backward"),
    ]
    messages = [
        (0, 10, 12, "send", 1, 6), (1, 0, 12, "receive", 0, 7), (1, 72, 74, "send", 0, 6),
        (0, 12, 74, "receive", 1, 7),
    ]  # fmt: skip
    return {
        "steps": [
            {"rank": 0, "step": 3, "start": 0, "end": 84 * MS},
            {"rank": 1, "step": 3, "start": 0, "end": 74 * MS},
        ],
        "kernels": [
            {"rank": r, "start": a * MS, "end": b * MS, "family": "gemm", "phase": phase}
            for r, a, b, phase in kernels
        ],
        "collectives": [
            {"rank": r, "start": a * MS, "end": b * MS, "kind": kind, "peer": peer, "stream": stream}
            | {"bytes_in": 8, "bytes_out": 8}
            for r, a, b, kind, peer, stream in messages
        ],
        "ranks": [{"rank": rank, "world_size": 2} for rank in range(2)],
    }


def two_microbatches() -> dict[str, Rows]:
    """Two microbatches, the second longer on stage 0, with a gap in it, and an optimizer after them."""
    kernels = [
        *((0, 0, 10, "forward"), (0, 10, 15, "forward"), (0, 17, 24, "forward"), (1, 12, 42, "forward")),
        *((1, 42, 72, "backward"), (0, 74, 84, "backward"), (1, 74, 104, "forward")),
        *((1, 104, 134, "backward"), (0, 136, 150, "backward")),
        *((0, 156, 163, "optimizer"), (1, 153, 160, "optimizer")),
    ]
    messages = [
        *((0, 10, 12, "send", 6), (1, 0, 12, "receive", 7), (1, 72, 74, "receive", 7)),
        *((0, 24, 74, "send", 6), (1, 72, 74, "send", 8), (0, 24, 74, "receive", 9)),
        (1, 134, 136, "send", 8),
        (0, 84, 136, "receive", 9),
    ]
    return {
        "steps": [
            {"rank": rank, "step": 3, "start": -5 * MS, "end": end * MS} for rank, end in ((0, 170), (1, 165))
        ],
        "kernels": [
            {"rank": r, "start": a * MS, "end": b * MS, "family": "gemm", "phase": phase}
            for r, a, b, phase in kernels
        ],
        "collectives": [
            {"rank": r, "start": a * MS, "end": b * MS, "kind": kind, "peer": 1 - r, "stream": stream}
            | {"bytes_in": 8, "bytes_out": 8}
            for r, a, b, kind, stream in messages
        ],
        "ranks": [{"rank": rank, "world_size": 2} for rank in range(2)],
    }
