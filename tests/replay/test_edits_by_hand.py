"""Edits on recordings small enough to work the answer out by hand, or to run again with the change made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import lostflops
from kineto_files import Event, call, head, kernel, operator, span, step, trace, written
from lostflops.naming.cards import HOST_LINKS, ON_LINK
from lostflops.plan import hardware
from lostflops.replay.edits import edit
from lostflops.replay.whatif import PredictedStep, Replay
from lostflops.session import Session

LAUNCH, NEXT, GAP, CALL = 7, 1, 30, 5  # µs: call to kernel, kernel to kernel, between calls, a call
SINGLE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
SEVERAL = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
ADD, MUL = "vectorized_elementwise_kernel<add>", "vectorized_elementwise_kernel<mul>"
GEMM, REDUCE = "ampere_bf16_s16816gemm_bf16_128x128", "reduce_kernel<512, 1, sum>"


@dataclass(frozen=True)
class Launched:
    name: str
    busy: int
    phase: str = "forward"
    stream: int = 7
    fused: bool = False  # into the one before, which launches it


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "store"))


def job(work: Sequence[Launched], steps: int = 5, *, gap: int = GAP, loader: str = "", loading: int = 0,
        ready: int = 0, lane: int = -1) -> list[Event]:  # fmt: skip
    """Steps that launch this work and wait for it. With `ready`, a batch is there so long after the last."""
    events, now, free, number, taken = list[Event](), 1000, dict[int, int](), 1, -(10**9)
    for each in range(steps):
        begin = now
        if loader:
            waits = loading if not ready else max(0, taken + ready - now)
            if waits:
                events.append(span("user_annotation", loader, now, waits))
            now += waits
            taken = now
        for one in work:
            stream = lane if lane >= 0 and one.name == REDUCE else one.stream
            if one.fused:
                start = free[stream]
            else:
                name = "aten::mm" if one.phase == "forward" else "autograd::engine::evaluate_function: Mm"
                events.append(operator(name, now, CALL + gap, more={"Sequence number": number}))
                events.append(call(now, CALL, number))
                start = max(now + LAUNCH, free.get(stream, 0) + NEXT)
                now += CALL + gap
            events.append(kernel(start, one.busy, number, one.name, stream))
            free[stream] = start + one.busy
            number += 1
        returns = max(now + 20, max(free.values()) + 5)
        events.append(call(now, returns - now, 90_000 + number, "cudaDeviceSynchronize"))
        now = returns + 10
        events.append(step(each, begin, now - begin))
    return events


def replay(place: Path, events: list[Event], gpu: str = "GPU") -> Replay:
    place.mkdir(exist_ok=True)
    before = head(0, 1, deviceProperties=[{"id": 0, "name": gpu}])
    return Session(lostflops.open(written(place / "rank0.json", trace(events, before)))).replay()


def asked(found: Replay, text: str) -> PredictedStep:
    assert found.trust.trusted, found.trust.reason
    return found.predicted([edit(text)])


def predicted(found: Replay, text: str) -> int:
    answer = asked(found, text)
    assert answer.predicted_ns is not None and answer.low_ns is not None, answer.refused
    assert answer.high_ns is not None and answer.bound_ns is not None
    assert answer.bound_ns <= answer.low_ns <= answer.predicted_ns <= answer.high_ns
    return answer.predicted_ns


def recorded(place: Path, events: list[Event]) -> int:
    return replay(place, events).trust.measured_ns


def test_products_in_another_precision_take_their_part_of_the_time(tmp_path: Path) -> None:
    """20 products of 100 µs at twice the speed save 20 x 50 µs; what is not a product stays."""
    work = [Launched(GEMM, 100), Launched(ADD, 60)] * 20
    found = replay(tmp_path / "a", job(work), "NVIDIA H100 80GB HBM3")
    measured = found.trust.measured_ns
    assert measured - predicted(found, "precision:bf16-fp8=2") == 20 * 50_000
    peaks = asked(found, "precision:bf16-fp8")
    assert peaks.predicted_ns == pytest.approx(measured - 20 * 50_000, rel=1e-3)  # 1,978.9 of 989.4 TFLOP/s
    assert peaks.high_ns is not None and peaks.high_ns >= measured  # peaks are no measurement
    assert any("peaks" in doubt for doubt in peaks.doubts)
    assert "no matrix product runs in fp16" in asked(found, "precision:fp16-fp8=2").refused


def test_peaks_of_an_unknown_gpu_are_no_ratio(tmp_path: Path) -> None:
    found = replay(tmp_path / "a", job([Launched(GEMM, 100)] * 30))
    assert "give a measured ratio" in asked(found, "precision:bf16-fp8").refused


def test_fused_kernels_are_launched_once(tmp_path: Path) -> None:
    """The host bounds this job. Of each three element-wise kernels two launches go, with their gaps."""
    chain = [Launched(GEMM, 20), Launched(ADD, 4), Launched(MUL, 4), Launched(ADD, 4)]
    fused = [*chain[:2], Launched(MUL, 4, fused=True), Launched(ADD, 4, fused=True)]
    found = replay(tmp_path / "a", job(chain * 10))
    measured, now = found.trust.measured_ns, predicted(found, "fuse:elementwise")
    assert measured - now == pytest.approx(10 * 2 * (GAP + CALL) * 1000, rel=0.06)
    assert now == pytest.approx(recorded(tmp_path / "b", job(fused * 10)), rel=0.05)


def test_on_a_busy_device_a_fused_kernel_saves_the_gaps_between_kernels(tmp_path: Path) -> None:
    chain = [Launched(GEMM, 200), Launched(ADD, 40), Launched(MUL, 40), Launched(ADD, 40)]
    found = replay(tmp_path / "a", job(chain * 10))
    assert found.trust.measured_ns - predicted(found, "fuse:elementwise") == 10 * 2 * NEXT * 1000
    assert "no two kernels" in asked(found, "fuse:gemm").refused


def test_on_a_stream_of_their_own_kernels_hide_behind_what_follows(tmp_path: Path) -> None:
    """Ten reductions of 50 µs, each beside the product after it: 10 x (50 + 1) µs are gained at best."""
    work = [Launched(GEMM, 100), Launched(REDUCE, 50)] * 10 + [Launched(GEMM, 100)] * 6
    found = replay(tmp_path / "a", job(work, gap=0))
    answer, measured = asked(found, "own-stream:reduction"), found.trust.measured_ns
    assert measured - predicted(found, "own-stream:reduction") == pytest.approx(10 * 51_000, rel=0.03)
    assert answer.high_ns is not None and answer.high_ns >= measured  # kernels share the GPU: maybe nothing
    beside = recorded(tmp_path / "b", job(work, gap=0, lane=9))
    assert answer.predicted_ns == pytest.approx(beside, rel=0.05)


def test_what_the_next_phase_needs_is_waited_for(tmp_path: Path) -> None:
    """A reduction of 5 ms right before the backward pass has nothing to hide behind."""
    work = [Launched(GEMM, 100)] * 10 + [Launched(REDUCE, 5_000)] + [Launched(GEMM, 100, "backward")] * 10
    found = replay(tmp_path / "a", job(work))
    assert found.trust.measured_ns - predicted(found, "own-stream:reduction") <= 2_000


@pytest.mark.parametrize(
    ("workers", "loading"),
    [(1, 4_000), (2, 8_000), (4, 8_000), (8, 8_000)],
)
def test_workers_make_a_batch_in_their_share_of_its_time(workers: int, loading: int, tmp_path: Path) -> None:
    """A step computes for about 3 ms: a batch that takes 8 is there every 8 / N ms, or when it is needed."""
    work = [Launched(GEMM, 100)] * 30
    found = replay(tmp_path / "a", job(work, loader=SINGLE, loading=loading, steps=8))
    answer = asked(found, f"loader-workers={workers}")
    truth = recorded(tmp_path / "b", job(work, loader=SEVERAL, ready=loading // workers, steps=8))
    assert answer.predicted_ns is not None, answer.refused
    assert answer.predicted_ns == pytest.approx(truth, rel=0.05)
    assert predicted(found, f"loader-workers={workers}") >= predicted(found, "loader=0ms")


def test_a_loader_that_has_workers_does_not_say_how_long_they_take(tmp_path: Path) -> None:
    work = [Launched(GEMM, 100)] * 30
    found = replay(tmp_path / "a", job(work, loader=SEVERAL, ready=5_000, steps=8))
    assert "has workers" in asked(found, "loader-workers=4").refused
    none = replay(tmp_path / "b", job(work))
    assert "no time on data loading" in asked(none, "loader-workers=4").refused


def test_an_event_recorded_and_awaited_at_once_holds_back_another_stream(tmp_path: Path) -> None:
    """Stream 9 is told to wait for the long kernel on 7, then more is launched on 7, then the host waits.

    Without that wait the host launches 9's kernel early, which then begins at 613 instead of 647 µs: it is
    still held back by the event, though the next launch after that was on 7.
    """
    events = list[Event]()
    for each in range(30):
        at, n = 1000 + 1000 * each, 10 * each
        events += [
            step(each, at, 1000), operator("aten::mm", at + 2, 8), call(at + 5, 5, n + 1),
            kernel(at + 12, 600, n + 1, GEMM),
            call(at + 14, 1, n + 2, "cudaEventRecord"), call(at + 16, 1, n + 3, "cudaStreamWaitEvent"),
            operator("aten::add", at + 18, 8), call(at + 20, 5, n + 4), kernel(at + 613, 10, n + 4, ADD),
            call(at + 30, 600, n + 7, "cudaStreamSynchronize"),
            operator("aten::sum", at + 638, 8), call(at + 640, 5, n + 5),
            kernel(at + 647, 200, n + 5, REDUCE, 9),
            call(at + 650, 202, n + 6, "cudaDeviceSynchronize"), operator("aten::empty", at + 855, 140),
        ]  # fmt: skip
    found = replay(tmp_path / "a", events)
    gained = found.trust.measured_ns - predicted(found, "no-sync:cudaStreamSynchronize")
    assert gained == pytest.approx(647_000 - 613_000, abs=2_000)


def test_a_cpu_that_keeps_activations_saves_the_time_of_calling_layers_again_too(tmp_path: Path) -> None:
    """Of each step's 1,000 µs it computes 300 again, 10 after other work and 15 before other work."""
    events = list[Event]()
    for each, at in enumerate(range(1000, 6000, 1000)):
        events += [step(each, at, 1000), operator("aten::mm", at + 10, 300, more={"Sequence number": each})]
        for layer, (begin, took) in enumerate(((320, 400), (730, 50), (790, 50), (850, 50))):
            node = at + begin
            events.append(operator("autograd::engine::evaluate_function: MmBackward0", node, took))
            events.append(operator("MmBackward0", node + 5, took - 10, more={"Fwd thread id": 1}))
            if not layer:
                events.append(operator("aten::mm", node + 15, 300, more={"Sequence number": 9}))
            events.append(operator("aten::mm", node + took - 20, 10))
    found = replay(tmp_path / "a", events)
    gained = found.trust.measured_ns - predicted(found, "no-recompute")
    assert gained == pytest.approx(375_000, abs=1)


@pytest.mark.parametrize(
    "text",
    ["schedule=zb", "microbatches=4", "network=50GB/s", "network-start=1us", "host-link=50GB/s",
     "no-recompute", "offload:25GB/s=1GiB"],
)  # fmt: skip
def test_an_edit_of_what_is_not_there_says_so(text: str, tmp_path: Path) -> None:
    answer = asked(replay(tmp_path / "a", job([Launched(GEMM, 100)] * 30)), text)
    assert answer.predicted_ns is None and answer.refused


@pytest.mark.parametrize(
    "text",
    ["schedule=fast", "schedule", "schedule=interleaved", "microbatches=0", "microbatches:3=4", "network=3",
     "network:x=3GB/s", "network-start=3GB", "host-link=3GB", "host-link:up=3GB/s", "no-recompute=2", "fuse",
     "fuse:gemm=2", "own-stream", "precision:bf16=2", "precision:bf16-fp7=2", "precision:bf16-bf16",
     "loader-workers=0", "loader-workers:2=3", "offload=3GB", "offload:3GB=3GB", "offload:3GB/s=fast",
     "even-links=3GB", "even-links:3"],
)  # fmt: skip
def test_what_cannot_be_read_is_answered_with_what_can(text: str) -> None:
    with pytest.raises(lostflops.errors.BadOption) as caught:
        edit(text)
    assert caught.value.hint


MEGA = 1_000_000
BATCH = 16 * MEGA  # bytes


def fed(kind: str, rate: float, other: float = 0) -> list[Event]:
    """Steps that copy 16 MB to the device at `rate` bytes a µs, compute 2 ms on it and wait.

    Copies of pageable memory hold the host. `other` is the rate of a pinned copy beside them.
    """
    events, now, number = list[Event](), 1000.0, 1
    for each in range(5):
        begin, moves = now, BATCH / rate
        name = f"Memcpy HtoD ({kind} -> Device)"
        copied = {"bytes": BATCH, "device": 0, "stream": 7, "correlation": number}
        held = moves if kind == "Pageable" else 0
        events.append(call(now, CALL + held, number, "cudaMemcpyAsync"))
        events.append(span("gpu_memcpy", name, now + LAUNCH, moves, 7, **copied) | {"pid": 0})
        free = now + LAUNCH + moves
        now += CALL + held + GAP
        if other:
            beside = copied | {"correlation": number + 500, "stream": 9}
            events.append(call(now, CALL, number + 500, "cudaMemcpyAsync"))
            pinned = span(
                "gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", now + LAUNCH, BATCH / other, 9, **beside
            )
            events.append(pinned | {"pid": 0})
            now += CALL + GAP
        for n in range(30):
            events += [operator("aten::mm", now, CALL + GAP), call(now, CALL, number + 1 + n)]
            start = max(now + LAUNCH, free + NEXT)
            events.append(kernel(start, 70, number + 1 + n, GEMM))
            free, now = start + 70, now + CALL + GAP
        number += 40
        events.append(call(now, free + 5 - now, 90_000 + number, "cudaDeviceSynchronize"))
        now = free + 15
        events.append(step(each, begin, now - begin))
    return events


def test_copies_from_pinned_memory_are_as_fast_as_those_of_the_run(tmp_path: Path) -> None:
    """16 MB take 3.2 ms at 5 GB/s and 0.8 at 20."""
    slow, fast = replay(tmp_path / "a", fed("Pageable", 5000, 20_000)), fed("Pinned", 20_000, 20_000)
    answer = asked(slow, "pinned")
    assert answer.predicted_ns == pytest.approx(recorded(tmp_path / "b", fast), rel=0.03)
    assert "copied at 20 GB/s, as copies from pinned memory are in this run" in answer.doubts


def test_without_any_the_link_of_the_card_says_how_fast_pinned_copies_are(tmp_path: Path) -> None:
    slow = replay(tmp_path / "a", fed("Pageable", 5000), "NVIDIA A100-SXM4-80GB")
    answer = asked(slow, "pinned")
    assert answer.predicted_ns == pytest.approx(recorded(tmp_path / "b", fed("Pinned", 25_000)), rel=0.03)
    # The machine's own link may be slower: at worst copies stay as they are.
    assert answer.high_ns is not None and answer.high_ns >= answer.predicted_ns + 2_000_000
    assert any("PCIe 4, the link that such a GPU usually has" in doubt for doubt in answer.doubts)
    unknown = asked(replay(tmp_path / "c", fed("Pageable", 5000)), "pinned")
    assert "'pinned=25GB/s'" in unknown.refused
    assert predicted(slow, "pinned=25GB/s") == answer.predicted_ns


def test_links_are_those_of_the_planner() -> None:
    for name, gpu in hardware.GPUS.items():
        found = next((link for link, cards in ON_LINK.items() if name in cards), None)
        assert found is None or HOST_LINKS[found] == hardware.LINKS[gpu.link].into


def both_threads(collects: int = 0, loads: int = 0) -> list[Event]:
    """Steps that go forward twelve times on one thread and back on autograd's, and wait; between the passes
    the first collects garbage, and between two of these it loads, while the other has nothing to do."""
    events, now, number = list[Event](), 1000, 1
    for each in range(5):
        begin = now
        for micro in range(2):
            if loads and micro:
                events.append(span("user_annotation", SINGLE, now + 10, loads))
                now += loads + 20
            for thread, name in ((1, "aten::mm"), (2, "autograd::engine::evaluate_function: MmBackward0")):
                for _ in range(12):
                    events.append(operator(name, now, 30, thread, more={"Sequence number": number}))
                    events += [call(now, CALL, number, tid=thread), kernel(now + LAUNCH, 20, number, GEMM)]
                    now, number = now + 35, number + 1
                if collects and thread == 1:
                    events.append(span("user_annotation", "gc.collect", now + 10, collects))
                    now += collects
                now += 25  # from one thread to the other
        events.append(call(now, 40, 90_000 + number, "cudaDeviceSynchronize"))
        now += 50
        events.append(step(each, begin, now - begin))
    return events


def test_what_a_thread_does_before_another_takes_over_can_go(tmp_path: Path) -> None:
    """What lies between the operators of two threads is host time of either: it was nobody's."""
    found = replay(tmp_path / "a", both_threads(collects=700, loads=900))
    measured = found.trust.measured_ns
    assert measured - predicted(found, "host:garbage-collection=0ms") == 2 * 700_000
    assert measured - predicted(found, "loader=0ms") == 900_000
