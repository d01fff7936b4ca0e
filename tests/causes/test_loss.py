"""The loss over a large vocabulary: what it takes, and that no more than that can be saved."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import lostflops
from eager_jobs import SMALL, Eager, EagerStep, recorded, step_of
from lostflops.finding import Finding
from lostflops.recipes.operators.traffic import extents

SOFTMAX = (
    "void at::native::cunn_SoftMaxForward<4, float, float, float, at::native::LogSoftMaxForwardEpilogue>()"
)
ROWS = 4096
JOB = Eager(reads=True)


def shaped(words: int, of: str = "float", rows: int = ROWS) -> dict[str, Any]:
    return {"Input Dims": [[rows, words]], "Input type": [of]}


def lost(step: EagerStep, words: int, us: float = 600, shapes: bool = True) -> None:
    """The logits become fp32, and then a loss."""
    of = shaped(words) if shapes else {}
    cast = shaped(words, "c10::BFloat16") if shapes else {}
    step.operator("aten::_to_copy", (SMALL.format("direct_copy"), us), within=("aten::to",), **cast)
    with step.p.row("cpu_op", "aten::cross_entropy_loss", **of):
        step.operator("aten::_log_softmax", (SOFTMAX, us), within=("aten::log_softmax",), **of)
        step.operator(
            "aten::nll_loss_forward", (SMALL.format("nll"), 10), within=("aten::nll_loss_nd",), **of
        )


def gone_back(step: EagerStep, words: int, us: float = 600, shapes: bool = True) -> None:
    of = shaped(words) if shapes else {}
    with step.node("NllLossBackward0"):
        step.operator("aten::nll_loss_backward", (SMALL.format("Fill"), us), **of)
    with step.node("LogSoftmaxBackward0"):
        step.operator("aten::_log_softmax_backward_data", (SMALL.format("SoftMaxBackward"), us), **of)
    with step.node("ToCopyBackward0"):
        step.operator("aten::_to_copy", (SMALL.format("direct_copy"), us), within=("aten::to",), **of)


def with_loss(words: int, **of: Any) -> Eager:
    return replace(
        JOB, loss=partial(lost, words=words, **of), loss_back=partial(gone_back, words=words, **of)
    )


def why(folder: Path, job: Eager) -> dict[str, Finding]:
    return {f.name: f for f in lostflops.why(recorded(folder, job)).findings}


def test_a_loss_over_many_words_is_told_with_its_casts(tmp_path: Path) -> None:
    """Five passes over the logits of 600 µs and a kernel of 10: without them the step is as much shorter."""
    one = why(tmp_path / "with", with_loss(128_000))["loss-over-vocabulary"]
    assert one.claim.startswith("The loss over 128,000 words takes 3.01 ms per step (")
    assert one.claim.endswith(" of GPU time, in fp32.")
    assert one.evidence == (
        "log-softmax and cross-entropy, forward and backward: 1.81 ms per step",
        "casts and other work that goes through all logits: 1.20 ms per step",
    )
    assert "Liger" in one.next and one.remedies == ("fused-loss",)
    saved = step_of(tmp_path / "with") - step_of(recorded(tmp_path / "without", JOB))
    assert saved <= one.ns_per_step < 1.1 * saved


@pytest.mark.parametrize(
    "job",
    [
        JOB,
        with_loss(128_000, us=50),  # 1 % of the step
        with_loss(1_000),  # classes of images
        with_loss(128_000, shapes=False),  # how many words is not known
    ],
)
def test_other_losses_are_no_finding(tmp_path: Path, job: Eager) -> None:
    assert "loss-over-vocabulary" not in why(tmp_path, job)


def test_a_softmax_without_a_loss_is_none(tmp_path: Path) -> None:
    """Probabilities of tokens that were sampled."""

    def sampled(step: EagerStep) -> None:
        step.operator("aten::_log_softmax", (SOFTMAX, 3_000), **shaped(128_000))

    assert "loss-over-vocabulary" not in why(tmp_path, replace(JOB, loss=sampled))


@pytest.mark.parametrize(
    "told",
    [
        {"Input Dims": {"a": 1}, "Input type": ["float"]},
        {"Input Dims": [[2**70, 2**70]], "Input type": ["float"]},
        {"Input Dims": [[4096, 1e30]], "Input type": ["float"]},
        {"Input Dims": [["a", None]], "Input type": 7},
        {"Input Dims": [[4096, 128_000]], "Input type": {"a": 1}},
    ],
)
def test_shapes_and_types_that_are_none_tell_of_no_loss(
    told: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "shaped", lambda *of: told)
    assert "loss-over-vocabulary" not in why(tmp_path, with_loss(128_000))


def test_a_loss_of_an_unknown_type_is_told_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"Input Dims": [[4096, 128_000]], "Input type": [[1]]}
    monkeypatch.setitem(globals(), "shaped", lambda *of: told)
    claim = why(tmp_path, with_loss(128_000))["loss-over-vocabulary"].claim
    assert claim.startswith("The loss over 128,000 words takes") and "fp32" not in claim


def test_a_step_that_is_mostly_products_is_not_called_bound_by_its_loss(tmp_path: Path) -> None:
    """The loss takes 3 of 19 ms, matrix products take 14."""
    verdict = lostflops.why(recorded(tmp_path, with_loss(128_000))).verdict
    assert verdict == "A costly loss: 15.9 % of the 18.9 ms step is the loss over the vocabulary."


def test_extents_are_those_of_tensors() -> None:
    assert extents('[[2, 3], [], 5, {}, [-1], [true], [1e9], [99999999999, 99999999999]]') == [
        (2, 3), (), (), (), (), (), (), (),
    ]  # fmt: skip
    assert extents(None) == extents("7") == extents("[") == []
    assert set(extents("[" * 3000 + "]" * 3000)) <= {()}  # how deep is too deep differs from Python to Python
