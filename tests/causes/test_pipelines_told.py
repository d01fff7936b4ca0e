"""What is said of a pipeline: its schedule is known, and a recording that was cut blames no stage."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import lostflops
from by_hand import MS, finding, given
from lostflops.causes.between_ranks.exposed import exposed_communication
from lostflops.causes.page_findings import PageFindings
from lostflops.causes.purposes import STAGES
from lostflops.causes.stages import join_stages, slowest_stage
from lostflops.lab.simulate.faults import with_fault
from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.strategy import strategy
from lostflops.lab.simulate.writing import simulate

EXPOSED = "communication.exposed"
UNCLEAR = "some messages lack one end, and which of the others belong together is unclear"


def job(text: str, ranks: int, cut: dict[int, float] | None = None) -> SimulatedJob:
    spread = strategy(text, ranks)
    layers = spread.pipeline * spread.chunks
    return SimulatedJob(spread, seed=77, steps=4 if cut else 2, warmup=1, layers=layers, cut=cut or {})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("pp2-zb-m4", "the schedule is a zero-bubble one already"),
        ("pp2-interleaved-v2-m4", "the stages' chunks are interleaved already"),
        ("pp2-m4", ""),
    ],
)
def test_a_schedule_with_a_small_bubble_is_not_told_to_take_one(tmp_path: Path, text: str, told: str) -> None:
    simulate(job(text, 2), tmp_path / "job")
    first = lostflops.why(tmp_path / "job").findings[0]
    assert first.name == "pipeline-bubble"
    assert ("another schedule" in first.next) == ("pipeline-schedule" in (first.remedies or ())) == (not told)
    assert not told or told in first.evidence


@pytest.mark.parametrize("text", ["pp4-gpipe-m8", "pp4-m8"])
def test_files_that_were_cut_make_one_bubble_and_no_idle_gpu(tmp_path: Path, text: str) -> None:
    """Each file ends elsewhere: messages lose their other ends, and steps their work."""
    simulate(job(text, 4, cut={rank: 0.55 + 0.1 * rank % 0.4 for rank in range(4)}), tmp_path / "job")
    page = lostflops.why(lostflops.open(tmp_path / "job", salvage=True))
    first, *others = page.findings
    assert first.name == "pipeline-bubble" and "28." in first.claim  # as of the whole recording
    assert [f.name for f in others] == ["few-whole-steps"]
    assert any("the recording ends in" in note for note in page.notes)


def test_a_slow_stage_is_told_where_no_message_says_whom_it_goes_to(tmp_path: Path) -> None:
    """An Nsight export without NCCL's peers; what each stage computes is known all the same."""
    planted = with_fault(
        SimulatedJob(strategy("pp4-m8", 4), seed=1, steps=2, warmup=1, layers=4), "stage-imbalance"
    )
    simulate(planted.job, tmp_path / "job", fault=planted, format="nsys")
    for export in (tmp_path / "job").glob("*.sqlite"):
        with closing(sqlite3.connect(export)) as file, file:
            peers = "UPDATE NVTX_EVENTS SET jsonText = json_remove(jsonText, '$.\"Peer rank\"')"
            assert file.execute(f"{peers} WHERE jsonText LIKE '%Peer rank%'").rowcount > 0
    first = lostflops.why(tmp_path / "job").findings[0]
    (stage,) = planted.culprit.ranks
    assert (first.name, first.rank) == ("pipeline-bubble", stage)
    assert f"Rank {stage} is the slowest pipeline stage: it computes " in first.claim
    assert "Move layers off that stage" in first.next
    assert not any("not recorded" in told for told in first.evidence)
    assert any("does not say which rank a message goes to" in told for told in first.evidence)


def test_ranks_that_compute_alike_are_told_together_where_no_message_says_who_is_in_which_stage() -> None:
    """The first of four was said to be a stage, and the three others that compute as long to be faster."""
    rows = [(rank, 0, "compute", ns * MS) for rank, ns in enumerate([390, 392, 388, 390, *4 * [196]])]
    slow = slowest_stage(given(rows))
    assert slow is not None and slow.says() == (
        "Ranks 0 to 3 compute longest in the pipeline: 390 ms per step, the others 196 ms."
    )
    assert slowest_stage(given(rows[:5])) is None, "they are most of the job"
    assert slowest_stage(given([(0, 0, EXPOSED, 9)])) is None, "nobody computes"


@pytest.mark.parametrize(("schedule", "told"), [("unknown", True), ("1f1b", False), ("", False)])
def test_passes_in_no_known_order_may_be_of_a_better_schedule_already(schedule: str, told: bool) -> None:
    rows = [(rank, 0, account, 20 * MS) for rank in range(2) for account in ("compute", "communication.wait")]
    waits = pl.DataFrame({"rank": [0, 1], "in_pairs": 2 * [20 * MS], "per_step": 2 * [20 * MS]})
    page = PageFindings(replace(given(rows, communication_wait=waits), schedule=schedule))
    assert join_stages(page, 20 * MS, 0, None, 0, alone=True) == 20 * MS
    (found,) = page.all()
    assert any("such as ZB-V or DualPipe" in fact for fact in found.evidence) == told


@pytest.mark.parametrize(
    ("reason", "told", "rank"),
    [
        (
            "ranks recorded between 55 and 56 operations of its group; which belong together is unclear",
            f"8.00 ms of it may be either: {UNCLEAR}",
            1,
        ),
        (
            "its group is unknown; ranks recorded between 55 and 56 operations of none",
            "8.00 ms of it may be either: the recording does not say which ranks communicate with each other",
            1,
        ),
        (
            "rank 3, its peer, is not here",
            "8.00 ms of it may be either: the other ends were not recorded",
            None,
        ),
    ],
)
def test_messages_that_lack_a_few_ends_are_not_said_to_lack_all(
    reason: str, told: str, rank: int | None
) -> None:
    """A receive that began before the recording is not in it; what each stage computes is known."""
    waits = pl.DataFrame({"rank": [0, 1], "in_pairs": [9, 9], "unmatched_reason": [reason, reason]})
    rows = [(0, 0, "compute", 2), (0, 0, EXPOSED, 12), (1, 0, "compute", 10), (1, 0, EXPOSED, 4)]
    ledger = [(*row[:3], row[3] * MS) for row in rows]
    known = replace(given(ledger, communication_wait=waits), purposes={STAGES: 16 * MS})
    page = PageFindings(known)
    exposed_communication(page, finding("communication-exposed", EXPOSED, 8), 8 * MS, 0)
    (first,) = page.all()
    assert first.name == "pipeline-bubble" and told in first.evidence
    assert first.rank == rank
