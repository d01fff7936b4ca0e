"""Communication of a made-up job, as tables: what each rank's clock would have shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from lostflops.tables import COLLECTIVES, RANKS


@dataclass
class Job:
    """Collectives of groups of ranks, by one true clock; `tables` shows them by the ranks' own clocks.

    A group's members arrive at random within `spread` after the last collective that they took part in, and
    leave `transfer` after the last arrival, each up to `scatter` late.
    """

    num_ranks: int
    seed: int = 0
    spread: int = 400_000
    transfer: int = 90_000
    scatter: int = 5_000
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.free = np.zeros(self.num_ranks, dtype=np.int64)
        self.calls = 0

    def run(self, ranks: Sequence[int], kind: str = "all-reduce", **columns: Any) -> None:
        """One collective of these ranks; what `columns` leave out stays null."""
        arrival = [int(self.free[r] + self.random.integers(1, self.spread)) for r in ranks]
        done = max(arrival) + self.transfer
        for rank, at in zip(ranks, arrival, strict=True):
            end = done + int(self.random.integers(0, self.scatter + 1))
            self.free[rank] = end
            self.rows.append(
                {"rank": rank, "start": at, "arrival": at, "end": end, "kind": kind, "call": self.calls}
                | {"bytes_in": 8 * (self.calls % 7 + 1)}
                | columns
            )
        self.calls += 1

    def tables(
        self,
        offsets: Mapping[int, int] | None = None,
        drift: Mapping[int, float] | None = None,
        hosts: Mapping[int, int] | None = None,
        **facts: Any,
    ) -> tuple[pl.LazyFrame, pl.LazyFrame]:
        """`collectives` (with the true instance as `call`) and `ranks`, seen by clocks that are `offsets` ns
        ahead in the middle of the job and gain `drift` ns in each."""
        middle = int(self.free.max()) // 2

        def shown(rank: int, t: int) -> int:
            return t + (offsets or {}).get(rank, 0) + round((drift or {}).get(rank, 0.0) * (t - middle))

        rows = [
            {**row, **{c: shown(row["rank"], row[c]) for c in ("start", "arrival", "end")}}
            for row in self.rows
        ]
        schema = {**COLLECTIVES.schema, "call": pl.Int64}
        full = [{c: row.get(c) for c in schema} for row in rows]
        ranks = [
            {"rank": r, "world_size": self.num_ranks, "host": (hosts or {}).get(r), **facts}
            for r in range(self.num_ranks)
        ]
        ranks = [{c: row.get(c) for c in RANKS.schema} for row in ranks]
        return (
            pl.DataFrame(full, schema=schema).lazy(),
            pl.DataFrame(ranks, schema=RANKS.schema).lazy(),
        )
