"""A rank whose experts get more tokens is told so; one with longer sequences is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import lostflops
from lostflops.causes.between_ranks.advice import evener
from lostflops.causes.given import Given
from lostflops.causes.longer_compute import has_experts, of_experts, slower_compute
from lostflops.causes.page_findings import PageFindings
from lostflops.recipes.compute.of_ranks import WORK
from lostflops.tables import TABLES
from lostflops.testing import example_table
from made_runs import Job, Work, made

GROUPED = "cutlass::GemmUniversal<GroupProblemShape<int>>|[132, 1, 1]"


def given(experts: int, rest: int) -> Given:
    """Rank 1 has so much time in kernels of experts and in others, ranks 0 and 2 have 100 of each."""
    rows = [
        {"rank": rank, "family": "gemm", "kernel": kernel, "calls": 4, "time": time}
        for rank in range(3)
        for kernel, time in ((GROUPED, experts if rank == 1 else 100), ("mm|[8]", rest if rank == 1 else 100))
        if time
    ]
    steps = example_table(TABLES["steps"], [{"rank": r, "step": s} for r in range(3) for s in (0, 1)])
    ledger = steps.select("rank", "step", "start", "end", account=pl.lit("compute"), ns=1).collect()
    return Given({}, ledger, work=pl.DataFrame(rows, schema=WORK))


def test_experts_are_told_from_other_work() -> None:
    assert of_experts(1, given(260, 120)) and not of_experts(1, given(120, 260))
    assert not of_experts(0, given(260, 100))  # it has no more than the median of the others
    assert slower_compute(1, given(260, 120)) == (
        "the kernels of its experts take 2.6 times as long as the same kernels there", False
    )  # fmt: skip
    assert has_experts(given(100, 100)) and not has_experts(Given({}, given(1, 1).ledger))


def test_a_rank_on_another_gpu_has_no_more_work_and_no_slow_clock(tmp_path: Path) -> None:
    """Rank 2's GPU is older: its libraries take other kernels, for 20 ms longer."""
    tables = Job().run([[Work(), Work(), Work(computes=60)]] * 4)
    for row in tables["ranks"]:
        row["gpu"] = "NVIDIA A100-SXM4-80GB" if row["rank"] == 2 else "NVIDIA H100 80GB HBM3"
    for row in tables["kernels"]:
        row["name"] = row["name"].replace("sm90", "sm80") if row["rank"] == 2 else row["name"]
    (first, *_) = lostflops.why(made(tmp_path, tables)).findings
    assert "it runs on NVIDIA A100-SXM4-80GB, the others on NVIDIA H100 80GB HBM3" in first.evidence
    assert "GPUs of one kind" in first.next and "longer sequences" not in str(first)


def packed(attention: int, gemm: int, both: int = 100) -> Given:
    """Rank 1 has so much time in attention and in products, ranks 0 and 2 have 100 and `both`."""
    rows = [
        {"rank": rank, "family": family, "kernel": f"{family}|[8, 1, 1]", "calls": 4, "time": time}
        for rank in range(3)
        for family, time in (
            ("attention", attention if rank == 1 else 100),
            ("gemm", gemm if rank == 1 else both),
        )
    ]
    return replace(given(100, 100), work=pl.DataFrame(rows, schema=WORK))


def test_attention_alone_that_takes_longer_has_longer_documents_and_no_slow_gpu() -> None:
    """A GPU whose clock is low runs products as slowly as attention; long documents cost attention alone."""
    documents = (
        "its attention kernels take 2 times as long as the same kernels there, and all others as long as "
        "theirs: it has more work, such as longer documents packed into its batches"
    )
    assert slower_compute(1, packed(200, 100)) == (documents, False)
    assert slower_compute(1, packed(200, 104)) == (documents, False)
    slow = "its attention kernels take 2 times as long as the same kernels there", True
    assert slower_compute(1, packed(200, 180)) == slow
    assert slower_compute(1, packed(200, 20, 20)) == slow  # too little beside attention to tell


@pytest.mark.parametrize(("dense", "slow"), [(150, True), (146, True), (120, False), (100, False)])
def test_a_device_that_is_slow_for_dense_kernels_is_so_for_grouped_ones(dense: int, slow: bool) -> None:
    """Of experts that got more tokens, the layers around keep their pace."""
    told = slower_compute(1, given(150, dense))
    assert told is not None and told[1] is slow


@pytest.mark.parametrize(("rest", "slow"), [(150, True), (110, False), (100, False)])
def test_a_device_that_is_slow_for_all_other_families_is_so_for_grouped_products(
    rest: int, slow: bool
) -> None:
    """Nearly all products of this model are its experts'; attention and norms tell of the GPU's pace."""
    kernels = (("gemm", GROUPED, 150, 100), ("attention", "fa|[8]", rest, 100), ("norm", "ln|[8]", rest, 100))
    rows = [
        {"rank": rank, "family": family, "kernel": kernel, "calls": 4, "time": time if rank == 1 else usual}
        for rank in range(3)
        for family, kernel, time, usual in kernels
    ]
    told = slower_compute(1, replace(given(1, 1), work=pl.DataFrame(rows, schema=WORK)))
    assert told is not None and told[1] is slow and ("experts" in told[0]) is not slow


def test_ranks_of_which_no_kernels_are_known_are_not_told_to_launch_as_many() -> None:
    unknown = replace(given(1, 1), work=WORK.to_frame())
    assert evener(PageFindings(unknown), 1) is None
    more = replace(unknown, work=pl.DataFrame([(0, "g", "k", 4, 9), (1, "g", "k", 8, 9)], WORK, orient="row"))
    told = evener(PageFindings(more), 1)
    assert told is not None and "as many micro-batches" in told.text


def test_a_larger_batch_beside_large_weights_is_more_work_and_no_slow_cpu() -> None:
    """Products of 96 rows and of 32 with weights of 512 by 2,048: three times the FLOPs, 4 % more input."""
    rows = [
        {"rank": rank, "family": "gemm", "kernel": kernel, "calls": 4, "time": time}
        for rank, kernel, time in (
            (0, "aten::mm|[[32, 512], [512, 2048]]", 100),
            (1, "aten::mm|[[96, 512], [512, 2048]]", 300),
            (2, "aten::mm|[[32, 512], [512, 2048]]", 100),
        )
    ]
    job = replace(given(100, 100), work=pl.DataFrame(rows, schema=WORK), on_host=True)
    told = slower_compute(1, replace(job, flops={0: 1e6, 1: 3e6, 2: 1e6}))
    more = "its operators ask for 3 times as many FLOPs: it has more work, such as longer sequences"
    assert told == (more, False)
    alike = slower_compute(1, replace(job, flops={0: 1e6, 1: 1e6, 2: 1e6}))
    assert alike == ("it takes longer for inputs that are no larger than theirs", True)


def test_more_work_in_kernels_of_experts_is_more_tokens_and_no_longer_sequences() -> None:
    job = given(150, 100)
    told = slower_compute(1, replace(job, flops=dict.fromkeys(job.steps, 1e6) | {1: 1.5e6}))
    assert told is not None and told[0].endswith("it has more work, such as more tokens for its experts")


@pytest.mark.parametrize(("takes", "times"), [(107, "1.07"), (118, "1.18"), (130, "1.3"), (236, "2.4")])
def test_what_is_hardly_longer_is_not_rounded_to_a_tenth(takes: int, times: str) -> None:
    told = slower_compute(1, given(takes, takes))
    assert told == (f"its gemm kernels take {times} times as long as the same kernels there", True)


def test_a_slow_gpu_of_amd_is_asked_with_the_commands_of_amd(tmp_path: Path) -> None:
    tables = Job().run([[Work(), Work(), Work(computes=60)]] * 4)
    for row in tables["ranks"]:
        row["gpu"] = "AMD Instinct MI300X"
    (first, *_) = lostflops.why(made(tmp_path, tables)).findings
    assert first.rank == 2 and "`amd-smi metric --clock --power --temperature`" in first.next
    assert "nvidia" not in str(lostflops.why(made(tmp_path, tables)).findings)


@pytest.mark.parametrize(
    ("dense", "slow"),
    [((100, 130), True), ((100, 100), False), ((80, 104), True), ((60, 78), False), ((100, 115), False)],
)
def test_dense_layers_that_are_a_third_of_the_time_tell_a_slow_gpu_from_more_tokens(
    dense: tuple[int, int], slow: bool
) -> None:
    """Kernels of experts take 195 instead of 150: of more tokens, or of a GPU that is slow for all."""
    rows = [
        {"rank": rank, "family": "gemm", "kernel": kernel, "calls": 4, "time": times[rank == 1]}
        for rank in range(3)
        for kernel, times in ((GROUPED, (150, 195)), ("mm|[8]", dense))
    ]
    told = slower_compute(1, replace(given(100, 100), work=pl.DataFrame(rows, schema=WORK)))
    assert told is not None and told[1] is slow
