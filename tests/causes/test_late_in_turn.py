"""Jobs in which more than one rank is late, or a rank looks slow and is not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

import lostflops
from lostflops.causes.given import Given, has_stages
from lostflops.causes.longer_compute import mostly, slower_compute
from lostflops.recipes.compute.of_ranks import WORK
from lostflops.report.first_page.page import Page
from made_runs import MS, THREAD, Job, Work, made

STEPS = 6


@pytest.fixture
def why(tmp_path: Path):
    def asked(
        steps: Sequence[Sequence[Work]], job: Job | None = None, **tables: list[dict[str, Any]]
    ) -> Page:
        return lostflops.why(made(tmp_path, {**(job or Job()).run(steps), **tables}))

    return asked


def test_two_ranks_that_are_slow_in_turn_are_both_named(why) -> None:
    in_turn = [[Work(computes=60 if r == 1 + 2 * (s % 2) else 40) for r in range(4)] for s in range(STEPS)]
    first = why(in_turn).findings[0]
    assert first.claim.startswith(
        "Ranks wait 15.0 ms per step (24.2 %) for each other: ranks 1 and 3 take turns"
    )
    assert first.rank is None
    assert first.ns_per_step >= 20 * MS  # what even ranks gain


def test_a_rank_that_is_slow_in_half_of_the_steps_is_late_if_no_other_ever_is(why) -> None:
    from_the_fourth_on = [
        [Work(computes=60 if r == 2 and s >= STEPS // 2 else 40) for r in range(4)] for s in range(STEPS)
    ]
    first = why(from_the_fourth_on).findings[0]
    assert first.name == "rank-arrives-last" and first.rank == 2


def test_the_bound_of_two_equally_slow_ranks_holds_what_all_gain(why) -> None:
    first = why([[Work(computes=60 if r in (1, 2) else 40) for r in range(4)]] * STEPS).findings[0]
    assert first.claim.startswith("The others wait 20.0 ms per step (32.3 %) for ranks 1 and 2")
    assert first.ns_per_step >= 20 * MS


def test_what_ranks_wait_for_the_slowest_of_all_loaders_the_loader_costs(why) -> None:
    """Rank 3 computes while the others wait for it, for its loader took 40 ms and theirs 10 to 30."""
    page = why([[Work(loads=10 + 10 * r) for r in range(4)]] * STEPS)
    assert [f.name for f in page.findings] == ["data-loading-starves-device"]
    (first,) = page.findings
    assert first.claim.startswith("The GPU loses 40.0 ms per step")  # 25 idle, 15 waiting
    assert first.ns_per_step >= 40 * MS
    assert any("rank 3 has 20.0 ms more of it than the others" in fact for fact in first.evidence)


@pytest.mark.parametrize(
    ("rows", "advice"), [(64, "Look at GPU clocks"), (96, "Give the ranks like amounts")]
)
def test_gpus_that_are_slow_in_turn_for_one_amount_of_work_are_not_to_be_given_less(
    why, rows: int, advice: str
) -> None:
    """In all steps together each of them has as much to do as the other."""
    slow = [[Work(computes=60 if s % 2 == r else 40) for r in range(2)] for s in range(STEPS)]
    products = [
        {"rank": r, "start": at, "end": at + 9, "thread": THREAD, "name": "aten::mm"}
        | {"shapes": f"[[{rows if s % 2 == r else 64}, 64], [64, 64]]"}
        for s, at in enumerate(range(0, STEPS * 62 * MS, 62 * MS))
        for r in range(2)
    ]
    (first,) = why(slow, operators=products).findings
    assert first.next.startswith(advice) and first.ns_per_step >= 20 * MS
    assert ("all ranks ask for the same FLOPs" in first.evidence[0]) is (rows == 64)


def test_waiting_in_turn_for_one_cause_is_told_with_all_of_it(why) -> None:
    """Ranks wait 8 times 30 ms in 32 steps of ranks; some is told of rank 2, which loads most often."""
    loading = ((), (0, 1, 2, 3), (2,), (0, 1, 3), (), (), (0, 2), (1, 2))
    (first,) = why([[Work(loads=30 if r in ranks else 0) for r in range(4)] for ranks in loading]).findings
    turn = next(fact for fact in first.evidence if " take turns being late because of it" in fact)
    assert turn.endswith("ranks wait 7.50 ms per step for each other")


def multiplied(*rows: int) -> list[dict[str, Any]]:
    """A product of so many rows of each rank, at the beginning of each step of 62 ms."""
    return [
        {"rank": rank, "start": at, "end": at + 9, "thread": THREAD, "name": "aten::mm"}
        | {"shapes": f"[[{many}, 64], [64, 64]]"}
        for rank, many in enumerate(rows)
        for at in range(0, STEPS * 62 * MS, 62 * MS)
    ]


def test_a_rank_with_longer_sequences_has_no_slow_device_though_its_kernels_have_the_others_grids(
    why,
) -> None:
    """Kernels that keep all multiprocessors busy have one grid for any amount of work."""
    steps = [[Work(computes=60 if r == 1 else 40) for r in range(3)]] * STEPS
    first = why(steps, operators=multiplied(512, 768, 512)).findings[0]
    assert first.rank == 1 and "nvidia-smi" not in first.next and "sequence length" in first.next
    assert any("its operators ask for 1.5 times as many FLOPs" in fact for fact in first.evidence)
    first = why(steps, operators=multiplied(512, 512, 512)).findings[0]
    assert first.rank == 1 and "nvidia-smi" in first.next


def spent(*rows: tuple[int, str, str, int, int], **more: Any) -> Given:
    """Ranks 0 to 2, of two steps each, that ran these kernels."""
    ledger = [(r, s, "compute", 100, 1000 * s) for r in range(3) for s in range(2)]
    schema = {"rank": pl.Int32, "step": pl.Int64, "account": pl.String, "ns": pl.Int64, "start": pl.Int64}
    known = pl.DataFrame(ledger, schema, orient="row")
    return Given({}, known, work=pl.DataFrame(rows, WORK, orient="row"), **more)


def alike(slow: int, blocks: int) -> list[tuple[int, str, str, int, int]]:
    """Rank 1 takes so long for a product, and gives its additions so many blocks."""
    return [
        row
        for r in range(3)
        for row in (
            (r, "gemm", "nvjet|132", 6, slow if r == 1 else 900),
            (r, "elementwise", f"add|{blocks if r == 1 else 64}", 6, 100),
        )
    ]


def test_kernels_on_larger_grids_are_more_work() -> None:
    told = slower_compute(1, spent(*alike(1400, 96)))
    assert told is not None and not told[1]
    assert told[0].endswith(
        "and 50.0 % of its kernels run on larger grids: it has more work, such as longer sequences"
    )
    for blocks in (64, 32, 67):  # the same, fewer, and 5 % more
        assert (slower_compute(1, spent(*alike(1400, blocks))) or ("", False))[1]


def test_flops_are_compared_per_step_where_all_of_a_ranks_are_known() -> None:
    def blamed(**flops: float) -> bool:
        known = {int(rank[1:]): each for rank, each in flops.items()}
        told = slower_compute(1, spent(*alike(1400, 64), flops=known))
        assert told is not None
        return told[1]

    assert not blamed(r0=100, r1=111, r2=100)
    assert blamed(r0=100, r1=110, r2=100)
    assert blamed(r0=100, r2=100) and blamed(r1=111) and blamed(r0=0, r1=111)


def test_the_kernels_that_make_a_rank_compute_longer_are_told() -> None:
    known = spent(*alike(1400, 64))
    assert mostly(1, known) == "its gemm kernels take 250 ns more per step than the others'"
    assert mostly(0, known) == "" and mostly(1, spent()) == ""


def stages(slow: Work) -> list[list[Work]]:
    return [[Work(computes=30), slow]] * STEPS


def test_a_stage_whose_device_is_slow_is_not_told_to_hand_layers_over(why) -> None:
    first = why(stages(Work(computes=40)), Job(kind="send")).findings[0]
    assert first.name == "pipeline-bubble" and first.rank == 1
    assert first.next.startswith("On rank 1: look at GPU clocks") and first.remedies == ("rank-exclusion",)
    first = why(stages(Work(computes=40, calls=5)), Job(kind="send")).findings[0]
    assert "Move layers off that stage" in first.next and first.remedies == ("stage-balance",)


def test_a_stage_with_the_lm_head_has_no_longer_sequences() -> None:
    pairs: Any = {"communication_wait": answer(pl.DataFrame({"rank": [0], "in_pairs": [9]}))}
    head = [*alike(900, 64), (1, "gemm", "nvjet_head|132", 1, 5000)]
    known = Given(pairs, spent().ledger, work=pl.DataFrame(head, WORK, orient="row"))
    assert has_stages(known)
    told = slower_compute(1, known)
    assert told is not None and told[0].endswith("such as more layers, the embedding or the LM head")


def answer(table: pl.DataFrame) -> Any:
    return SimpleNamespace(table=table, findings=())


def test_what_ranks_run_that_are_late_in_turn_is_named_and_can_be_replayed_away(why) -> None:
    """Ranks 1 and 3 of eight prepare for 16 ms, each in every other step."""
    turns = [[Work(python=16 if r == 1 + 2 * (s % 2) else 0) for r in range(8)] for s in range(STEPS)]
    first = why(turns).findings[0]
    assert first.claim.endswith("ranks 1 and 3 take turns being late, mostly by other host work.")
    assert (
        first.next
        == "On ranks 1 and 3: make `preprocess` (ddp.py:16) cheaper there, or take it out of the step."
    )
    assert first.edit == "even-ranks:1+3"
