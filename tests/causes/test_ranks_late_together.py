"""Several ranks that are late together, such as those of a slow node: told as one, with what that costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import lostflops
from by_hand import MS, Rows, given, page
from lostflops.causes.between_ranks.several import for_several, is_one_of_many
from lostflops.causes.one_rank.late import Excess, Late
from lostflops.causes.page_findings import PageFindings
from lostflops.finding import Finding
from lostflops.lab.simulate.engine import ran
from lostflops.lab.simulate.instructions import Busy
from lostflops.lab.simulate.job import Planted, SimulatedJob
from lostflops.lab.simulate.strategy import strategy
from lostflops.lab.simulate.writing import simulate
from lostflops.session import Session
from made_runs import LOADER, Job, Work, made
from test_groups_that_meet import job

LAUNCHING = "idle.launch_bound"


def test_a_slow_node_is_one_cause_though_each_of_its_ranks_meets_another_of_the_fast_one(
    tmp_path: Path,
) -> None:
    """Weights are shared out within nodes, ranks 0 and 1, 2 and 3, and gradients over nodes. Rank 3, of the
    slow one, comes 20 of 430 units after rank 2, and was told for these alone."""
    rows = [
        [("mm", 0, half), ("tp", half, end), ("mm", end, end + half), ("dp", end + half, 1250)]
        for half, end in ((400, 402), (400, 402), (600, 622), (620, 622))
    ]
    (first,) = job(tmp_path, rows, 1250).findings
    assert first.claim == (
        "The others wait 4.30 ms per step (34.4 %) for ranks 2 and 3, which compute 4.20 ms longer than the "
        "others in nearly every step."
    )
    assert first.edit == "even-ranks:2+3" and first.next.startswith("On ranks 2 and 3: look at GPU clocks")


def slow_cpus(gain: int, hosts: Sequence[int], waits: int = 0) -> tuple[list[Finding], list[tuple[int, int]]]:
    """The CPUs of ranks 2 and 3 launch 10 ms longer in steps of 100, beside which the others transfer."""
    rows: Rows = []
    for rank in range(4):
        mine = ((LAUNCHING, 10),) if rank > 1 else (("communication.transfer", 10 - waits),)
        mine += (("communication.wait", waits),) if rank < 2 and waits else ()
        rows += [(rank, step, *each) for step in range(2) for each in (("compute", 90), *mine)]
    told: list[tuple[int, int]] = []

    def join(joined: PageFindings) -> None:
        waited = joined.given.accounts.get("communication.wait", 0)
        told.append(for_several(joined, waited, None))

    known = {"gained": lambda edit: gain if edit == "even-ranks:2+3" else 0, "hosts": dict(enumerate(hosts))}
    return page(ledger=rows, join=join, **known), told


def test_what_slow_cpus_cost_is_told_where_nobody_waits_for_them_in_the_open() -> None:
    """Other ranks compute while these are late, and transfer later with nothing left to compute."""
    (found,), told = slow_cpus(8 * MS, (0, 0, 1, 1))
    assert found.claim == (
        "Ranks 2 and 3 make a step 8.00 ms longer (8.0 %): they have 10.0 ms more of launching than the "
        "others in nearly every step."
    )
    assert told == [(0, 4 * MS)], "the two others transfer 8 ms of it: that is no communication's"
    assert found.evidence == ("they are all ranks of one node",) and found.edit == "even-ranks:2+3"
    assert slow_cpus(8 * MS, (0, 1, 0, 1))[0][0].evidence == ()
    (waited,), told = slow_cpus(8 * MS, (0, 0, 1, 1), waits=4)
    assert waited.claim.endswith("in nearly every step; the others wait 4.00 ms for them.")
    assert told == [(2 * MS, 2 * MS)]


@pytest.mark.parametrize(("gain", "waits"), [(0, 0), (MS // 2, 0), (4 * MS, 4)])
def test_no_more_is_told_where_a_replay_gains_no_more_than_is_waited(gain: int, waits: int) -> None:
    assert slow_cpus(gain, (0, 0, 1, 1), waits) == ([], [(0, 0)])


def test_a_slow_stage_of_two_tensor_parallel_ranks_is_told_as_that(tmp_path: Path) -> None:
    """One of both was blamed, and to mend it alone gains nothing."""
    base = SimulatedJob(strategy("tp2-pp2-m2", 4), steps=2, warmup=1, layers=2)
    simulate(replace(base, slow_ranks={2: (1.4, 0), 3: (1.4, 0)}), tmp_path)
    first = lostflops.why(tmp_path).findings[0]
    assert first.claim.startswith("Ranks 2 and 3 are the slowest pipeline stage")
    assert first.edit == "even-ranks:2+3" and "GPU clocks" in first.next


def test_a_slow_replica_of_a_pipeline_is_told_with_what_a_step_gains_without_it(tmp_path: Path) -> None:
    """Its stages wait for each other, and the bubble of the schedule was told first, and one rank of it."""
    base = SimulatedJob(strategy("pp2-dp2-m2", 4), steps=2, warmup=1, layers=2)
    slow = replace(base, slow_ranks={1: (1.4, 0), 3: (1.4, 0)})
    simulate(slow, tmp_path)
    first, *others = lostflops.why(tmp_path).findings
    assert first.claim.startswith("Ranks 1 and 3 make a step ") and first.edit == "even-ranks:1+3"
    assert first.size == pytest.approx(ran(slow).mean_step(1) - ran(base).mean_step(1), rel=0.02)
    assert {other.name for other in others} <= {"pipeline-bubble", "few-whole-steps"}


def test_two_ranks_of_which_one_alone_gains_less_than_half_are_told_together() -> None:
    """Rank 1 computes 130, rank 2 116, the others 100: with the first mended all wait for the second."""
    rows = [(r, s, "compute", ns) for s in range(2) for r, ns in enumerate((100, 130, 116, 100))]
    late = Late(1, 15, 15, Excess(1, {"compute": 30}, (), 30), None, 2, 0, False, {}, 15, 15)
    for both, together in ((31, True), (29, False)):
        gains = {"even-ranks:1": 15, "even-ranks:1+2": both}
        known = replace(given(rows), gained=lambda edit, gains=gains: gains[edit])
        assert is_one_of_many(late, known) is together
        assert not is_one_of_many(replace(late, rank=3), known)


def test_ranks_are_evened_out_in_the_work_of_their_experts_alone(tmp_path: Path) -> None:
    """Both compute 40 ms; then experts compute 20 on rank 0 and 60 on rank 1. At 40 a step takes 84 ms, of
    104; with all that rank 1 computes made shorter, it was 105."""
    experts = "cutlass::GemmUniversal<GroupProblemShape<int>>"
    tables: dict[str, list[dict[str, object]]] = {"kernels": [], "collectives": [], "steps": [], "ranks": []}
    for rank, ns in ((0, 20), (1, 60)):
        tables["ranks"].append({"rank": rank, "end": 104 * MS, "world_size": 2, "device_kind": "gpu"})
        tables["steps"].append({"rank": rank, "step": 1, "end": 104 * MS})
        for name, start, end in (("mm", 0, 40), (experts, 42, 42 + ns)):
            row = {"rank": rank, "start": start * MS, "end": end * MS, "family": "gemm", "phase": "forward"}
            tables["kernels"].append({**row, "name": name})
        for kind, start, end in (("all-to-all", 40, 42), ("all-reduce", 42 + ns, 104)):
            row = {"rank": rank, "start": start * MS, "end": end * MS, "bytes_in": 8}
            tables["collectives"].append({**row, "kind": kind})
    table = Session(made(tmp_path, tables)).run("stragglers").table
    job_row = table.filter(part="job").row(0, named=True)
    assert (job_row["own"], job_row["even"]) == (104 * MS, 84 * MS)
    kinds = dict(table.filter(part="kind").select("name", pl.col("own") / MS).iter_rows())
    assert kinds["forward of experts"] == kinds["forward"] == 40


def test_waiting_for_ranks_that_are_late_together_is_told_once(tmp_path: Path) -> None:
    """Two tensor-parallel ranks load for 40 ms, another computes slowly: 102 % of a step were told."""
    slow_data = Planted("input", (Busy(40 * MS, (("user_annotation", LOADER),)),), frozenset({4, 5}))
    made_up = SimulatedJob(strategy("tp2-dp4", 8), tokens=4096, steps=5, warmup=1, planted=(slow_data,))
    made_up = replace(made_up, slow_ranks={3: (1.4, 0)})
    simulate(made_up, tmp_path, processes=1)
    (tmp_path / "truth.json").unlink()
    first = lostflops.why(tmp_path).findings[0]
    lost = ran(made_up).mean_step(1) - ran(replace(made_up, planted=())).mean_step(1)
    assert first.name == "data-loading-starves-device"
    assert lost <= first.size < 1.15 * lost


@pytest.mark.parametrize(
    ("shorter", "told", "each", "even"),
    [
        ({2: 20}, "5.00 ms per step (11.9 %), nearly all of it rank 2", "it computes 20.0", "37.0"),
        (
            {2: 20, 3: 30},
            "3.75 ms per step (8.9 %), nearly all of it ranks 2 and 3",
            "they compute 15.0",
            "38.2",
        ),
    ],
)
def test_a_rank_that_has_less_to_do_is_told_to_wait_for_the_others(
    tmp_path: Path, shorter: dict[int, int], told: str, each: str, even: str
) -> None:
    """It was "none of them is late as a rule", and that their own work did not explain it."""
    step = [Work(computes=shorter.get(rank, 40)) for rank in range(4 * len(shorter))]
    (found,) = lostflops.why(made(tmp_path, Job().run([step] * 4))).findings
    assert found.claim == f"Ranks wait {told} for the others: {each} ms less than they in every step."
    assert found.evidence[0] == (
        f"replayed with all work spread evenly over ranks a step takes {even} ms instead of 42.0 ms"
    )
    assert found.next.startswith(f"Give rank{'s 2 and 3' if 3 in shorter else ' 2'} more of the work")
    assert found.edit == "even-work" and not found.doubt
    assert found.ns_per_step == found.size + 2_000_000  # the transfer may come to be hidden
