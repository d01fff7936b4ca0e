"""Launches without a kernel: lost by the profiler, or still queued when the recording ended."""

from __future__ import annotations

from collections.abc import Sequence

from lostflops.recipes.lost_kernels import launching
from lostflops.tables import KERNELS, LAUNCHES
from lostflops.testing import example_table

COMPUTE, REDUCE = 7, 20


def missed(
    calls: Sequence[tuple[int, int, bool]], wait: tuple[str, int] = ("cudaDeviceSynchronize", 0)
) -> list[int]:
    """When calls were made whose kernel is missed; a call is its start, its stream and whether that ran.
    `wait` is a call that waits for the device, and its start."""
    launches = [
        {"rank": 0, "start": at, "end": at + 2, "thread": 1, "name": "cudaLaunchKernel", "correlation": at}
        for at, _, _ in calls
    ]
    launches.append({"rank": 0, "start": wait[1], "end": wait[1] + 9, "thread": 1, "name": wait[0]})
    kernels = [
        {"rank": 0, "start": at + 50, "end": at + 55, "stream": stream, "correlation": at, "name": "k"}
        for at, stream, ran in calls
        if ran
    ]
    rows = launching(example_table(LAUNCHES, launches), example_table(KERNELS, kernels))
    return rows.filter(~rows["ran"])["start"].sort().to_list()


def test_a_kernel_that_waits_for_another_rank_holds_up_its_stream_until_the_recording_ends() -> None:
    """Each step of 60 launches two collectives. The last one's wait behind the first of them, which a late
    rank holds up, and the stream that computes goes on."""
    reduces = (30, 40)
    calls = [
        (at, REDUCE if at % 60 in reduces else COMPUTE, at not in (150, 160)) for at in range(0, 180, 10)
    ]
    assert missed(calls) == []
    assert missed([(at, stream, ran or at == 160) for at, stream, ran in calls]) == [150], "it ran later ones"


def test_a_stream_that_was_used_for_a_while_keeps_nothing_queued() -> None:
    calls = [(at, 13 if at in (0, 10) else COMPUTE, at != 70) for at in range(0, 130, 10)]
    assert missed(calls) == [70]


def test_what_a_call_waited_for_is_no_longer_queued() -> None:
    """A profiler whose buffer is full loses the last kernels: which passed for queued, and for idle time."""
    calls = [(at, COMPUTE, at < 70) for at in range(0, 130, 10)]
    assert missed(calls) == []
    assert missed(calls, ("cudaDeviceSynchronize", 95)) == [70, 80, 90]
    assert missed(calls, ("cudaStreamSynchronize", 95)) == [70, 80, 90]
    others = [(at, REDUCE if at == 30 else stream, ran) for at, stream, ran in calls]
    assert missed(others, ("hipStreamSynchronize", 95)) == []  # of which stream nobody knows
    assert missed(others, ("hipDeviceSynchronize", 95)) == [70, 80, 90]


def test_where_no_call_has_its_kernel_nothing_is_missed() -> None:
    """The numbers of calls and kernels are of two kinds then."""
    calls = [{"rank": 0, "start": at, "end": at + 2, "name": "cudaLaunchKernel", "correlation": at}
             for at in (10, 20)]  # fmt: skip
    kernels = [{"rank": 0, "start": 60, "end": 65, "stream": COMPUTE, "correlation": 9, "name": "k"}]
    assert launching(example_table(LAUNCHES, calls), example_table(KERNELS, kernels)).is_empty()
