"""What one rank communicates in a step, as sums, and the groups it is in: what rules on layouts look at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lostflops.naming.groups import group_apart

CONTROL = 1024  # bytes: smaller operations are norms, flags and losses
ALIKE = 0.01  # two estimates of one volume that agree are known
P2P = ("send", "receive")
# How NCCL, cuBLAS, CUTLASS, DeepGEMM, Triton and others call products of many experts at once.
GROUPED = (
    r"(?i)group(?:ed)?_?(?:gemm|mm\b|matmul|problem)|fused_moe|moe_gemm|matmul_ogs"
    r"|deep_?gemm.*gemmtype(?:\)|e)[1-3]\b"  # DeepGEMM: contiguous, masked, and by the inner dimension
)
EXPERTS = ("dispatch", "combine")
OF_EXPERTS = (*EXPERTS, "notify", "layout")
AROUND = ("optimizer", None)
SIZES = {
    "bfloat16": 2, "half": 2, "float16": 2, "float": 4, "float32": 4, "double": 8, "float64": 8, "byte": 1,
    "int8": 1, "uint8": 1, "float8e4m3": 1, "float8e5m2": 1, "long": 8, "int64": 8,
}  # fmt: skip

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Dimension:
    """One dimension of a job as one rank shows it; volumes are bytes per step."""

    dimension: str
    strategy: str
    degree: int | None
    ranks: str = ""  # the group of the rank
    parameters: int | None = None
    rounds: float | None = None  # microbatches per step in which gradients are exchanged
    expected: float | None = None
    seen: float = 0
    calls: float = 0
    basis: str = ""


@dataclass(frozen=True)
class Groups:
    """The process groups of one rank."""

    rank: int
    world: int | None
    known: Sequence[Row]

    def described(self, group: str | None) -> str:
        """What a group is called, in lower case."""
        name, _ = group_apart(group)
        return next((str(g["description"] or "") for g in self.known if g["name"] == name), "").lower()

    def only(self, without: Iterable[int] = ()) -> Sequence[int] | None:
        """The one group of several ranks that is left when that of all ranks, where there are others, and
        those that hold certain ranks are left out; None where it is not one."""
        peers = set(without)
        found = {tuple(g["ranks"]) for g in self.known if len(g["ranks"] or ()) > 1}
        if len(found) > 1:
            found = {g for g in found if len(g) != self.world and not peers & set(g)}
        return next(iter(found)) if len(found) == 1 else None

    def with_peer(self, peers: set[int]) -> Sequence[int] | None:
        """The smallest group that holds these ranks."""
        holding = [g["ranks"] for g in self.known if peers <= set(g["ranks"] or ())]
        return min(holding, key=len) if holding else None


class Traffic:
    """Rows of `collective_phases` of one rank, as sums per step."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = list(rows)

    def of(self, kind: str, *phases: str | None) -> Traffic:
        return Traffic(r for r in self.rows if r["kind"] == kind and (not phases or r["phase"] in phases))

    @property
    def volume(self) -> float:
        return sum(r["calls"] * (r["bytes"] or 0) / r["steps"] for r in self.rows)

    @property
    def calls(self) -> float:
        return sum(r["calls"] / r["steps"] for r in self.rows)

    @property
    def rounds(self) -> float:
        return max((r["rounds"] / r["steps"] for r in self.rows), default=0)

    @property
    def sizes(self) -> set[int]:
        return {r["bytes"] for r in self.rows if r["bytes"] is not None}

    @property
    def element(self) -> int | None:
        kinds = {SIZES.get(str(r["dtype"]).lower().removeprefix("c10::")) for r in self.rows}
        return next(iter(kinds)) if len(kinds) == 1 else None
