"""Recordings that are odd in a way that users make them: what the page must not be misled by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

import lostflops
from kineto_files import Event, call, head, kernel, operator, span, step, trace
from lostflops.errors import LostflopsError
from lostflops.finding import Finding
from lostflops.recipes.idle.evaluations import EVALUATIONS
from lostflops.report.first_page.notes.clocks_apart import BEFORE_LAUNCH, with_clocks
from lostflops.report.first_page.notes.step_kinds import of_two_kinds
from lostflops.report.first_page.page import Page
from lostflops.report.first_page.step_notes import uneven

GEMM = "ampere_bf16_s16816gemm_bf16_128x128"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


class Device:
    """A host and one stream, µs: a launch returns at once, and work runs in order."""

    def __init__(self, at: float = 1000) -> None:
        self.at, self.free, self.correlation = at, 0.0, 0
        self.events: list[Event] = []

    def work(self, duration: float, name: str = GEMM, host: str = "aten::mm") -> None:
        self.correlation += 1
        self.events += [operator(host, self.at, 9), call(self.at + 2, 5, self.correlation)]
        start = max(self.at + 9, self.free)
        self.events.append(kernel(start, duration, self.correlation, name=name))
        self.free, self.at = start + duration, self.at + 10

    def wait(self) -> None:
        self.correlation += 1
        end = max(self.free, self.at) + 5
        self.events.append(call(self.at, end - self.at, self.correlation, name="cudaDeviceSynchronize"))
        self.at = end + 1

    def step(self, number: int, *durations: float) -> None:
        """A marked step that ends with a synchronisation."""
        begin = self.at
        for duration in durations:
            self.work(duration)
        self.wait()
        self.events.append(step(number, begin, self.at - begin))

    def update(self) -> None:
        begin = self.at
        self.work(
            200, "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>", "aten::_fused_adamw_"
        )
        self.events.append(span("user_annotation", "Optimizer.step#AdamW.step", begin, self.at - begin))


@pytest.fixture
def why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Page]:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "cache"))
    run = tmp_path / "run"
    run.mkdir()

    def asked(*ranks: Sequence[Event]) -> Page:
        for rank, events in enumerate(ranks):
            (run / f"rank{rank}.json").write_bytes(trace(list(events), head(rank, len(ranks))))
        return lostflops.why(run)

    return asked


def milliseconds_of_a_step(page: Page) -> float:
    assert page.budget is not None
    return page.budget.mean / 1e6


def test_a_rank_whose_file_holds_marks_and_no_work_is_in_no_mean(why) -> None:
    full = Device()
    for number in range(10, 16):
        full.step(number, *[2000] * 4)
    page = why(full.events, [step(10, 1000, 50)])
    assert milliseconds_of_a_step(page) == pytest.approx(8.0, rel=0.01)
    assert "The recording of rank 1 holds steps and no work: it is in no mean." in page.notes
    assert page.run.windows == f"of {page.run.num_counted_steps} steps on 1 rank"


def test_steps_that_only_some_ranks_have_say_so(why) -> None:
    early, late = Device(), Device()
    for number in range(10, 15):
        early.step(number, *[2000] * 4)
    late.at = early.at
    for number in range(12, 17):
        late.step(number, *[2000] * 4)
    page = why(early.events, late.events)
    assert any("steps 10, 11, 15 and 16 (not whole on every rank)" in note for note in page.notes)


def test_work_between_steps_is_told(why) -> None:
    device = Device()
    for number in range(10, 16):
        device.step(number, *[2000] * 8)
        if number == 12:
            for _ in range(30):
                device.work(2000, host="aten::linear")
            device.wait()
    page = why(device.events)
    assert milliseconds_of_a_step(page) == pytest.approx(16.0, rel=0.01)
    (told,) = (note for note in page.notes if note.startswith("Between steps"))
    assert told == (
        "Between steps there is work for 60.0 ms, most of it after step 12, such as of an evaluation: it is "
        "in no account."
    )


def test_of_several_stretches_between_steps_none_is_most_of_them(why) -> None:
    """Of three evaluations of 60 ms the page said that most of it was after the first."""
    device = Device()
    for number in range(10, 19):
        device.step(number, *[2000] * 8)
        if number in (11, 13, 15):
            for _ in range(30):
                device.work(2000, host="aten::linear")
            device.wait()
    (told,) = (note for note in why(device.events).notes if note.startswith("Between steps"))
    assert told.startswith("Between steps there is work for 180 ms, the longest after step 11, such as")


def test_steps_that_hold_a_validation_are_told_by_number_and_length(why) -> None:
    device = Device()
    for number in range(9):
        for _ in range(8):
            device.work(2000)
        device.update()
        device.wait()
        for _ in range(60 if number in (2, 5) else 0):
            device.work(2000, host="aten::linear")
    page = why(device.events)
    (told,) = (note for note in page.notes if note.startswith("Steps 3 and 6"))
    assert told.startswith("Steps 3 and 6 take 136 ms, the others 16.2 ms (median). They count in the mean")


def test_steps_of_one_length_are_not_told_one_by_one(why) -> None:
    device = Device()
    for number, long in enumerate((3000, 4000, 3500, 4500, 5000, 3000)):
        device.step(number, *[long] * 4)
    assert not any("the others" in note for note in why(device.events).notes)


def test_what_a_recording_without_steps_costs_is_not_told_per_step(why) -> None:
    device = Device()
    for _ in range(20):
        for _ in range(4):
            device.work(1000, host="aten::linear")
        device.wait()
        device.at += 3000
    page = why(device.events)
    assert page.run.is_whole and page.findings
    said = [text for finding in page.findings for text in (finding.claim, *finding.evidence, finding.doubt)]
    assert not any("per step" in text for text in said)
    assert " per step" not in str(page)


@pytest.mark.parametrize("at", [0.0, 5.0])
def test_work_that_takes_no_time_is_work_in_no_account(why: Callable[..., Page], at: float) -> None:
    """As where a clock stood still: each event of the recording begins and ends with itself."""
    device = Device()
    for number in range(4):
        device.step(number, 100, 50)
    still = [{**event, "dur": 0.0, "ts": event["ts"] * (at > 0)} for event in device.events]
    with suppress(LostflopsError):
        assert not any("in no account" in note for note in why(still).notes)
    some = [{**e, "dur": 0.0} if e.get("cat") == "kernel" else e for e in device.events]
    assert not any("in no account" in note for note in why(some).notes)


def test_one_pause_that_ends_in_another_step_on_another_rank_is_not_two_long_steps() -> None:
    """Rank 0 pauses at the end of step 2, so that the others' step 3 is long."""
    rows = [
        {"rank": rank, "step": step, "start": 1000 * step, "end": 1000 * step + (400 if long else 100)}
        for rank in range(3)
        for step in range(5)
        for long in [step == (3 if rank else 2)]
    ]
    steps = pl.DataFrame(rows)
    marked: Any = SimpleNamespace(is_whole=False)
    (told,) = uneven(marked, steps, steps.select("rank", "step"))
    assert told == (
        "A step takes 400 ns that is 100 ns otherwise (median): step 2 on rank 0, step 3 on ranks 1 and 2. "
        "It counts in the mean: it does more, or may come back."
    )
    one = steps.with_columns(end=pl.col("start") + pl.when(pl.col("step") == 2).then(400).otherwise(100))
    (said,) = uneven(marked, one, one.select("rank", "step"))
    assert said.startswith("Step 2 takes 400 ns")


def kinds(*lengths: int, kernels: tuple[int, ...] = (), evaluates: Mapping[int, int] = {}) -> list[str]:
    """What is said of steps of these lengths, ns; `kernels` begin in each; some evaluate for so many ns."""
    ends = list(accumulate(lengths))
    steps = pl.DataFrame(
        {"rank": 0, "step": n, "start": end - long, "end": end}
        for n, (end, long) in enumerate(zip(ends, lengths, strict=True), 4)
    )
    starts = [s for s, n in zip(steps["start"], kernels, strict=False) for s in range(s, s + n)]
    table = pl.LazyFrame({"rank": 0, "start": starts}, {"rank": pl.Int64, "start": pl.Int64})
    trace: Any = SimpleNamespace(table=lambda _: table if kernels else None)
    run: Any = SimpleNamespace(is_whole=False, on_host=False)
    told = [
        {"rank": 0, "account": "host", "name": "train.py(9): evaluate", "ns": ns, "step": step}
        for step, ns in evaluates.items()
    ]
    evaluations = pl.DataFrame(told, EVALUATIONS)
    return [*of_two_kinds(trace, run, steps, steps.select("rank", "step"), evaluations)]


def test_steps_of_two_kinds_are_told_by_number_length_and_work() -> None:
    (accumulates,) = kinds(100, 102, 99, 150, 101, 98, 100, 151, kernels=(40, 40, 40, 61, 40, 40, 40, 61))
    assert accumulates == (
        "Steps are of two kinds: steps 7 and 11 take 150 ns for 61 kernels, the others 100 ns for 40 "
        "kernels. The mean is over both kinds."
    )
    lengths, kernels = (100, 102, 99, 150, 101, 150), (40, 40, 40, 61, 40, 61)
    (evaluates,) = kinds(*lengths, kernels=kernels, evaluates={7: 45, 9: 47})
    assert evaluates.endswith(
        "the others 100 ns for 40 kernels: `evaluate` takes 46 ns of each. "
        "The mean is over both kinds: how often that comes in the job decides what it costs."
    )
    (other,) = kinds(*lengths, kernels=kernels, evaluates={7: 45})
    assert other.endswith("for 40 kernels. The mean is over both kinds.")
    (turns,) = kinds(100, 130, 101, 131, 99, 130)
    assert (
        turns
        == "Steps have two lengths: steps 5, 7 and 9 take 130 ns, the others 100 ns. The mean is over both."
    )
    (one,) = kinds(100, 102, 99, 150, kernels=(40, 40, 40, 61))
    assert one.startswith("Steps are of two kinds: step 7 takes 150 ns for 61 kernels")
    (waits,) = kinds(100, 130, 101, 131, 99, 130, kernels=(44, 40, 44, 40, 44, 40))
    assert waits == turns  # those that do less are not longer for it


def test_idle_time_that_clocks_which_disagree_may_have_moved_is_doubted() -> None:
    found = [
        Finding(name, name, ns_per_step=2_000_000, gain="at most", evidence=(), next="n", accounts=of)
        for name, of in (
            ("waits", ("idle.host_synchronisation",)), ("copies-exposed", ("copy",)), (BEFORE_LAUNCH, ())
        )
    ]  # fmt: skip
    doubts = [one.doubt for one in with_clocks(found, 996_000)]
    assert doubts[0].startswith("The clocks of host and GPU disagree by up to 996 µs: ")
    assert doubts[1:] == ["", ""]
    assert [one.doubt for one in with_clocks(found, 90_000)] == ["", "", ""]
    assert [one.doubt for one in with_clocks(found[:2], 996_000)] == ["", ""]


def test_steps_that_vary_are_of_one_kind() -> None:
    assert kinds(100, 110, 120, 130, 105, 125) == []
    assert kinds(100, 101, 99, 150, kernels=(40, 40, 40, 40)) == []  # slow once
    assert kinds(100, 101, 150) == []
    assert kinds(100, 101, 112, 113) == []
    assert kinds(100, 130, 101, 131) == kinds(100, 101, 130, 131, 130, 100, 99, 100) == []


def test_kernels_that_the_profiler_lost_are_told_and_may_have_run_where_nothing_seems_to(why) -> None:
    device = Device()
    for number in range(4, 9):
        device.step(number, *[400] * 12)
    kernels = [event for event in device.events if event["cat"] == "kernel"]
    assert not any("work was lost" in note for note in why(device.events).notes)
    lost = [event for event in device.events if event not in kernels[2::4]]
    page = why(lost)
    (told,) = (note for note in page.notes if "work was lost" in note)
    assert told.startswith("15 of 60 kernel launches in the steps (25.0 %) have no kernel in the recording")
    idle = [f for f in page.findings if f.accounts[:1] and f.accounts[0].startswith("idle.")]
    assert [f.name for f in idle] == ["recording-incomplete"]  # what was launched between may have run
    assert idle[0].next.startswith("Record fewer steps, or less at a time")
    assert page.verdict.startswith("Incompletely recorded: the GPU seems idle for ")


def test_a_copy_that_waits_for_what_was_not_recorded_costs_no_idle_time(why) -> None:
    """The clock of the GPU is 3 ms late: four bytes that follow a kernel begin 3 ms after their call."""
    device = Device()
    for number in range(4, 9):
        begin = device.at
        for _ in range(10):
            device.work(300)
        device.correlation += 1
        device.events.append(call(device.at, 5, device.correlation, name="cudaMemcpyAsync"))
        args = {"device": 0, "stream": 7, "correlation": device.correlation, "bytes": 4}
        name = "Memcpy DtoH (Device -> Pageable)"
        device.events.append(span("gpu_memcpy", name, device.free, 2, 7, **args) | {"pid": 0})
        device.free += 2
        device.wait()
        device.at += 6000
        device.events.append(step(number, begin, device.at - begin))
    late = [e | {"ts": e["ts"] + 3000} if e["cat"] in ("kernel", "gpu_memcpy") else e for e in device.events]
    page = why(late)
    costs = sum(f.size for f in page.findings) / 1e6
    assert costs <= milliseconds_of_a_step(page)
    assert not any("cop" in f.name for f in page.findings)


def test_kernels_that_name_no_launch_were_not_lost(why) -> None:
    device = Device()
    for number in range(4, 9):
        device.step(number, *[400] * 12)
    kernels = [event for event in device.events if event["cat"] == "kernel"]
    for event in kernels[2::4]:
        del event["args"]["correlation"]
    page = why(device.events)
    told = [*page.notes, *(text for f in page.findings for text in (f.claim, f.doubt, f.next))]
    assert not any(" lost" in text for text in told)


def test_a_mark_that_holds_no_work_marks_no_step(why) -> None:
    """As where `step()` is called once, before the loop: the optimizer shows the steps."""
    device = Device()
    device.at += 100
    for _ in range(6):
        for _ in range(4):
            device.work(2000)
        device.update()
        device.wait()
    page = why([step(0, 1000, 5), *device.events])
    assert set(page.steps["source"].to_list()) == {"optimizer"}
    assert milliseconds_of_a_step(page) == pytest.approx(8.2, rel=0.02)
