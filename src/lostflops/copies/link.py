"""How fast a link between host and device is: a time to start a copy, and bytes per second each way."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """A copy takes `launch_ns` and its bytes at the rate per second of its direction."""

    out: float
    into: float
    launch_ns: int = 0

    def out_ns(self, size: int) -> int:
        return self.launch_ns + round(1e9 * size / self.out)

    def in_ns(self, size: int) -> int:
        return self.launch_ns + round(1e9 * size / self.into)

    @property
    def least_bytes(self) -> int:
        """Below this the start of a copy takes longer than its bytes."""
        return round(self.launch_ns * self.out / 1e9)
