"""Which operators of a backward pass are a checkpoint's, and which gradients of gradients."""

from __future__ import annotations

from pathlib import Path

import pytest

from kineto_files import Event, operator, step, trace, written
from lostflops.ingest import job


def numbered(name: str, ts: float, dur: float, number: int) -> Event:
    return operator(name, ts, dur, more={"Sequence number": number})


def node(ts: float, number: int | None = None) -> list[Event]:
    """A node of the backward pass, of 20 µs; with a number it runs an operator that autograd numbers."""
    inner = [numbered("aten::mm", ts + 5, 10, number)] if number is not None else []
    gradient = operator("MmBackward0", ts, 20, more={"Fwd thread id": 1})
    return [operator("autograd::engine::evaluate_function: MmBackward0", ts, 20), gradient, *inner]


@pytest.mark.parametrize(("goes_on", "again"), [(False, 2), (True, 0)])
def test_a_penalty_on_gradients_computes_nothing_again(
    goes_on: bool, again: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a network of sines and products, the derivative that its loss needs was told to be a checkpoint's.

    Two of eight nodes number an operator. Where the forward pass goes on behind them, they are a pass of
    their own, and its every node does.
    """
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "store"))
    events = [step(0, 0, 400), numbered("aten::mm", 10, 40, 1), *node(60, 2), *node(90, 3)]
    events += [numbered("aten::pow", 120, 10, 4)] if goes_on else []
    events += [event for ts in range(140, 320, 30) for event in node(ts)]
    operators = job.open(written(tmp_path / "a.json", trace(events))).table("operators")
    assert operators is not None
    assert operators.collect()["phase"].cast(str).to_list().count("recompute") == again
