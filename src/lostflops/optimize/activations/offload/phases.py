"""What the engine is doing, from its first microbatch on, and what takes it from one to the next."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    WATCHING = "watching"  # the first microbatch: what is saved, when, and how fast copies are
    TIMING = "timing"  # the second: what is done once, in the first, took time
    MOVING = "moving"
    RESTING = "resting"  # nothing is to move: the engine only looks up once per forward
    OFF = "off"  # nothing moves any more; what has left comes back when asked for


# What may happen in a phase, and which phase is then. What is not in the table cannot happen there.
NEXT: dict[str, dict[Phase, Phase]] = {
    "learned": {Phase.WATCHING: Phase.TIMING},
    "timed, some move": {Phase.TIMING: Phase.MOVING},
    "timed, none moves": {Phase.TIMING: Phase.RESTING},
    # A step needed more than was foreseen.
    "chosen again, some move": {
        Phase.TIMING: Phase.TIMING,
        Phase.MOVING: Phase.MOVING,
        Phase.RESTING: Phase.MOVING,
    },
    "chosen again, none moves": {
        Phase.TIMING: Phase.TIMING,
        Phase.MOVING: Phase.RESTING,
        Phase.RESTING: Phase.RESTING,
    },
    "stopped": dict.fromkeys(Phase, Phase.OFF),
}
