"""Launches without a kernel: lost by the profiler, or still queued when the recording ended."""

from __future__ import annotations

from collections.abc import Sequence

from lostflops.recipes.lost_kernels import launching
from lostflops.tables import KERNELS, LAUNCHES
from lostflops.testing import example_table

COMPUTE, REDUCE = 7, 20


def missed(calls: Sequence[tuple[int, int, bool]]) -> list[int]:
    """When calls were made whose kernel is missed; a call is its start, its stream and whether that ran."""
    launches = [
        {"rank": 0, "start": at, "end": at + 2, "thread": 1, "name": "cudaLaunchKernel", "correlation": at}
        for at, _, _ in calls
    ]
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


def test_where_no_call_has_its_kernel_nothing_is_missed() -> None:
    """The numbers of calls and kernels are of two kinds then."""
    calls = [{"rank": 0, "start": at, "end": at + 2, "name": "cudaLaunchKernel", "correlation": at}
             for at in (10, 20)]  # fmt: skip
    kernels = [{"rank": 0, "start": 60, "end": 65, "stream": COMPUTE, "correlation": 9, "name": "k"}]
    assert launching(example_table(LAUNCHES, calls), example_table(KERNELS, kernels)).is_empty()
