"""A comparison names the link that became slow."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import lostflops
from lostflops.experiment.difference.links_apart import LinkApart, link_apart
from lostflops.lab.simulate.faults import with_fault
from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.strategy import strategy
from lostflops.lab.simulate.writing import simulate

MS = 1_000_000


def links(*rows: tuple[str, int, int, int]) -> pl.DataFrame:
    """What `communication_slow_links` says: among, latency, usual and what is lost per step, in ms."""
    known = pl.DataFrame(rows, ["among", "latency", "usual", "lost_per_step"], orient="row")
    return known.with_columns(
        pl.col("latency", "usual", "lost_per_step") * MS, kind=pl.lit("all-reduce"), bytes=pl.lit(15_000_000),
        size=pl.lit(2), hosts=pl.lit(None, pl.Int64),
    )  # fmt: skip


EVEN = links(("0, 2", 10, 10, 0), ("1, 3", 10, 10, 0))


@pytest.mark.parametrize(
    ("after", "told"),
    [
        (links(("0, 2", 10, 30, 0), ("1, 3", 30, 10, 7)), True),
        (links(("0, 2", 10, 19, 0), ("1, 3", 19, 10, 7)), False),  # less than twice as long
        (links(("0, 2", 30, 30, 0), ("1, 3", 30, 30, 0)), False),  # all transfers are slower
        (links(("0, 2", 10, 30, 0), ("1, 3", 30, 10, 0)), False),  # it costs nothing
        (links(("0, 2", 10, 30, 0), ("4, 5", 30, 10, 7)), False),  # nobody knows how long these took
    ],
)
def test_a_link_is_apart_where_its_transfers_changed_unlike_those_of_others(
    after: pl.DataFrame, told: bool
) -> None:
    found = link_apart(EVEN, after, 100 * MS, 9 * MS)
    expected = LinkApart("1, 3", "all-reduce", 15_000_000, 10 * MS, 30 * MS, 10 * MS, 10 * MS, cost_ns=7 * MS)
    assert found == (expected if told else None)
    mended = link_apart(after, EVEN, 100 * MS, -9 * MS)
    assert (mended is not None) is told


def test_a_comparison_names_the_slow_link(tmp_path: Path) -> None:
    """It said that transfer and waiting grew, and not between whom."""
    healthy = SimulatedJob(strategy("tp2-dp4", 8), seed=3, steps=2, warmup=1)
    planted = with_fault(healthy, "slow-link")
    simulate(healthy, tmp_path / "before")
    simulate(planted.job, tmp_path / "after", fault=planted)
    compared = lostflops.diff(tmp_path / "before", tmp_path / "after")
    (said,) = [note for note in compared.notes if note.startswith("What changed is transfer among ranks ")]
    ranks = {int(rank) for rank in said.removeprefix("What changed is transfer among ranks ").split(":")[0]
             .partition(" (")[0].split(", ")}  # fmt: skip
    assert ranks & set(planted.culprit.ranks)
    assert compared.link is not None and compared.link.after_ns > 2 * compared.link.before_ns
