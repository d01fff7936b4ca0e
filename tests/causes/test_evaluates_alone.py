"""A rank that evaluates while the others wait is one cause, told with what sharing that gains."""

from __future__ import annotations

from pathlib import Path

import pytest

import lostflops
from made_runs import MS, THREAD, Job, Work, made

STEPS = 4


def evaluating(ranks: tuple[int, ...]) -> Job:
    """Three ranks compute for 40 ms and reduce; some run two kernels of 10 ms more, in `evaluate`."""
    job = Job(world_size=3)
    more = Work(computes=60, calls=6)
    job.run([[more if rank in ranks else Work() for rank in range(3)]] * STEPS)
    job.tables["operators"] = []
    for step in job.tables["steps"]:
        rank, at = step["rank"], step["start"]
        for number, phase in enumerate(("forward", "backward")):
            one = {"rank": rank, "start": at + number * MS, "end": at + number * MS + 9, "thread": THREAD}
            numbered = {"name": "aten::mm", "phase": phase, "sequence": step["step"]}
            job.tables["operators"].append(one | numbered)
        if rank in ranks:
            inside = {"rank": rank, "start": at + 40 * MS - 99, "end": at + 60 * MS - 99, "thread": THREAD}
            job.tables["ranges"].append(inside | {"name": "evaluate"})
    length = max(row["end"] for row in job.tables["steps"]) // STEPS
    for row in job.tables["kernels"]:
        if row["family"] == "gemm":
            row["phase"] = "forward" if row["start"] % length < 40 * MS else None
    return job


@pytest.mark.parametrize("ranks", [(0,), (0, 1, 2)])
def test_what_a_rank_alone_evaluates_is_no_second_finding(tmp_path: Path, ranks: tuple[int, ...]) -> None:
    found = {f.name: f for f in lostflops.why(made(tmp_path, evaluating(ranks).tables)).findings}
    assert ("evaluation-inside-step" in found) == (len(ranks) == 3)
    assert ("rank-arrives-last" in found) == (len(ranks) == 1)
    if len(ranks) == 1:
        late = found["rank-arrives-last"]
        assert late.rank == 0 and late.claim.startswith("Rank 0 is 20.0 ms late per step")
        assert late.evidence[0].startswith("`evaluate` is 20.0 ms of it: no other rank runs the model")
        assert late.next.startswith("Share what `evaluate` does among all ranks")
