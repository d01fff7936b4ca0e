"""What `lostflops tune` changes of checkpoints, logs and buckets inside a process, and the reasons for it."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from lostflops.capture.record.injected.lostflops_recorder.windows.window import bf16_units
from lostflops.experiment.tune import changes, reasons
from lostflops.experiment.tune.changes import JobFacts
from lostflops.experiment.tune.injected.lostflops_tuner import activations, gradients, logs
from lostflops.finding import Finding, PredictedGain
from lostflops.recipes.needless.products import SLOW_PRODUCTS
from lostflops.session import Skipped

MIB = 1 << 20


class Patched:
    """`logging` as the change makes it, ended as Python ends."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.at_exit: list[Any] = []
        self.in_child: list[Any] = []
        self.noted: list[str] = []
        for owner, name in (
            (logging.Handler, "handle"), (logging, "shutdown"), (logging.Logger, "removeHandler"),
        ):  # fmt: skip
            patch.setattr(owner, name, getattr(owner, name))
        patch.setattr(atexit, "register", self.at_exit.append)
        patch.setattr(os, "register_at_fork", lambda after_in_child: self.in_child.append(after_in_child))
        logs.written_aside(None, self.noted.append)


class Slow(logging.Handler):
    def __init__(self, ms: float = 0.0) -> None:
        super().__init__()
        self.ms, self.written = ms, list[tuple[str, bool]]()
        self.formatter = logging.Formatter("%(name)s %(message)s")

    def emit(self, record: logging.LogRecord) -> None:
        time.sleep(self.ms / 1000)
        try:
            line = self.format(record)
        except TypeError:
            line = "no line"
        self.written.append((line, threading.current_thread() is threading.main_thread()))


@pytest.fixture
def log() -> logging.Logger:
    made = logging.Logger("job")
    made.propagate = False
    return made


def test_log_lines_are_written_aside_in_order_and_all_of_them(
    log: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    patched, slow = Patched(monkeypatch), Slow(ms=2)
    log.addHandler(slow)
    counted = [0]
    began = time.perf_counter()
    for number in range(20):
        counted[0] = number
        log.info("step %s", counted)
    assert time.perf_counter() - began < 0.03 and len(slow.written) < 20
    log.info("%d is no number", "x")  # the handler itself reports it, at once
    (end,) = patched.at_exit
    end()
    # What was logged, though the list has changed meanwhile.
    lines = [(f"job step [{number}]", False) for number in range(20)]
    assert sorted(slow.written) == sorted([*lines, ("no line", True)])
    assert [line for line in slow.written if not line[1]] == lines
    assert patched.noted == ["Slow writes in a thread of its own"]
    log.info("after the end")
    assert slow.written[-1] == ("job after the end", True)


def test_a_job_waits_for_a_writer_that_is_slower_than_it(
    log: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else lines would pile up, and the time that they take would show in no proof."""
    Patched(monkeypatch)
    slow = Slow(ms=1)
    log.addHandler(slow)
    for _ in range(logs.WAITING + 40):
        log.info("x")
    assert len(slow.written) >= 39
    log.removeHandler(slow)  # whoever takes a handler away finds all written
    assert len(slow.written) == logs.WAITING + 40


def test_a_forked_child_writes_at_once(log: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    patched, slow = Patched(monkeypatch), Slow()
    log.addHandler(slow)
    (in_child,) = patched.in_child
    in_child()
    log.info("x")
    assert slow.written == [("job x", True)]
    patched.at_exit[0]()  # and waits for no thread that it does not have


def test_buckets_are_an_eighth_of_gradients_that_travel_in_a_few() -> None:
    pieces = changes.CHANGES["overlap-communication"].options
    assert pieces(JobFacts(sent=64 * MIB, largest=64 * MIB), {}) == {"mb": 8}
    assert pieces(JobFacts(sent=2 * MIB, largest=2 * MIB), {}) == {"mb": 1}
    assert pieces(JobFacts(sent=64 * MIB, largest=8 * MIB), {}) is None
    assert pieces(JobFacts(), {}) is None and pieces(JobFacts(sent=64, largest=64), {"mb": 1}) is None


def test_larger_buckets_are_made_smaller_and_smaller_ones_stay() -> None:
    class Parallel:
        def __init__(self, model: str, bucket_cap_mb: float | None = None) -> None:
            self.has = bucket_cap_mb

    noted: list[str] = []
    gradients.in_pieces(SimpleNamespace(DistributedDataParallel=Parallel), noted.append, mb=8)
    assert [Parallel("m", bucket_cap_mb=has).has for has in (None, 1000, 4)] == [8, 8, 4]
    assert Parallel("m").has == 8 and set(noted) == {"bucket_cap_mb=8"}


def test_activations_are_kept_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils import checkpoint as module

    noted: list[str] = []
    ran: list[bool] = []

    def block(x: Any, scale: float = 1.0) -> Any:
        ran.append(True)
        return torch.nn.functional.dropout(x.sin() * scale, 0.5)

    def step(checkpoint: Any, **given: Any) -> Any:
        torch.manual_seed(0)
        x = torch.ones(64, requires_grad=True)
        for _ in range(3):
            checkpoint(block, x, **given).sum().backward()
        return x.grad

    for given in ({"use_reentrant": False, "scale": 0.5}, {"use_reentrant": True}):
        again = step(module.checkpoint, **given)
        made = SimpleNamespace(checkpoint=module.checkpoint)
        activations.kept(made, noted.append)
        ran.clear()
        assert torch.equal(step(made.checkpoint, **given), again) and len(ran) == 3
    # A reentrant checkpoint of what needs no gradients trains nothing, and goes on so.
    with pytest.warns(UserWarning, match="None of the inputs"):
        assert not made.checkpoint(block, torch.ones(2), use_reentrant=True).requires_grad
    monkeypatch.setattr(activations, "_free", lambda: 0.09)
    with pytest.raises(RuntimeError, match="less than a tenth of the memory free"):
        step(made.checkpoint, use_reentrant=False)
    assert set(noted) == {"checkpoint(function, ...) -> function(...)"}


def test_activations_are_kept_only_where_that_is_the_same_to_the_bit() -> None:
    """A reentrant checkpoint adds up gradients by itself: of an input with other uses, of a shared weight."""
    torch = pytest.importorskip("torch")
    from torch.utils import checkpoint as module

    def bf16() -> Any:
        return torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", torch.bfloat16)

    def gradients(checkpoint: Any, layer: Any, **given: Any) -> Any:
        torch.manual_seed(0)
        first = torch.nn.Linear(48, 48)
        for _ in range(2):
            x = y = torch.randn(9, 48, requires_grad=True)
            for _ in range(3):
                y = y + checkpoint(lambda h: layer(h).sin() * h + h.cos(), first(y), **given) + x * y
            y.square().mean().backward()
        return [each.grad.tolist() for each in (x, *first.parameters(), *layer.parameters())]

    noted: list[str] = []
    made = SimpleNamespace(checkpoint=module.checkpoint)
    activations.kept(made, noted.append)
    for given, kept in (
        ({"use_reentrant": True}, True),
        ({"use_reentrant": False}, True),
        ({"use_reentrant": False, "context_fn": bf16}, False),
    ):
        layers = [torch.nn.Linear(48, 48) for _ in range(2)]
        layers[1].load_state_dict(layers[0].state_dict())
        expected = gradients(module.checkpoint, layers[0], **given)
        noted.clear()
        assert gradients(made.checkpoint, layers[1], **given) == expected, given
        assert bool(noted) is kept
        with torch.no_grad():
            made.checkpoint(layers[0], torch.ones(1, 48, requires_grad=True), **given)
    x = torch.ones(4, 2, requires_grad=True)
    for part, options, words in (
        (torch.nn.Dropout(), {"preserve_rng_state": False}, "draws random numbers"),
        (torch.nn.BatchNorm1d(2), {}, "writes to its buffers"),
    ):
        with pytest.raises(RuntimeError, match=words):
            made.checkpoint(part, x, use_reentrant=False, **options)


def test_free_memory_is_a_share() -> None:
    pytest.importorskip("torch")
    assert 0 < activations._free() <= 1  # pyright: ignore[reportPrivateUsage]


class Answers:
    """A session with the answer of one recipe, and what a replay says of one edit."""

    def __init__(self, again: list[int] | None) -> None:
        self.again = again

    def run(self, name: str) -> Any:
        if self.again is None:
            return Skipped(name, "no")
        return SimpleNamespace(table=pl.DataFrame({"again": self.again}, {"again": pl.Int64}))

    def predicted(self, edits: list[str]) -> Any:
        return dict.fromkeys(edits, PredictedGain(ns=35))


def reasons_of(*findings: Finding, again: list[int] | None = None, on_host: bool = True) -> list[Finding]:
    found: Any = SimpleNamespace(
        budget=SimpleNamespace(mean=200.0), findings=findings, run=SimpleNamespace(on_host=on_host),
        counted=pl.DataFrame({"rank": [0, 0], "step": [3, 4]}, {"rank": pl.Int32, "step": pl.Int64}),
    )  # fmt: skip
    trace: Any = None
    session: Any = Answers(again)
    return [*reasons.reasons(found, trace, session)]


def test_what_the_page_says_of_compute_is_a_reason_with_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    again = Finding("activations-computed-again", "Again.", "at most", (), "", ns_per_step=40)
    fp32 = Finding("fp32-on-cpu", "In fp32.", "unknown", (), "", remedies=("bf16-on-cpu",))
    spent = pl.DataFrame(
        [("fp32", "aten::mm", 150, 1), ("fp32", "aten::addmm", 51, 1), ("fp64", "aten::mm", 9, 1)],
        SLOW_PRODUCTS,
        orient="row",
    )
    monkeypatch.setattr(reasons, "slow_products", lambda trace, counted: spent)
    other = Finding("x", "X.", "at most", (), "", ns_per_step=90)
    first, second = reasons_of(other, fp32, again)
    assert first == again
    assert second == replace(fp32, gain="at most", ns_per_step=100)
    assert not reasons_of(other) and not reasons_of(again=[50])


def test_on_a_device_computing_again_is_a_reason_however_full_its_memory_is() -> None:
    (one,) = reasons_of(again=[30, 51], on_host=False)
    assert (one.ns_per_step, one.remedies) == (40, ("selective-checkpointing",))
    assert one.claim.endswith("for 40 ns per step (20.0 %) of GPU time.")
    assert one.predicted == PredictedGain(ns=35)
    assert not reasons_of(again=[0], on_host=False) and not reasons_of(again=[], on_host=False)
    assert not reasons_of(on_host=False)


def test_a_processor_that_multiplies_bf16_says_so(tmp_path: Path) -> None:
    told = tmp_path / "cpuinfo"
    for line, units in (
        ("flags\t\t: fpu avx512f avx512_bf16 clzero", ["avx512_bf16"]), ("flags\t: fpu avx512f", []),
        ("Features\t: fp asimd bf16", ["bf16"]), ("model name : bf16", []),
        ("flags\t: avx512_bf16 amx_bf16", ["amx_bf16", "avx512_bf16"]),
    ):  # fmt: skip
        told.write_text(f"processor\t: 0\n{line}\n")
        assert bf16_units(str(told)) == units
    assert bf16_units(str(tmp_path / "none")) == []
