"""One process that drives two GPUs, as `DataParallel` does: each device has its own share of the host."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import lostflops
from kineto_files import Event, call, head, kernel, operator, span, step, trace, written
from lostflops.store.trace import Trace

SHAPE = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["c10::BFloat16"] * 2}
GEMM = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_kernel__5x_cublas"
)


def product(ts: float, correlation: int, device: int) -> list[Event]:
    """An operator of 20 µs, its call, and its kernel of 400 µs."""
    return [
        operator("aten::mm", ts, 20, more=SHAPE),
        call(ts + 5, 5, correlation),
        {**kernel(ts + 30, 400, correlation, GEMM, device=device), "pid": device},
    ]


def broadcast(ts: float, correlation: int) -> list[Event]:
    """Weights that the first device sends: a call on the process's thread, a kernel of 300 µs."""
    name = "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    return [call(ts, 5, correlation), kernel(ts + 30, 300, correlation, name)]


@pytest.fixture
def run(tmp_path: Path) -> Trace:
    events: list[Event] = []
    for number in range(4):
        begin = 1000 + 2000 * number
        events += [step(number, begin, 2000), operator("DataParallel.forward", begin + 90, 700)]
        events += [span("cpu_op", "aten::view", begin + 95, 2)]
        events += product(begin + 100, 10 * number + 1, 0)
        events += product(begin + 200, 10 * number + 2, 1)
        events += product(begin + 700, 10 * number + 3, 1)
        events += broadcast(begin + 1300, 10 * number + 4)
    devices = [{"id": n, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "numSms": 132} for n in (0, 1)]
    written(tmp_path / "trace.json", trace(events, head(None, deviceProperties=devices)))
    return lostflops.open(tmp_path)


def test_what_launched_on_another_device_only_is_not_a_devices(run: Trace) -> None:
    launches, operators = run.table("launches"), run.table("operators")
    assert launches is not None and operators is not None
    assert launches.collect().group_by("rank").len().sort("rank").rows() == [(0, 8), (1, 8)]
    named = operators.group_by("rank", name=pl.col("name").cast(pl.String)).len().collect()
    assert sorted(named.rows()) == [
        (0, "DataParallel.forward", 4),
        (0, "aten::mm", 4),
        (0, "aten::view", 4),
        (1, "DataParallel.forward", 4),
        (1, "aten::mm", 8),
        (1, "aten::view", 4),
    ]


def test_the_flops_of_a_product_are_counted_on_the_device_that_computed_it(run: Trace) -> None:
    flops = lostflops.ask(run, "model_flops").sort("rank")
    each = 2 * 4096**3
    assert flops["model_flops"].to_list() == pytest.approx([each, 2 * each])


def test_the_page_says_that_one_process_drives_them_and_advises_a_process_each(run: Trace) -> None:
    page = lostflops.why(run)
    assert any(line.startswith("One process drives 2 GPUs, each shown as a rank") for line in page.notes)
    assert "some may be missing" not in str(page) and "warning" not in str(page)
    (sent,) = (f for f in page.findings if f.name == "communication-exposed")
    assert any("`DataParallel`, which one process sends" in fact for fact in sent.evidence)
    assert "Give each GPU a process" in sent.next and sent.remedies == ("one-process-per-gpu",)


def test_a_gpu_whose_process_waits_for_another_gpu_waits_for_that(tmp_path: Path) -> None:
    """The process waits until the first GPU is done; the second has been idle since it began to wait."""
    events: list[Event] = []
    for number in range(4):
        begin = 1000 + 2000 * number
        events += [step(number, begin, 2000), *product(begin + 100, 10 * number + 2, 1)]
        events += [*product(begin + 130, 10 * number + 1, 0), *product(begin + 700, 10 * number + 3, 0)]
        events += [call(begin + 720, 440, 10 * number + 5, "cudaStreamSynchronize")]
    devices = [{"id": n, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "numSms": 132} for n in (0, 1)]
    written(tmp_path / "trace.json", trace(events, head(None, deviceProperties=devices)))
    run = lostflops.open(tmp_path)
    ledger = lostflops.ask(run, "step_ledger").group_by("rank", "account").agg(pl.col("ns").sum())
    spent = {(rank, account): ns for rank, account, ns in ledger.iter_rows()}
    # In three whole steps and a last one: while the first GPU runs from 730 to 1130 in each.
    assert spent[1, "idle.other_device"] >= 3 * 400_000
    assert spent.get((0, "idle.other_device"), 0) == 0
    (waits,) = (f for f in lostflops.why(run).findings if f.name == "another-gpu-works")
    assert waits.remedies == ("one-process-per-gpu",) and "another GPU of the same process" in waits.claim


def test_work_that_was_launched_for_one_gpu_and_waits_for_another_is_that_ones_turn(tmp_path: Path) -> None:
    """The layers lie on two GPUs: the second works while the first's next kernel, long launched, waits."""
    events: list[Event] = []
    for number in range(4):
        begin = 1000 + 6000 * number
        events += [step(number, begin, 6000)]
        for place, (at, device) in enumerate(((100, 0), (3100, 0), (600, 1))):
            events += [call(begin + 10 * place, 5, 10 * number + place + 1)]
            long = 2400 if device else 400
            one = kernel(begin + at, long, 10 * number + place + 1, GEMM, device=device)
            events.append({**one, "pid": device})
    devices = [{"id": n, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "numSms": 132} for n in (0, 1)]
    written(tmp_path / "trace.json", trace(events, head(None, deviceProperties=devices)))
    ledger = lostflops.ask(lostflops.open(tmp_path), "step_ledger").filter(pl.col("rank") == 0)
    spent = dict(ledger.group_by("account").agg(pl.col("ns").sum()).iter_rows())
    assert spent["idle.other_device"] >= 3 * 2_400_000
    assert spent.get("idle.unrecorded", 0) < 4 * 300_000


def test_a_job_of_one_process_may_drive_two_gpus(tmp_path: Path) -> None:
    """Its trace tells a world of one process: it was refused, as two jobs in one file."""
    events = [step(0, 1000, 2000), *product(1100, 1, 0), *product(1200, 2, 1)]
    ranks = lostflops.open(written(tmp_path / "trace.json", trace(events, head(0, 1)))).table("ranks")
    assert ranks is not None
    assert ranks.select("rank", "world_size").collect().rows() == [(0, None), (1, None)]
