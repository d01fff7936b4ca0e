"""Ranks of several groups: who waits in one comes later to the next, and that is the first one's loss."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import lostflops
from made_runs import made

US = 10_000  # ns: one unit of the times below
STEPS = 4
Rows = Sequence[tuple[str, int, int]]


def job(folder: Path, work: Sequence[Rows], length: int, device: str = "gpu") -> Any:
    """The page of ranks in pairs: what each runs in a step is computing or an operation 'tp' or 'dp'.

    Ranks 0 and 1, 2 and 3 are 'tp'; 0 and 2, 1 and 3 are 'dp'.
    """
    tables: dict[str, Any] = {"ranks": [], "steps": [], "kernels": [], "collectives": []}
    for rank, rows in enumerate(work):
        about = {"device_kind": device, "world_size": 4, "clock_error": 1, "main_thread": 7}
        pairs = {"dp": (rank % 2, rank % 2 + 2), "tp": (rank // 2 * 2, rank // 2 * 2 + 1)}
        named = [{"name": f"{what}{pair[0]}", "description": f"mesh_{what}"} for what, pair in pairs.items()]
        tables["ranks"].append({"rank": rank, "end": STEPS * length * US, "groups": named, **about})
        for step in range(STEPS):
            at = step * length
            tables["steps"].append({"rank": rank, "step": step, "start": at * US, "end": (at + length) * US})
            for number, (what, start, end) in enumerate(rows):
                row = {"rank": rank, "start": (at + start) * US, "end": (at + end) * US}
                if what not in pairs:
                    tables["kernels"].append({**row, "family": "gemm", "name": what, "stream": 7})
                    continue
                tables["kernels"].append({**row, "family": "communication", "stream": 9})
                group = f"{what}{pairs[what][0]} {list(pairs[what])}"
                tables["collectives"].append(
                    {**row, "arrival": row["start"], "kind": "all-reduce", "bytes_in": 1 << 20, "stream": 9}
                    | {"group": group, "group_size": 2, "sequence": len(rows) * step + number}
                )
    return lostflops.why(made(folder, tables))


@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_waiting_for_the_ranks_on_a_slow_link_is_part_of_its_loss(tmp_path: Path, device: str) -> None:
    """Ranks 1 and 3 exchange gradients for 100 units, 0 and 2 for 10; then each pair meets."""
    work: list[Rows] = [
        [
            ("mm", 0, 500),
            ("dp", 500, 500 + moves),
            ("mm", 500 + moves, 550 + moves),
            ("tp", 550 + moves, 660),
        ]
        for moves in (10, 100, 10, 100)
    ]
    findings = job(tmp_path, work, 660, device).findings
    assert findings[0].name == "slow-link" and findings[0].size == 90 * US
    assert ("nvidia-smi" in findings[0].next) == (device == "gpu")
    assert not any(f.name == "communication-waits" for f in findings)


def test_what_is_left_of_communication_is_not_what_the_slow_link_carries(tmp_path: Path) -> None:
    """Beside the slow exchange of gradients each layer's results are added up, which takes longer."""
    work: list[Rows] = []
    for moves in (10, 300, 10, 300):
        rows = [row for at in range(0, 480, 60) for row in (("mm", at, at + 50), ("tp", at + 50, at + 60))]
        work.append(
            [*rows, ("dp", 480, 480 + moves), ("mm", 480 + moves, 500 + moves), ("tp", 500 + moves, 810)]
        )
    slow, rest = job(tmp_path, work, 810).findings
    assert slow.name == "slow-link" and slow.size == 290 * US
    assert rest.size == 100 * US and "90.0 % of it: tensor parallelism" in rest.evidence


def test_what_computing_hides_of_a_slow_transfer_is_the_usual(tmp_path: Path) -> None:
    """Exchanging gradients takes 10 units or 100; as nothing needs them yet, 40 of both can be hidden."""
    work: list[Rows] = [
        [("mm", 0, 500), ("dp", 500, 500 + moves), ("mm", 500, 540), ("tp", max(540, 500 + moves), 610)]
        for moves in (10, 100, 10, 100)
    ]
    findings = job(tmp_path, work, 610).findings
    assert findings[0].name == "slow-link" and findings[0].size == 60 * US


def test_a_slow_transfer_costs_nothing_while_another_moves_that_is_as_fast_as_ever(tmp_path: Path) -> None:
    """Each pair adds up for 15 units beside the exchange, which takes 10 or 100: 85 are the slow link's."""
    work: list[Rows] = []
    for moves, end in ((10, 515), (100, 600), (10, 515), (100, 600)):
        beside = [("dp", 500, 500 + moves), ("tp", 500, 515)]
        work.append([("mm", 0, 500), *beside, ("mm", end, end + 50), ("tp", end + 50, 660)])
    findings = job(tmp_path, work, 660).findings
    assert findings[0].name == "slow-link" and findings[0].size == 85 * US


def of_layers(rank: int, tensor: int, data: int, first: int = 50) -> list[tuple[str, int, int]]:
    """Four layers of 50 units, of which rank 0's first takes `first`, and its pair waits."""
    rows: list[tuple[str, int, int]] = []
    at = 0
    for layer in range(4):
        ends = at + (50 if layer else first)
        computed = ends if rank == 0 else at + 50
        rows += [("mm", at, computed), ("tp", computed, ends + tensor)]
        at = ends + tensor
    return [*rows, ("dp", at, data)]


def test_a_rank_that_is_no_later_than_a_slow_link_makes_the_others_is_not_said_to_cost_its_lateness(
    tmp_path: Path,
) -> None:
    """Rank 1 waits 120 for rank 0, while ranks 2 and 3 transfer for as much longer: both have to change."""
    late = [of_layers(rank, 10, 370, 170) for rank in (0, 1)]
    findings = job(tmp_path, [*late, *(of_layers(2, 40, 370) for _ in range(2))], 370).findings
    assert findings[0].name == "slow-link" and findings[0].size == 60 * US
    assert not any(f.name == "rank-arrives-last" for f in findings)


def test_all_that_ranks_wait_for_a_rank_on_slow_links_is_the_links(tmp_path: Path) -> None:
    """All that rank 3 takes part in takes four times as long; the others wait for that, whoever computes."""
    fast, slow = of_layers(1, 10, 0)[:-1], of_layers(1, 40, 0)[:-1]
    work: list[Rows] = [
        [*fast, ("dp", 240, 370), ("mm", 370, 420), ("tp", 420, 460)],
        [*fast, ("dp", 240, 400), ("mm", 400, 450), ("tp", 450, 460)],
        [*slow, ("dp", 360, 370), ("mm", 370, 420), ("tp", 420, 490)],
        [*slow, ("dp", 360, 400), ("mm", 400, 450), ("tp", 450, 490)],
    ]
    findings = job(tmp_path, work, 490).findings
    assert findings[0].name == "slow-link" and findings[0].rank == 3
    assert not any("compute longest" in f.claim for f in findings)


def test_links_that_may_be_those_between_machines_are_not_called_slow(tmp_path: Path) -> None:
    """Each rank has a fast link and one a fifth as fast: nobody knows which machines they run on."""
    rows: list[tuple[str, int, int]] = []
    for at in range(0, 400, 100):
        rows += [("mm", at, at + 40), ("tp", at + 40, at + 50), ("dp", at + 50, at + 100)]
    findings = job(tmp_path, [rows] * 4, 400).findings
    assert [f.name for f in findings] == ["communication-exposed"] and findings[0].size == 240 * US


def test_who_waits_for_a_late_rank_passes_its_lateness_on(tmp_path: Path) -> None:
    """Rank 2 waits for rank 3, and is then waited for by rank 0: all of it is rank 3's."""
    work: list[Rows] = [
        [
            ("mm", 0, 400 if rank == 3 else 300),
            ("tp", 400 if rank == 3 else 300, 310 + late),
            ("mm", 310 + late, 510 + late),
            ("dp", 510 + late, 620),
        ]
        for rank, late in enumerate((0, 0, 100, 100))
    ]
    findings = job(tmp_path, work, 620).findings
    assert findings[0].rank == 3 and "the others wait 1.00 ms for it" in findings[0].claim
    assert [f.name for f in findings] == ["rank-arrives-last"]


def test_a_rank_that_sends_and_receives_at_a_time_loses_the_time_once(tmp_path: Path) -> None:
    """Ranks 2 and 3 exchange messages in both directions for 40 units at a time, 0 and 1 for 10."""
    tables: dict[str, Any] = {"ranks": [], "steps": [], "kernels": [], "collectives": []}
    for rank in range(4):
        about = {"device_kind": "gpu", "world_size": 4, "clock_error": 1, "main_thread": 7}
        tables["ranks"].append({"rank": rank, "end": STEPS * 300 * US, **about})
        for step in range(STEPS):
            at = step * 300
            tables["steps"].append({"rank": rank, "step": step, "start": at * US, "end": (at + 300) * US})
            computes = {"start": at * US, "end": (at + 200) * US, "family": "gemm", "stream": 7}
            tables["kernels"].append({"rank": rank, **computes})
            for kind, stream in (("send", 8), ("receive", 9)):
                moves = 40 if rank > 1 else 10
                row = {"rank": rank, "start": (at + 200) * US, "end": (at + 200 + moves) * US}
                tables["kernels"].append({**row, "family": "communication", "stream": stream})
                told = {"kind": kind, "peer": rank ^ 1, "bytes_in": 1 << 20, "stream": stream}
                tables["collectives"].append({**row, "arrival": row["start"], **told})
    page = lostflops.why(made(tmp_path, tables))
    slow = next(f for f in page.findings if f.name == "slow-link")
    assert slow.size == 2 * 30 * US // 4
