"""What a rank's program is made of: what its host does, one after the other, and what that starts elsewhere.

Every instruction costs the host its own time. Work that it launches runs on a stream, in order, no earlier
than what the stream was told to wait for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lostflops.lab.simulate.model.blocks import OperatorBlock

COMPUTE = 7  # the stream of computation
Frame = tuple[str, str]  # category and name of a row of the host


@dataclass(frozen=True)
class Members:
    """A process group: its name and description as PyTorch has them, and the ranks in it."""

    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """A step begins. Its number is all that an account needs."""

    step: int


@dataclass(frozen=True, slots=True)
class Compute:
    """Operators one after the other, each launching its kernels; `place` tells this run from others."""

    block: OperatorBlock
    place: int
    sequence: int = 0  # of the first operator that autograd numbers


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a group, or a send or a receive. It begins when all members' kernels run.

    `size` is the bytes of the whole tensor. The kernel waits for what `after` holds when it is launched;
    `holds_back` makes computation wait for it.
    """

    kind: str  # all-reduce, all-gather, reduce-scatter, all-to-all, send, receive
    group: Members
    size: int
    stream: int
    after: int | None = COMPUTE
    holds_back: bool = False
    peer: int | None = None
    tag: int = 0  # tells messages of one direction apart that are received in another order
    label: str = ""  # a range around it, as FSDP draws it
    dtype: str = "BFloat16"


@dataclass(frozen=True, slots=True)
class StreamWait:
    """One stream waits for all that was launched into another."""

    stream: int
    on: int


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A copy between host and device, `blocking` for the host."""

    direction: str  # HtoD or DtoH
    memory: str  # Pinned or Pageable
    size: int
    ns: int
    stream: int = COMPUTE
    blocking: bool = False


@dataclass(frozen=True, slots=True)
class Synchronise:
    """An API call that waits for a stream, or for the whole device, and takes `ns` itself."""

    api: str
    stream: int | None = None
    ns: int = 2_000


@dataclass(frozen=True, slots=True)
class Busy:
    """The host is busy with something: `rows` are what a profiler shows of it, the outermost first."""

    ns: int
    rows: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class Open:
    """A row of the host begins."""

    category: str
    name: str
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Close:
    """The row that began last ends."""


@dataclass(frozen=True, slots=True)
class Thread:
    """The host goes on with another thread, or with an empty name back with the one before."""

    name: str = ""


Instruction = (
    Begin | Compute | Collective | StreamWait | HostCopy | Synchronise | Busy | Open | Close | Thread
)
