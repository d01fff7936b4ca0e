"""No copy races with what computes, in any schedule; and each race that is put in is found."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import polars as pl
import pytest
import torch

import tiny_models
from lostflops.optimize import offload, saved_tensors
from lostflops.optimize.device.devices import ThreadedDevice
from lostflops.recipes import accounting
from simulated_devices import (
    ClockDevice,
    LazyDevice,
    OnStream,
    RaceDevice,
    Sanitizer,
    VectorClocks,
    bytes_over,
)
from test_gradients import CASES, differences, trained
from tiny_models import loss_of

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


# The engine on a device that looks for races.

ROLES = {
    "the copy out for compute": ("out", "compute", "copy out"),
    "compute for the copy out, before the source is used again": ("compute", "out", "use by the next owner"),
    "the reload for compute, which still uses the block": ("in", "compute", "copy in"),
    "the reload for the copy out": ("in", "out", "copy in"),
    "compute for the reload, before the backward": ("compute", "in", "copy in"),
    "the copy out for the reload from the same host memory": ("out", "in", "copy out"),
}


class Forgetful(RaceDevice):
    """Leaves out one kind of wait: `without` is who waits, for whom. The engine's first stream copies out."""

    def __init__(self, without: tuple[str, str] | None, done: str | int = "never") -> None:
        self._without = without
        self._roles: dict[Any, str] = {}
        super().__init__(done)
        self.streams = [self.compute, self.new_stream(), self.new_stream()]
        self._roles = dict.fromkeys(self.streams, "compute") | {self._host_stream: "host"}

    def new_stream(self) -> Any:
        stream = super().new_stream()
        if self._roles:
            self._roles[stream] = ("out", "in")[len(self._roles) - 4]
        return stream

    def wait(self, stream: Any, event: Any) -> None:
        if (self._roles.get(stream), self._roles.get(event.stream)) != self._without:
            super().wait(stream, event)

    def plain_wait(self, stream: Any, event: Any) -> None:
        """The program's own."""
        super().wait(stream, event)


def small(build: Any) -> Any:
    return build(layers=2, hidden=16)


def on_three_streams(device: Any) -> Any:
    """Each block on another compute stream than the one before, and on another in the next step."""

    def step(model: Any, number: int) -> None:
        x = tiny_models.transformer_batch(hidden=16, seed=number)
        all_wait(device)
        for place, block in enumerate(model.blocks):
            x = block(OnStream.apply(x, device, device.streams[(place + number) % 3]))
        model.head(OnStream.apply(x, device, device.compute)).square().mean().backward()
        device.switch(device.compute)
        for stream in device.streams[1:]:
            device.wait(device.compute, device.record(stream))

    return step


def all_wait(device: Any) -> None:
    for stream in device.streams[1:]:
        device.wait(stream, device.record(device.compute))


def raced(device: Any, model: Any, step: Any, steps: int = 3, **options: Any) -> Any:
    with device, offload(model, **({"plan": "everything"} | options), threshold=64, device=device) as engine:
        trained(model, step, steps, lambda: all_wait(device) if isinstance(device, Forgetful) else None)
    assert device.disagreements == []
    return engine.report()


@pytest.mark.parametrize(
    ("case", "done"),
    [
        *[(case, "never") for case in ("full fine-tune", "checkpointed", "modules called twice", "views")],
        *[(case, 3) for case in ("LoRA", "three backwards of one graph", "two losses", "double backward")],
        *[(case, "always") for case in ("scaled fp16", "dynamic shapes", "accumulation")],
    ],
)
def test_no_schedule_has_a_race(case: str, done: str | int) -> None:
    build, step = CASES[case]
    device = RaceDevice(done)
    report = raced(device, build(), step)
    assert device.races == []
    assert report.into.bytes > 0
    assert device.reused > 0


@pytest.mark.parametrize("share", [0.1, 0.5, 1.1])
def test_no_budget_makes_a_race(share: float) -> None:
    """The budget is what the model has and its gradients need, and a share of what it saves."""
    model = small(tiny_models.transformer)
    profile = saved_tensors(model, tiny_models.transformer_batch(hidden=16))
    saves = sum(row["bytes"] for row in profile["rows"] if row["kept_reason"] is None)
    device = RaceDevice(7)
    budget = int(2 * profile["static_bytes"] + share * saves)
    report = raced(device, model, plain_step, plan=None, budget=budget)
    assert device.races == []
    assert (report.out.bytes > 0) == (share < 1)


def test_plain_training_on_three_streams_has_no_race_of_its_own() -> None:
    device = Forgetful(None)
    with device:
        trained(small(tiny_models.transformer), on_three_streams(device), 3, lambda: all_wait(device))
    assert device.races == device.disagreements == []


@pytest.mark.parametrize("done", ["never", "always", 3])
def test_saving_and_asking_on_three_compute_streams_has_no_race(done: str | int) -> None:
    device = Forgetful(None, done)
    report = raced(device, small(tiny_models.transformer), on_three_streams(device))
    assert device.races == []
    assert report.into.bytes > 0


@pytest.mark.parametrize("wait", [wait for wait in ROLES if ROLES[wait][:2] != ("out", "in")])
def test_each_wait_that_the_engine_forgets_is_found(wait: str) -> None:
    who, whom, what = ROLES[wait]
    device = Forgetful((who, whom))
    # The check of the first microbatch reads what is copied, too: those races would have other names.
    raced(device, small(tiny_models.transformer), on_three_streams(device), verify=None)
    assert device.races
    assert all(what in race for race in device.races)


def noise_from_a_side_stream(device: Any, model: Any, steps: int) -> None:
    """Each layer's output is multiplied by what another stream made meanwhile.

    The program's own order is right, as what autograd saves lives until the backward: the side stream waits
    for the compute stream, as of then, whenever it has taken memory back."""
    side, base = device.streams[1], torch.ones(16, 16)
    for _ in range(steps):
        x = tiny_models.mlp_batch(rows=16, hidden=16)
        for layer in model:
            device.wait(side, device.record(device.compute))
            x = layer(x).sin()
            device._current = side
            noise = base.exp()
            device._current = device.compute
            device.wait(device.compute, device.record(side))
            x = x * noise
        x.square().mean().backward()
        model.zero_grad()


class Reusing(Forgetful):
    """A block that was freed is written when it is given out again, not at once."""

    def _freed(self, address: int) -> None:
        number, owner, size = self._blocks.pop(address)
        self._free[owner.number, size].append(number)


class NotGuarded(Reusing):
    def before_reuse(self, memory: torch.Tensor, stream: Any) -> None: ...


@pytest.mark.parametrize("done", ["never", "always", 3])
@pytest.mark.parametrize("kind", [Reusing, NotGuarded])
def test_memory_of_another_stream_is_not_used_again_while_it_is_copied(kind: Any, done: str | int) -> None:
    device = kind(None, done)
    model = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(6))
    with device, offload(model, plan="everything", threshold=64, device=device, verify=None) as engine:
        noise_from_a_side_stream(device, model, 3)
    assert engine.report().out.bytes > 0
    assert device.disagreements == []
    if kind is NotGuarded and done == "never":  # the others leave less to race with
        assert any("exp" in race and ("copy out" in race or "mul" in race) for race in device.races)
    else:
        assert device.races == []


def test_the_program_with_a_side_stream_has_no_race_of_its_own() -> None:
    device = Reusing(None)
    with device:
        noise_from_a_side_stream(device, torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(6)), 3)
    assert device.races == [] and device.reused > 0


def two_independent_steps(device: Any, model: Any, steps: int) -> None:
    """Two halves of a model, each with its own compute stream: nothing orders the one after the other."""
    for number in range(steps):
        for half, stream in zip(model, device.streams[1:], strict=True):
            device._current = stream
            loss_of(half, tiny_models.mlp_batch(seed=number)).backward()
            for parameter in half.parameters():
                parameter.grad = None
    device._current = device.compute


@pytest.mark.parametrize("forget", [False, True])
def test_host_memory_is_not_written_while_the_step_before_still_reads_it(forget: bool) -> None:
    """The slab is as large as one microbatch, so the second half is copied to where the first one's was."""
    device = Forgetful(("out", "in") if forget else None)
    model = torch.nn.ModuleList([tiny_models.mlp(layers=2, seed=n) for n in range(2)])
    for half, stream in zip(model, device.streams[1:], strict=True):
        for parameter in half.parameters():
            device._current = stream
            device._memory(parameter)
    with device, offload(model, plan="everything", threshold=64, device=device):
        two_independent_steps(device, model, 4)
    assert device.disagreements == []
    if forget:
        assert device.races
        assert all("copy out" in race for race in device.races)
    else:
        assert device.races == []


class Reversed(RaceDevice):
    """Answers `current_stream` as an engine would see it that asks inside its own stream context."""

    def __init__(self) -> None:
        super().__init__()
        self._made = []

    def new_stream(self) -> Any:
        stream = super().new_stream()
        if hasattr(self, "_made"):
            self._made.append(stream)
        return stream

    def current_stream(self) -> Any:
        return self._made[0] if self._made else self._current


def test_a_current_stream_read_inside_the_copy_streams_context_is_found() -> None:
    device = Reversed()
    raced(device, small(tiny_models.transformer), plain_step)
    assert any("copy out" in race for race in device.races)


def plain_step(model: Any, number: int) -> None:
    loss_of(model, tiny_models.transformer_batch(hidden=16, seed=number)).backward()


# Hidden.


def hidden_in_the_ledger(device: ClockDevice, begin: int, end: int) -> float:
    """By the interval algebra of the step ledger: copies that run while nothing computes are not hidden."""

    def rows(found: list[Any], **more: Any) -> pl.LazyFrame:
        clipped = [(max(row.start, begin), min(row.end, end)) for row in found]
        return pl.LazyFrame([{"rank": 0, "start": s, "end": e} | more for s, e in clipped if s < e])

    kernels = rows(device.kernels, family="matmul")
    copies = rows([*device.copies["out"], *device.copies["in"]], communication=False)
    steps = pl.LazyFrame([{"rank": 0, "step": 0, "start": begin, "end": end}])
    length = pl.col("end") - pl.col("start")
    runs = accounting.busy_and_gaps(steps, kernels, copies, None)
    exposed = runs.filter(pl.col("account") == "copy").select(length.sum()).collect().item()
    return 1 - exposed / copies.select(length.sum()).collect().item()


def clocked(device: ClockDevice, plan: str | None, case: str) -> tuple[Any, float, float]:
    """Gradients; the hidden share by the engine's report and by the ledger, of the last two steps."""
    build, step = CASES[case]
    model = build()
    with device, offload(model, plan=plan, threshold=64, device=device) as engine:
        found = trained(model, step, 2)
        before, begin = engine.report(), device.now
        trained(model, step, 2)
        end = device.kernels[-1].end
        after = engine.report()
    stalled, copied = (
        sum(getattr(way, name) for way in (after.out, after.into))
        - sum(getattr(way, name) for way in (before.out, before.into))
        for name in ("stalled_ns", "copy_ns")
    )
    assert copied > 0
    return found, 1 - stalled / copied, hidden_in_the_ledger(device, begin, end)


@pytest.mark.parametrize(
    ("link", "plan"),
    [((0.05, 0.05), "everything"), ((0.1, 0.3), None), ((0.2, 0.2), "everything"), ((1.0, 1.0), None)],
)
def test_the_hidden_share_is_the_ledgers_within_two_points(
    link: tuple[float, float], plan: str | None
) -> None:
    """Where the host keeps ahead. Where it does not, the device idles beside copies that nobody waits for:
    the ledger cannot know that and counts them as exposed, the engine as hidden."""
    device = ClockDevice(bytes_over(1.0), *link, launch_ns=10)
    _, engine, in_ledger = clocked(device, plan, "full fine-tune")
    assert 0 <= engine <= 1
    assert abs(engine - in_ledger) <= 0.02


class Synchronous(ClockDevice):
    """What was once a fix: everybody waits for every copy."""

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Any) -> None:
        super().copy(target, source, stream)
        self.wait(self._current, self.record(stream))


def test_copies_are_hidden_and_gradients_right_at_the_same_time() -> None:
    """A wait for everything makes wrong gradients right again, and hides nothing."""
    expected = trained(*(part() if n == 0 else part for n, part in enumerate(CASES["full fine-tune"])), 2)
    found, engine, in_ledger = clocked(ClockDevice(bytes_over(1.0), 4, 4), "everything", "full fine-tune")
    assert differences(expected, found) == []
    assert min(engine, in_ledger) > 0.95
    found, _, in_ledger = clocked(Synchronous(bytes_over(1.0), 4, 4), "everything", "full fine-tune")
    assert differences(expected, found) == []
    assert in_ledger < 0.05


def gives_up_memory(weight: torch.nn.Parameter) -> None:
    """A step that gives up what it has just saved, as Megatron does with the output of a function that it
    computes again before the backward. Others write there meanwhile."""
    y: torch.Tensor = weight
    for _ in range(9):
        h = y * 2
        y = h.sin()
        kept, storage = h.detach().clone(), h.untyped_storage()
        nbytes, again = storage.nbytes(), h.detach()
        storage.resize_(0)
        storage.resize_(nbytes)
        again.data.fill_(9)
        y.register_hook(lambda _, again=again, kept=kept: again.data.copy_(kept))
    y.sum().backward()


def test_memory_that_is_given_up_in_the_middle_of_a_copy_was_copied_before() -> None:
    def gradient(around: Any) -> Any:
        weight = torch.nn.Parameter(torch.linspace(-1, 1, 64))
        for _ in range(3):
            weight.grad = None
            with around:
                gives_up_memory(weight)
        return None if weight.grad is None else weight.grad.tolist()

    for device in (LazyDevice(), ThreadedDevice()):
        engine = offload(torch.nn.Linear(1, 1), plan="everything", threshold=1, device=device, verify=None)
        assert gradient(engine) == gradient(nullcontext())
        assert engine.report().out.bytes
    assert "resize_" not in vars(torch.UntypedStorage)
