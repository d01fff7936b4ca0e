"""The smallest recordings for which a prediction would be false, or look sure when it is not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lostflops
from kineto_files import Event, call, head, kernel, operator, span, step, trace, written
from lostflops.replay.step_times import StepPoints
from lostflops.replay.whatif import PredictedStep, Replay, gained_apart
from lostflops.session import Session

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
LAUNCH_TAKES, NEXT = 7, 1


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "store"))


def loop(steps: int = 5, kernels: int = 30, *, busy: int = 40, loader: int = 0, sync: bool = True,
         first: int = 1, thread: int = 1) -> list[Event]:  # fmt: skip
    """Steps that launch a kernel of `busy` us every 50 us, after a loader, and then wait for it."""
    events, now, free, number = list[Event](), 1000, 0, first
    for each in range(steps):
        begin = now
        if loader and (sync or each):  # before the first step the device has nothing to hide it behind
            events.append(span("user_annotation", LOADER, now, loader, thread))
            now += loader
        for _ in range(kernels):
            events.append(operator("aten::mm", now + 2, 40, thread))
            events.append(call(now + 5, 5, number, tid=thread))
            start = max(now + 5 + LAUNCH_TAKES, free + NEXT)
            events.append(kernel(start, busy, number))
            free, number, now = start + busy, number + 1, now + 50
        if sync:
            returns = max(now + 20, free + 5)
            events.append(call(now, returns - now, 90_000 + number, "cudaDeviceSynchronize", thread))
            now = returns + 10
        events.append({**step(each, begin, now - begin), "tid": thread})
    return events


def replay(tmp_path: Path, *ranks: Sequence[Event], world: int | None = None) -> Replay:
    found = list[Path]()
    for rank, events in enumerate(ranks):
        content = trace(events, head(rank, world or len(ranks)))
        found.append(written(tmp_path / f"rank{rank}.json", content))
    return Session(lostflops.open(found, allow_missing_ranks=True)).replay()


def asked(found: Replay, *texts: str) -> list[PredictedStep]:
    from lostflops.replay.edits import edit

    return [found.predicted([edit(text)]) for text in texts]


def gain(found: Replay, text: str) -> int:
    (answer,) = asked(found, text)
    assert answer.predicted_ns is not None, answer.refused
    assert answer.low_ns is not None and answer.high_ns is not None and answer.bound_ns is not None
    assert answer.low_ns <= answer.predicted_ns <= answer.high_ns
    assert answer.bound_ns <= answer.predicted_ns
    return found.trust.measured_ns - answer.predicted_ns


def test_a_loop_is_replayed_exactly_and_its_loader_predicted(tmp_path: Path) -> None:
    found = replay(tmp_path, loop(loader=1000))
    assert found.trust.trusted and found.trust.error < 0.001
    assert gain(found, "loader=0ms") == pytest.approx(1_000_000, rel=0.01)


def test_a_loader_hidden_behind_the_device_gains_nothing(tmp_path: Path) -> None:
    found = replay(tmp_path, loop(steps=6, busy=100, loader=1000, sync=False))
    assert found.trust.trusted, found.trust.reason
    assert gain(found, "loader=0ms") < 0.01 * found.trust.measured_ns
    assert gain(found, "faster:gemm=2") > 0.2 * found.trust.measured_ns


def test_what_one_rank_gains_at_an_end_of_the_recording_all_or_none_may_gain() -> None:
    """Three steps of two ranks. Ranks that never meet have gains of their own, in every step."""
    none = np.zeros(6, np.int64)
    steps = StepPoints(np.repeat([0, 1], 3), np.tile([4, 5, 6], 2), *(none,) * 5)

    def told(*gain: int) -> tuple[float, ...]:
        return gained_apart(steps, np.array(gain))

    assert told(0, 0, 0, 60, 0, 0) == told(0, 0, 0, 0, 0, 60) == (0, 20)
    assert told(0, 60, 0, 60, 0, 60) == (20, 40)  # rank 0 waits a step later
    assert told(30, 30, 30, 30, 30, 30) == (30, 30)
    assert told(60, 60, 60, 0, 0, 0) == ()


def test_without_correlation_nothing_is_predicted(tmp_path: Path) -> None:
    events = [{**e, "args": {k: v for k, v in e["args"].items() if k != "correlation"}} for e in loop()]
    found = replay(tmp_path, events)
    assert "has no launch" in found.trust.reason
    (answer,) = asked(found, "loader=0ms")
    assert answer.predicted_ns is None and answer.refused


@pytest.mark.parametrize("left", ["every other", "the second half"])
@pytest.mark.parametrize("cut", ["cuda_runtime", "kernel"])
def test_half_the_launches_or_kernels_cut_off_are_refused(tmp_path: Path, left: str, cut: str) -> None:
    events, kept, seen = loop(), list[Event](), 0
    number = sum(e["cat"] == cut for e in events)
    for event in events:
        if event["cat"] == cut and "Synchronize" not in event["name"]:
            seen += 1
            if (seen % 2) if left == "every other" else (seen <= number / 2):
                continue
        kept.append(event)
    found = replay(tmp_path, kept)
    for answer in asked(found, "loader=0ms", "cuda-graph", "no-sync"):
        assert answer.predicted_ns is None and answer.refused, (answer, found.trust.doubts)


def test_a_graph_as_one_kernel_does_not_look_sure(tmp_path: Path) -> None:
    events = list[Event]()
    for each in range(5):
        at = 1000 + 3000 * each
        events.append(step(each, at, 3000))
        events.append(call(at + 10, 10, each + 1, "cudaGraphLaunch"))
        events.append(kernel(at + 20, 2800, each + 1, "graph"))
        events.append(call(at + 30, 2795, 900 + each, "cudaDeviceSynchronize"))
    found = replay(tmp_path, events)
    assert "too few" in found.trust.reason


def test_a_job_of_which_one_rank_was_recorded_refuses_edits_of_communication(tmp_path: Path) -> None:
    events = loop()
    events += [
        e
        for at in range(5)
        for e in (
            call(1012 + 1500 * at, 3, 5000 + at),
            kernel(1030 + 1500 * at, 300, 5000 + at, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20),
        )
    ]
    found = replay(tmp_path, events, world=8)
    for answer in asked(found, "free-communication", "faster-links=2", "overlap"):
        assert answer.predicted_ns is None and "1 of the job's 8 ranks" in answer.refused, answer


@pytest.mark.parametrize(("loader", "refused"), [(400, False), (0, True)])
def test_ranks_that_would_not_keep_in_step_predict_nothing_where_others_are_missing(
    tmp_path: Path, loader: int, refused: bool
) -> None:
    """Two ranks of four load for 400 us, or one of them: the other waits for it, or for those that are
    missing. It was predicted to gain half of it, in the mean of both."""
    ranks: list[list[Event]] = []
    for loads in (loader, 400):
        events = loop(loader=loads)
        for at in range(5):
            begins = 1300 + (1530 + loads) * at
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
            events += [call(begins, 3, 5000 + at), kernel(begins + 9, 300, 5000 + at, name, 20)]
        ranks.append(events)
    found = replay(tmp_path, *ranks, world=4)
    (answer,) = asked(found, "loader=0ms")
    assert not found.trust.reason
    told = "ranks would gain between 0 ns and 400 µs, and 2 of the job's 4 ranks were recorded"
    assert answer.refused.startswith(told if refused else "") and bool(answer.refused) == refused
    assert refused or found.trust.measured_ns - (answer.predicted_ns or 0) == 400_000


def test_a_wait_for_what_was_not_recorded_is_refused(tmp_path: Path) -> None:
    """The device does something for 3 ms in each step that is not in the recording."""
    events, shift = list[Event](), 0
    for event in sorted(loop(), key=lambda e: e["ts"]):
        if "Synchronize" in event["name"]:
            events.append({**event, "ts": event["ts"] + shift, "dur": event["dur"] + 3000})
            shift += 3000
        elif event["cat"] != "user_annotation":
            events.append({**event, "ts": event["ts"] + shift})
    steps = sorted(e["ts"] + e["dur"] for e in events if "Synchronize" in e["name"])
    begins = [1000, *steps[:-1]]
    events += [step(n, b, e - b) for n, (b, e) in enumerate(zip(begins, steps, strict=True))]
    found = replay(tmp_path, events)
    assert found.trust.path.unexplained > 0.5
    assert not found.trust.trusted


def test_equal_stamps_and_rows_without_length_make_no_circle(tmp_path: Path) -> None:
    events = [step(n, 1000 + 100 * n, 100) for n in range(4)]
    for number in range(60):
        at = 1000 + 5 * (number // 2)
        events += [
            operator("aten::mm", at, 0, 1 + number % 3),
            call(at, 0, number + 1, tid=1 + number % 3),
            kernel(at, 0, number + 1, stream=7 + number % 2),
        ]
    events += [call(1390, 0, 61), kernel(1390, 1, 61)]  # a file in which no row has a length is refused
    found = replay(tmp_path, events)
    job = found.job
    assert (job.replayed(job.lags()) == job.measured).all()


def test_two_processes_may_number_their_threads_alike(tmp_path: Path) -> None:
    alone = replay(tmp_path, loop(loader=500))
    (tmp_path / "two").mkdir()
    both = replay(tmp_path / "two", loop(loader=500), loop(loader=500))
    assert both.trust.measured_ns == alone.trust.measured_ns
    assert gain(both, "loader=0ms") == pytest.approx(gain(alone, "loader=0ms"), rel=0.01)


def test_a_wait_of_a_stream_without_records_waits_for_what_was_launched_before(tmp_path: Path) -> None:
    events, number = list[Event](), 0
    for each in range(20):
        at = 1000 + 1000 * each
        events += [step(each, at, 1000), call(at + 5, 5, number + 1), kernel(at + 12, 600, number + 1)]
        events.append(call(at + 20, 2, 70_000 + each, "cudaStreamWaitEvent"))
        events += [call(at + 25, 5, number + 2), kernel(at + 613, 200, number + 2, "side", 9)]
        events.append(call(at + 40, 780, 80_000 + each, "cudaDeviceSynchronize"))
        number += 2
    events += [
        e for n in range(30) for e in (call(22000 + 20 * n, 5, 500 + n), kernel(22007 + 20 * n, 5, 500 + n))
    ]
    found = replay(tmp_path, events)
    assert found.trust.trusted, found.trust.reason
    assert gain(found, "faster:gemm=2") == pytest.approx(300_000, rel=0.05)


def test_without_any_kernel_or_step_there_is_an_answer_or_a_reason(tmp_path: Path) -> None:
    events = [e for e in loop() if e["cat"] in ("cpu_op", "user_annotation")]
    found = replay(tmp_path, events)
    for answer in asked(found, "cuda-graph", "no-sync", "pinned"):
        assert answer.refused and answer.predicted_ns is None
    (tmp_path / "no").mkdir()
    found = replay(tmp_path / "no", [e for e in loop() if not e["name"].startswith("ProfilerStep")])
    for answer in asked(found, "loader=0ms", "cuda-graph"):
        assert answer.refused and answer.predicted_ns is None


def test_where_there_is_no_gpu_operators_are_no_other_work_of_the_host(tmp_path: Path) -> None:
    """Of a step of 100 us an operator computes for 60; without all else, no more than 40 are gained."""
    events = list[Event]()
    for each in range(5):
        at = 1000 + 100 * each
        nap = span("python_function", "train.py(3): nap", at + 60, 40)
        events += [step(each, at, 100), operator("aten::mm", at, 60), nap]
    found = replay(tmp_path, events)
    assert found.trust.measured_ns == 100_000
    assert gain(found, "host:other-host-work=0ms") == 40_000
    assert gain(found, "host:other-host-work=25%") == 30_000


def test_a_cut_by_steps_predicts_those(tmp_path: Path) -> None:
    path = written(tmp_path / "all.json", trace(loop(steps=8, loader=1000), head(0, 1)))
    opened = lostflops.open(path)
    some = Session(opened.select(steps=(3, 5))).replay()
    assert some.trust.trusted, some.trust.reason
    assert sorted(set(some.trust.steps["step"].to_list())) == [3, 4, 5]
    assert gain(some, "loader=0ms") == pytest.approx(1_000_000, rel=0.01)


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(1, 90), st.integers(1, 200)), min_size=12, max_size=20), st.randoms())
def test_random_programs_replay_exactly_and_gain_no_more_than_their_bound(
    program: list[tuple[int, int]], random: Random
) -> None:
    """Host gaps and kernels of any length: three like steps, each with a wait at its end, simulated."""
    events, now, free, number = list[Event](), 1000, 0, 1
    for each in range(4):
        begin = now
        for gap, busy in program * 2:
            events.append(call(now, 5, number))
            start = max(now + LAUNCH_TAKES, free + NEXT)
            events.append(kernel(start, busy, number))
            free, number, now = start + busy, number + 1, now + 5 + gap
        returns = max(now + 20, free + 5)
        events.append(call(now, returns - now, 90_000 + number, "cudaDeviceSynchronize"))
        events.append(step(each, begin, returns + 10 - begin))
        now = returns + 10
    with TemporaryDirectory() as place, patch.dict("os.environ", LOSTFLOPS_CACHE=f"{place}/store"):
        found = replay(Path(place), events)
        (Path(place) / "mixed").mkdir()
        shuffled = random.sample(events, len(events))
        mixed = replay(Path(place) / "mixed", shuffled)
    job = found.job
    assert (job.replayed(job.lags()) == job.measured).all()
    assert found.trust.replayed_ns == pytest.approx(found.trust.measured_ns, rel=0.01)
    assert mixed.trust.measured_ns == found.trust.measured_ns
    fewer = job.lags() - np.array([random.randint(0, 5000) for _ in job.edges.lag])
    assert (job.replayed(fewer) <= job.measured).all(), "shorter lags make nothing later"
    if found.trust.trusted:
        gains = [gain(found, f"faster:gemm={factor}") for factor in (1.5, 2, 4)]
        assert gains == sorted(gains) and gains[0] >= 0
        assert gains == [gain(mixed, f"faster:gemm={factor}") for factor in (1.5, 2, 4)]


def test_a_job_without_a_device_has_none_to_wait_for() -> None:
    """Its waits are for transfers: without those a step of 665 ms seemed to take 475."""
    found = Session(lostflops.open(Path(__file__).parents[2] / "examples" / "runs" / "fsdp2")).replay()
    (answer,) = asked(found, "no-sync")
    assert answer.predicted_ns is None and "no device was recorded" in answer.refused


def test_what_ranks_communicate_before_their_first_step_is_given(tmp_path: Path) -> None:
    """Of the communication 8 ms of 12 lie before the steps, on rank 0 alone: nothing there is asked about."""
    name, ranks = "ncclDevKernel_AllReduce_Sum_f32_RING_LL", list[list[Event]]()
    for rank in range(2):
        events = loop(steps=5, kernels=30)
        ends = [e["ts"] + e["dur"] for e in events if e["name"].startswith("ProfilerStep")]
        for n, end in enumerate(ends):
            reduces = [call(end - 700, 5, 7000 + n), kernel(end - 693, 400, 7000 + n, name, 20)]
            events += reduces
        if rank == 0:
            for n in range(4):
                at = -9000 + 2100 * n
                events += [call(at, 5, 8000 + n), kernel(at + 7, 2000, 8000 + n, name, 20)]
        events += [call(40, 900, 9000, "cudaDeviceSynchronize")] if rank == 0 else []
        ranks.append([{**e, "ts": e["ts"] + 20_000} for e in events])
    found = replay(tmp_path, *ranks)
    (answer,) = asked(found, "free-communication")
    assert not answer.refused
