"""How a job is spread over its ranks: 'ddp', 'fsdp2', 'zero1-m4', 'tp2-pp4-dp32', 'pp4-interleaved-v2', …

Ranks are numbered as Megatron does by default: tensor-parallel neighbours first, then replicas, then stages.
Experts are spread over neighbouring replicas.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from lostflops.errors import BadOption, suggestion
from lostflops.lab.simulate.instructions import Members

DATA = ("ddp", "fsdp2", "zero1", "zero2", "zero3")
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb")
SIZES = {
    "tp": "tensor",
    "pp": "pipeline",
    "dp": "replicas",
    "ep": "expert",
    "v": "chunks",
    "m": "microbatches",
}
EXAMPLES = "ddp, fsdp2, zero3, tp2-pp4-dp32, pp4-interleaved-v2, ep8"


@dataclass(frozen=True)
class Strategy:
    """The sizes of its dimensions multiply to the number of ranks."""

    data: str
    tensor: int
    pipeline: int
    replicas: int
    expert: int
    schedule: str
    chunks: int
    microbatches: int

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline * self.replicas

    @cached_property
    def name(self) -> str:
        """The strategy as it could be typed, with all that counts."""
        parts = (
            [self.data] if self.replicas > 1 and (self.data != "ddp" or self.ranks == self.replicas) else []
        )
        parts += [f"{word}{getattr(self, field)}" for word, field in SIZES.items()
                  if word in ("tp", "pp", "dp", "ep") and getattr(self, field) > 1
                  and (word != "dp" or self.ranks != self.replicas)]  # fmt: skip
        if self.pipeline > 1:
            parts += [self.schedule] if self.schedule != "1f1b" else []
            parts += [f"v{self.chunks}"] if self.chunks > 1 else []
        return "-".join(parts) or "one"

    def place(self, rank: int) -> tuple[int, int, int]:
        """A rank's number among its tensor-parallel ranks, its replicas and its stages."""
        return (
            rank % self.tensor,
            rank // self.tensor % self.replicas,
            rank // (self.tensor * self.replicas),
        )

    def stage(self, rank: int) -> int:
        return self.place(rank)[2]

    def _ranks(self, tensor: range, replicas: range, stages: range) -> tuple[int, ...]:
        return tuple(
            t + self.tensor * (d + self.replicas * p) for p in stages for d in replicas for t in tensor
        )

    def groups(self, rank: int) -> dict[str, Members]:
        """The process groups of a rank by what they are for, those of one rank left out."""
        t, d, p = self.place(rank)
        one_t, one_d, one_p = range(t, t + 1), range(d, d + 1), range(p, p + 1)
        first = d - d % self.expert
        found = {
            "world": Members("0", "default_pg", tuple(range(self.ranks))),
            "tensor": Members("1", "mesh_tp", self._ranks(range(self.tensor), one_d, one_p)),
            "data": Members("2", "mesh_dp", self._ranks(one_t, range(self.replicas), one_p)),
            "pipeline": Members("3", "mesh_pp", self._ranks(one_t, one_d, range(self.pipeline))),
            "expert": Members("4", "mesh_ep", self._ranks(one_t, range(first, first + self.expert), one_p)),
        }
        return {name: group for name, group in found.items() if len(group.ranks) > 1}


def strategy(text: str, ranks: int) -> Strategy:
    """What `text` means for a job of so many ranks. Raises BadOption."""
    said: dict[str, int] = {}
    data, schedule = "", ""
    for part in filter(None, text.lower().split("-")):
        sized = re.fullmatch(r"([a-z]+)(\d{1,6})", part)
        if part in DATA:
            data = part
        elif part in SCHEDULES:
            schedule = part
        elif sized and sized[1] in SIZES and int(sized[2]):
            said[SIZES[sized[1]]] = int(sized[2])
        else:
            known = (*DATA, *SCHEDULES, *SIZES)
            raise BadOption(
                f"--strategy {text!r}: '{part}' is not known.{suggestion(part, known)}",
                f"write parts joined by '-', such as {EXAMPLES}.",
            )
    tensor, pipeline = said.get("tensor", 1), said.get("pipeline", 1)
    replicas = said.get("replicas", max(1, ranks // (tensor * pipeline)))
    if tensor * pipeline * replicas != ranks:
        sizes = f"tp{tensor} x pp{pipeline} x dp{replicas} = {tensor * pipeline * replicas}"
        raise BadOption(f"--strategy {text!r} is for {sizes} ranks, --ranks says {ranks}.")
    expert = said.get("expert", 1)
    if replicas % expert:
        raise BadOption(f"--strategy {text!r}: {replicas} replicas cannot share experts {expert} ways.")
    chunks = said.get("chunks", 2 if schedule == "interleaved" else 1)
    if chunks > 1 and schedule != "interleaved":
        raise BadOption(f"--strategy {text!r}: v{chunks} is for 'interleaved' pipelines.")
    microbatches = said.get("microbatches", 4 * pipeline if pipeline > 1 else 1)
    if schedule == "interleaved" and microbatches % pipeline:
        raise BadOption(
            f"--strategy {text!r}: interleaved stages need a multiple of {pipeline} microbatches."
        )
    return Strategy(
        data or "ddp", tensor, pipeline, replicas, expert, schedule or "1f1b", chunks, microbatches
    )
