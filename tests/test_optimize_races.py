"""No copy races with what computes, in any schedule; and each race that is put in is found."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from simulated_devices import RaceDevice, Sanitizer, VectorClocks

torch.set_num_threads(1)

# One storage out and in again by hand, and what goes wrong without each wait.
WAITS = {
    "before the copy out": "copy out",
    "before the source is used again": "use by the next owner",
    "before the reload into a busy block": "copy in",
    "before the backward": "backward",
    "before the host memory is used again": "second copy out",
    "before the reload from the host": "copy in",
}


def by_hand(device: RaceDevice, without: str | None) -> None:
    def wait(name: str, stream: Any, event: Any) -> None:
        if name != without:
            device.wait(stream, event)

    def work(what: str, stream: Any, read: tuple[Any, ...] = (), written: tuple[Any, ...] = ()) -> None:
        memory = [{m for t in tensors for m in device._memory(t)} for tensors in (read, written)]
        device._launch(stream, memory[0], memory[1], what)

    compute, out, into = device.compute, device.new_stream(), device.new_stream()
    host = device.host_memory(512)
    source = device.allocate(512)
    work("forward", compute, written=(source,))
    wait("before the copy out", out, device.record(compute))
    work("copy out", out, (source,), (host,))
    done_out = device.record(out)
    wait("before the source is used again", compute, done_out)
    del source
    destination = device.allocate(512)
    assert device.reused == 1
    work("zero", compute, written=(destination,))
    del destination  # and its next owner is the reload
    destination = device.allocate(512)
    wait("before the reload into a busy block", into, device.record(compute))
    if without == "before the reload from the host":  # else it is in order by way of the compute stream
        device._detectors[0]._knows[into.number].pop(out.number, None)
        device._detectors[1]._handler.syncs.current_sync_states[into.number].pop(out.number, None)
    wait("before the reload from the host", into, done_out)
    work("copy in", into, (host,), (destination,))
    done_in = device.record(into)
    wait("before the backward", compute, done_in)
    work("backward", compute, (destination,))
    wait("before the host memory is used again", out, done_in)
    work("second copy out", out, (), (host,))
    device.synchronize(device.record(out))
    device.synchronize(device.record(compute))
    device.synchronize(done_in)


def test_the_protocol_by_hand_has_no_race() -> None:
    device = RaceDevice()
    by_hand(device, without=None)
    assert device.races == device.disagreements == []


@pytest.mark.parametrize("wait", WAITS)
def test_each_wait_that_is_left_out_is_one_race_to_both_detectors(wait: str) -> None:
    device = RaceDevice()
    by_hand(device, without=wait)
    assert device.disagreements == []
    assert len(device.races) == 1 and WAITS[wait] in device.races[0], device.races


def test_a_free_that_is_reported_hides_reuse_that_came_too_early() -> None:
    """Why frees are writes here. The sanitizer is private; this also says when it has changed."""
    from torch.cuda._sanitizer import EventHandler

    def races(poison: bool) -> int:
        handler: Any = EventHandler()
        for stream in (1, 2):
            handler._handle_stream_creation(stream)
        handler._handle_memory_allocation(7)
        found = handler._handle_kernel_launch(2, {7}, set(), set(), "copy out", {7: ["x"]})
        if not poison:
            handler._handle_memory_deallocation(7)
            handler._handle_memory_allocation(7)
        return len(found + handler._handle_kernel_launch(1, set(), {7}, {7}, "next owner", {7: ["y"]}))

    assert (races(poison=True), races(poison=False)) == (1, 0)


@pytest.mark.parametrize("detector", [VectorClocks, Sanitizer])
def test_order_through_a_third_stream_is_order(detector: Any) -> None:
    one = detector()
    for stream in (1, 2, 3):
        one.new_stream(stream)
    assert one.access(1, set(), {9}, "write") == []
    one.record(11, 1)
    one.wait(11, 2)
    one.record(12, 2)
    one.wait(12, 3)
    assert one.access(3, {9}, set(), "read") == []
    assert len(one.access(1, set(), {9}, "write again")) == 1
