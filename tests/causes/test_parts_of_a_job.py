"""Ranks with parts of their own, lateness that moves within a step, and what evens out the work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lostflops
from lostflops.finding import Finding
from made_runs import MS, Job, Work, made


def first_of(folder: Path, tables: dict[str, list[dict[str, Any]]]) -> Finding:
    return lostflops.why(made(folder, tables)).findings[0]


def test_a_rank_is_late_for_those_it_meets_and_for_no_others(tmp_path: Path) -> None:
    """Learners compute 90 ms and never wait; actor 3 makes actor 2 wait, and nobody else."""
    learners, actors = Job(world_size=2), Job(world_size=2)
    learners.run([[Work(computes=90), Work(computes=90)]] * 4)
    actors.run([[Work(computes=10), Work(computes=30)]] * 4)
    for table, rows in actors.tables.items():
        for row in rows:
            row["rank"] += 2
            row |= {"group": "actors"} if table == "collectives" else {}
        learners.tables[table] += rows
    for row in learners.tables["ranks"]:
        row["world_size"] = 4
    first = first_of(tmp_path, learners.tables)
    assert first.name == "rank-arrives-last" and first.rank == 3
    assert first.claim == (
        "Rank 3 is 20.0 ms late per step (62.5 %): it computes 20.0 ms longer than the others; the others "
        "wait 20.0 ms for it."
    )
    assert first.size == 10 * MS
    assert first.evidence[0] == (
        "ranks 0 and 1 take part in nothing with it: averaged over all ranks, 10.0 ms per step"
    )


def in_steps_of(many: int, job: Job) -> dict[str, list[dict[str, Any]]]:
    """The rows of the job with so many of its steps taken for one."""
    of_rank = {(row["rank"], row["step"]): row for row in job.tables["steps"]}
    steps = [
        row | {"end": of_rank[rank, step + many - 1]["end"], "step": step // many}
        for (rank, step), row in of_rank.items()
        if step % many == 0
    ]
    return {**job.tables, "steps": steps}


def moving(longest: int) -> dict[str, list[dict[str, Any]]]:
    """Four operations a step, before each of which another rank computes longest; each rank in its turn."""
    job = Job(transfer=0.5)
    turns = [
        [
            Work(computes=longest if rank == turn % 4 else 10, grid=96 if rank == turn % 4 else 64)
            for rank in range(4)
        ]
        for turn in range(16)
    ]
    job.run(turns)
    return in_steps_of(4, job)


def test_lateness_that_moves_within_a_step_is_told_with_a_bound_that_holds(tmp_path: Path) -> None:
    first = first_of(tmp_path, moving(30))
    assert first.name == "communication-waits"
    assert "ranks 0 to 3 take turns within a step to compute longest" in first.claim
    assert 60 * MS <= first.size <= 61 * MS
    assert first.ns_per_step >= 80 * MS  # without the 20 ms more before each of four operations


def test_who_computes_while_it_is_waited_for_may_have_loaded_before(tmp_path: Path) -> None:
    """Each rank loads once for 80 ms, rank 0 before its recording begins; both compute as long after that."""
    job = Job(transfer=0.5)
    late = {0: 0, 1: 1}
    job.run([[Work(loads=80 if late[r] == step else 0, computes=100) for r in range(2)] for step in range(3)])
    tables = job.tables
    (unseen,) = (row for row in tables["ranges"] if row["rank"] == 0)
    tables["ranges"].remove(unseen)
    for table in ("steps", "ranks"):
        (row,) = (row for row in tables[table] if row["rank"] == 0 and row["start"] == unseen["start"])
        row["start"] = unseen["end"]
    loading, waits = lostflops.why(made(tmp_path, tables)).findings[:2]
    # Without its loader that one is no later: three steps take 80 ms less.
    assert loading.claim == "The GPU loses 26.7 ms per step (19.0 %) waiting for the data loader."
    assert loading.evidence[0] == "rank 1 comes later because of it: ranks wait 13.3 ms per step for it"
    assert "Rank 1 idles once for 80.0 ms, 100.0 % of all its idle time" in loading.evidence
    assert (
        waits.claim == "Ranks wait 13.3 ms per step (9.5 %) for each other; none of them is late as a rule."
    )


def test_the_experts_of_tokens_that_are_exchanged_are_told_of(tmp_path: Path) -> None:
    job = Job(kind="all-to-all")
    job.run(
        [[Work(grid=128 if rank == 2 else 64, computes=60 if rank == 2 else 40) for rank in range(4)]] * 4
    )
    for row in job.tables["ranks"]:
        row["groups"] = [{"name": "0", "description": "mesh_ep", "ranks": [0, 1, 2, 3]}]
    first = first_of(tmp_path, job.tables)
    assert first.rank == 2 and "Where it is the experts, even out the tokens per expert" in first.next


def test_more_kernels_are_no_longer_sequences(tmp_path: Path) -> None:
    job = Job()
    job.run([[Work(computes=60 if rank == 2 else 40, calls=6 if rank == 2 else 4) for rank in range(4)]] * 4)
    first = first_of(tmp_path, job.tables)
    assert first.rank == 2 and "1.5 times as many kernels" in " ".join(first.evidence)
    assert "as many micro-batches" in first.next and "length" not in first.next
    assert first.remedies == ()


def test_ranks_late_at_places_of_their_own_are_both_named(tmp_path: Path) -> None:
    """Rank 6 loads before one operation, rank 2 computes longer before the next: both lengthen the step."""
    job = Job(transfer=0.5)
    loads = [Work(loads=40 if rank == 6 else 0) for rank in range(8)]
    computes = [Work(computes=70 if rank == 2 else 40) for rank in range(8)]
    job.run([loads, computes] * 4)
    loading, computing = lostflops.why(made(tmp_path, in_steps_of(2, job))).findings
    assert loading.rank == 6 and "the others wait 40.0 ms for it" in loading.claim
    assert "for others: 26.2 ms for rank 2, which computes 30.0 ms longer than the others" in computing.claim
    assert computing.next.startswith("On rank 2: look at GPU clocks") and computing.edit == "even-ranks:2"
    assert computing.ns_per_step >= 30 * MS


def test_the_rank_that_is_late_next_is_named(tmp_path: Path) -> None:
    job = Job()
    job.run([[Work(computes={5: 88, 2: 68}.get(rank, 40)) for rank in range(8)]] * 4)
    first = first_of(tmp_path, job.tables)
    assert first.rank == 5 and first.size == 20 * MS
    assert "rank 2 is next: it computes 28.0 ms longer than the others" in first.evidence
    assert first.next.endswith("The same on rank 2.")


def ring(attention: list[int]) -> dict[str, list[dict[str, Any]]]:
    """Ranks multiply matrices for 20 ms, then attend for so long while keys and values go round."""
    job, ranks = Job(transfer=1), len(attention)
    job.run([[Work(computes=20 + longer, calls=2) for longer in attention]] * 4)
    products = [row for row in job.tables["kernels"] if row["family"] == "gemm"]
    for first, second in zip(products[0::2], products[1::2], strict=True):
        first["end"] = second["start"] = first["start"] + 20 * MS
        second |= {"family": "attention", "name": "flash_fwd"}
    for step in job.tables["steps"]:
        rank, start = step["rank"], step["start"] + MS
        for kind, peer in (("send", (rank + 1) % ranks), ("receive", (rank - 1) % ranks)):
            one = {"rank": rank, "start": start, "end": start + MS, "arrival": start, "kind": kind}
            job.tables["collectives"].append(
                {**one, "peer": peer, "group": "cp", "group_size": ranks, "bytes_in": 8, "bytes_out": 8}
            )
    return job.tables


@pytest.mark.parametrize("attention", [[10, 30, 50, 70], [10, 12, 14, 70], [10, 30]])
def test_causal_attention_around_a_ring_is_told_with_how_to_split_a_sequence(
    tmp_path: Path, attention: list[int]
) -> None:
    first = first_of(tmp_path, ring(attention))
    assert "zigzag" in first.next and first.remedies == ()
    said = f"attention takes 10.0 ms per step on rank 0 and {attention[-1]}.0 ms on rank {len(attention) - 1}"
    assert said in " ".join(first.evidence)


@pytest.mark.parametrize("attention", [[30, 10, 50, 70], [40, 40, 40, 70]])
def test_attention_that_does_not_rise_around_a_ring_is_not_causal(
    tmp_path: Path, attention: list[int]
) -> None:
    first = first_of(tmp_path, ring(attention))
    assert first.size >= 20 * MS and "zigzag" not in first.next
