"""What a pattern of kernel names says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KernelPattern:
    """Kernel names that mean one kind of work.

    `precision` is a precision, the name of a rule in `PRECISION_RULES` that reads it off the name, or empty.
    """

    family: str
    contains: tuple[str, ...]
    source: str
    example: str
    also: str = ""
    precision: str = ""
    tensor_cores: bool | None = None
    library: str | None = None
    kind: str | None = None
