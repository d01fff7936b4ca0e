"""The lab's exercises: what they declare holds, and their checks tell a fault from its fix."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import polars as pl
import pytest

from lostflops import cli
from lostflops.cli.commands.learning import lab
from lostflops.errors import BadOption, CannotAnswer, LostflopsError
from lostflops.lab.exercises import running, shown
from lostflops.lab.exercises.exercise import WINDOW, Observed
from lostflops.lab.exercises.listed import exercises
from lostflops.lab.exercises.offered import lora, offloading, precision, scaling, topology, unified
from lostflops.lab.exercises.offered.parallel import accumulation, overlap, pipeline, sharding, tensor


def test_lab_lists_the_exercises(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lab"]) == 0
    said = capsys.readouterr().out
    assert {name: one.title for name, one in exercises().items()} == lab.EXERCISES
    for name, title in lab.EXERCISES.items():
        assert f"{name:13}{title}" in said


@pytest.mark.parametrize("name", lab.EXERCISES)
def test_an_exercise_is_declared_whole(name: str) -> None:
    one = exercises()[name]
    assert one.question.endswith("?") and one.expected and one.see and one.fix
    if one.sides is None:
        assert one.commands and one.check_documents
        return
    assert one.check and one.sides[0].words != one.sides[1].words
    assert one.steps > WINDOW[1] + 3, "steps outside the recorded ones are what step times are taken of"
    # A busy process needs a core of its own: what has more ranks counts calls and bytes only.
    assert one.ranks <= 2 or one.name == "3a-tp-pp"
    words = running.command(one, one.sides[0], "cpu")
    module = words[words.index("-m", 2 if one.ranks > 1 else 0) + 1] if one.ranks == 1 else words[6]
    assert module.startswith("lostflops.lab.exercises.scripts.")


def test_the_small_models_have_the_parameters_that_the_checks_count() -> None:
    torch = pytest.importorskip("torch")
    from lostflops.lab.exercises.scripts.model import MODELS, Transformer, add_lora

    published = {
        "llama-tiny": 803_968, "mistral-tiny": 1_902_720, "llama-1b": 1_235_814_400,
        "mistral-7b": 7_241_732_096, "llama-7b": 6_738_415_616, "llama-13b": 13_015_864_320,
    }  # fmt: skip
    assert {name: shape.parameters for name, shape in MODELS.items()} == published
    for name in ("llama-tiny", "mistral-tiny"):
        with torch.device("meta"):
            model = Transformer(MODELS[name])
        assert sum(p.numel() for p in model.parameters()) == published[name]
    with torch.device("meta"):
        model = Transformer(MODELS["llama-tiny"])
        add_lora(model)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == lora.TRAINED
    assert precision.PARAMETERS == accumulation.PARAMETERS == published["llama-tiny"]
    assert published["mistral-tiny"] == sharding.PARAMETERS
    shape = MODELS["mistral-tiny"]
    assert 2 * shape.vocabulary * shape.hidden + shape.hidden == sharding.ROOT


def side(**known: Any) -> Observed:
    """A stand-in for a side that ran."""
    made = {"finding": lambda *_: None, "first": None, "truth": {}, "step_ms": 0.0, **known}
    return cast(Observed, SimpleNamespace(**made))


def said(name: str, claim: str) -> SimpleNamespace:
    return SimpleNamespace(name=name, claim=claim, evidence=(), predicted=SimpleNamespace(ns=80_000_000))


def waiting(**known: Any) -> Observed:
    return side(**{"account": lambda *_: 80.0, "input_ms": 80.0, "step_ms": 130.0, "page_step_ms": 130.0,
                   "first": said("data-loading-starves-device", "Nothing computes"), **known})  # fmt: skip


def passed(name: str, *sides: Observed) -> list[bool]:
    check = exercises()[name].check
    assert check is not None
    return [one.passed for one in check(*sides)]


def test_1a_holds_the_law_and_fails_where_workers_change_nothing() -> None:
    fixed = waiting(step_ms=52.0, page_step_ms=52.0, account=lambda *_: 0.5, first=None)
    assert passed("1a", waiting(), fixed) == [True] * 5
    same = waiting()
    assert passed("1a", waiting(), same) == [True, True, False, False, False]
    assert passed("1a", waiting(first=said("other", "…"), account=lambda *_: 60.0), fixed)[:2] == [
        False,
        False,
    ]


def test_1c_counts_all_reduces_exactly() -> None:
    p = accumulation.PARAMETERS
    faulty = side(collectives=lambda _: (12.0, 4.0 * p, 0.0), finding=lambda *_: said("x", "DDP averages"))
    fixed = side(collectives=lambda _: (3.0, 1.0 * p, 0.0))
    assert passed("1c", faulty, fixed) == [True] * 5
    assert passed("1c", fixed, faulty) == [False] * 5


def sharded(by: str, gathered: float, calls: float, reduced: str) -> Observed:
    """A side of 2a that gathers so much in so many calls, and reduces each gradient once."""
    seen = {"all-gather": (calls, 0.0, gathered), reduced: (9.0, 1.0 * sharding.PARAMETERS, 0.0)}
    truth = {"options": {"parallel": by}, "torch": "2.13"}
    return side(collectives=lambda kind: seen.get(kind, (0.0, 0.0, 0.0)), truth=truth)


def test_2a_counts_gathers_of_both_stages_exactly() -> None:
    p, root = sharding.PARAMETERS, sharding.ROOT
    stage3 = sharded("fsdp2", 2.0 * p - root, 17.0, "reduce-scatter")
    stage2 = sharded("fsdp2", 1.0 * p, 9.0, "reduce-scatter")
    assert passed("2a", stage3, stage2) == [True] * 6
    assert passed("2a", stage2, stage2) == [True, False, True, True, True, False]


def test_2a_knows_that_deepspeed_gathers_the_root_twice_and_reduces_by_all_reduce_in_stage_2() -> None:
    p = sharding.PARAMETERS
    stage3 = sharded("deepspeed", 2.0 * p, 150.0, "reduce-scatter")
    stage2 = sharded("deepspeed", 1.0 * p, 1.0, "all-reduce")
    assert passed("2a", stage3, stage2) == [True] * 5
    assert passed("2a", stage3, stage3) == [True, True, False, True, False]


def test_2b_wants_none_hidden_without_overlap_and_a_third_with_it() -> None:
    def hides(hidden: int, exposed: int) -> Observed:
        return side(ask=lambda _: pl.DataFrame({"hidden": [hidden], "exposed": [exposed]}))

    assert passed("2b", hides(0, 10), hides(4, 6)) == [True, True]
    assert passed("2b", hides(1, 9), hides(3, 7)) == [False, False]
    assert overlap.EXERCISE.ranks == 2


def test_3a_knows_the_formula_of_the_bubble() -> None:
    assert pipeline.formula(4) == pytest.approx(0.2)
    assert pipeline.formula(16) == pytest.approx(1 / 17)


def test_3a_tensor_counts_all_reduces_exactly() -> None:
    layout = pl.DataFrame({"strategy": ["TP"], "degree": [2]})
    one = float(tensor.ACTIVATIONS)
    alone = side(collectives=lambda _: (28.0, 28 * one, 0.0), truth={"losses": [2.0, 1.0]})
    shared = side(
        collectives=lambda _: (16.0, 16 * one, 0.0), truth={"losses": [2.0, 1.00001]}, ask=lambda _: layout
    )
    assert passed("3a-tensor", alone, shared) == [True] * 6
    alone = side(collectives=shared.collectives, truth={"losses": [2.0, 1.1]})
    shared = side(collectives=lambda _: (15.0, one, 0.0), truth=shared.truth, ask=lambda _: layout[:0])
    assert passed("3a-tensor", alone, shared) == [False] * 6


def test_3a_tp_pp_counts_the_all_reduces_of_both_sides_and_their_bytes() -> None:
    def ran(microbatches: int, step_ms: float, **changed: Any) -> Observed:
        tp = {"strategy": "TP", "degree": 2, "calls": 8.0 * microbatches, "expected": 9, "seen": 9}
        pp = {"strategy": "PP, 1f1b", "degree": 2, "calls": 2.0 * microbatches, "expected": 4, "seen": 4}
        truth = {"work_ms": 60.0 * microbatches, "step_ms": step_ms}
        return side(ask=lambda _: pl.DataFrame([{**tp, **changed}, pp]), truth=truth)

    few, many = ran(4, 310.0), ran(16, 1030.0)
    assert passed("3a-tp-pp", few, many) == [True] * 6
    wrong = ran(4, 240.0, degree=4, calls=31.0, seen=10)
    assert passed("3a-tp-pp", wrong, many) == [False, False, True, False, False, True]


def test_g3_counts_the_states_of_both_and_wants_migrations_to_be_unknown() -> None:
    def ran(states: int, ask: Any) -> Observed:
        return side(ask=ask, truth={"states": {"weights": states}, "managed": None})

    def unknown(recipe: str) -> pl.DataFrame:
        raise CannotAnswer(recipe, "the PyTorch profiler does not record this")

    full = 16 * unified.PARAMETERS
    less = 4 * unified.PARAMETERS + 16 * lora.TRAINED
    assert passed("g3", ran(full, unknown), ran(less, unknown)) == [True] * 5
    told = ran(full + 4, lambda _: pl.DataFrame({"rank": [0]}))
    assert passed("g3", told, ran(full, unknown)) == [False, False, True, False, True]
    assert pytest.approx(107.8, abs=0.05) == unified.FULL_GB


def test_g2_wants_equal_losses_and_all_bytes_back() -> None:
    report = {
        "out": {"bytes": 100}, "into": {"bytes": 95}, "microbatches": 2, "verified": "3 times",
        "kept_bytes": {"parameter or buffer": 7}, "host_allocations_after_warm_up": 0,
    }  # fmt: skip
    stays = side(truth={"losses": [1.5, 1.25]})
    assert passed("g2", stays, side(truth={"losses": [1.5, 1.25], "remedy": report})) == [True] * 6
    report |= {"into": {"bytes": 80}, "verified": None, "kept_bytes": {"sparse": 1}}
    report |= {"host_allocations_after_warm_up": 2}
    wrong = side(truth={"losses": [1.5, 1.2500001], "remedy": report})
    assert passed("g2", stays, wrong) == [False] * 5 + [True]  # the last one grades nothing
    assert offloading.hidden(0.573e9, 55e9, 4.0) == pytest.approx(0.384, abs=0.001)
    assert offloading.hidden(0.573e9, 297e9, 4.0) == 1.0


def products_of(*dtypes: str) -> pl.DataFrame:
    return pl.DataFrame({"name": ["aten::mm"] * len(dtypes), "dtypes": list(dtypes)})


def test_g4_follows_the_scale_through_its_skipped_steps() -> None:
    def ran(skipped: list[int], scale: float, logged: int, *losses: float) -> Observed:
        return side(
            table=lambda _: products_of(*["Half"] * 20),
            truth={"losses": losses, "remedy": {"skipped_steps": skipped, "scale": scale}},
            ask=lambda _: pl.DataFrame({"steps": [logged]}),
        )

    full = side(table=lambda _: products_of("float"))
    right = ran([1, 2], scaling.SCALE / 4, scaling.STEPS, 2.0, 1.0)
    assert passed("g4", full, right) == [True] * 6
    wrong = ran([], scaling.SCALE / 4, scaling.STEPS - 2, 2.0, float("nan"))
    assert passed("g4", side(table=lambda _: products_of()), wrong)[2:] == [False] * 4
    assert passed("g4", right, full_precision(wrong))[:2] == [False, False]


def full_precision(of: Observed) -> Observed:
    return side(table=lambda _: products_of("float"), truth=of.truth, ask=of.ask)


def test_g5_wants_fp8_layers_casts_and_losses_that_are_near_but_not_the_same() -> None:
    def ran(casts: int, losses: list[float], **report: Any) -> Observed:
        rows = pl.DataFrame({"name": ["aten::_to_copy"] * casts})
        return side(
            table=lambda _: rows,
            truth={"parameters": 9, "losses": losses, "remedy": {"emulated": "", **report}},
        )

    before = ran(2, [2.0])
    assert passed("g5", before, ran(5, [2.01], converted=[0] * 28, skipped={"head": ""})) == [True] * 6
    other = ran(2, [2.0], converted=[0], skipped={})
    assert passed("g5", before, other) == [False, False, False, True, False, True]


def test_what_an_exercise_needs_beside_torch_is_said_before_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "find_spec", lambda name: None if name == "torchao" else name)
    with pytest.raises(LostflopsError, match="torchao, which this Python lacks"):
        running.played(exercises()["g5"], tmp_path, "cpu", print)


def test_0_checks_what_a_link_carries() -> None:
    row = {"bytes": 4096, "algorithm_bandwidth": 2.0, "correct": True}
    rows = [
        {**row, "operation": "all-reduce", "bus_bandwidth": 2.0},
        {**row, "operation": "all-gather", "bus_bandwidth": 1.0},
    ]
    check = topology.EXERCISE.check_documents
    assert check is not None
    assert [one.passed for one in check([{"bandwidths": rows}])] == [True, True, True]
    rows[0] |= {"correct": False, "bus_bandwidth": 1.0}
    assert [one.passed for one in check([{"bandwidths": rows}])] == [False, False, True]


def test_a_gpu_that_is_not_there_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown, "GPUS", tmp_path / "none")
    assert shown.device(exercises()["1a"], None) == "cpu"
    with pytest.raises(BadOption, match="needs 2 GPUs; this machine has 0"):
        shown.device(exercises()["2a"], "cuda")
    for number in range(2):
        (tmp_path / "none" / str(number)).mkdir(parents=True)
    assert shown.device(exercises()["2a"], None) == "cuda"
    with pytest.raises(BadOption, match="sleeps in its stages"):
        shown.device(exercises()["3a"], "cuda")


def test_without_torch_the_lab_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "find_spec", lambda _: None)
    with pytest.raises(LostflopsError, match="which this Python lacks"):
        running.played(exercises()["1a"], tmp_path, "cpu", print)


def test_a_run_that_fails_says_how_with_its_last_lines_and_keeps_its_log(tmp_path: Path) -> None:
    with pytest.raises(LostflopsError, match="ended with status 2") as raised:
        running._printed([*running.OURS, "why", str(tmp_path / "nothing")], tmp_path)  # pyright: ignore[reportPrivateUsage]
    assert "There is no file or folder" in raised.value.message
    assert "There is no file or folder" in (tmp_path / "log.err").read_text()


def test_1a_runs_on_this_machine_and_its_fault_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The faulty side is recorded, and stands in for the fixed one too: then what needs the fix must fail."""
    pytest.importorskip("torch")
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "cache"))
    recorded = running.recorded
    sides: list[Observed] = []

    def once(*given: Any) -> Observed:
        if not sides:
            sides.append(recorded(*given))
        return sides[0]

    monkeypatch.setattr(running, "recorded", once)
    out = tmp_path / "lab"
    assert cli.main(["lab", "1a", "--output", str(out), "--json", str(tmp_path / "checks.json")]) == 1
    result = json.loads((tmp_path / "checks.json").read_text())
    assert [check["passed"] for check in result["checks"]] == [True, True, False, False, False]
    printed = capsys.readouterr().out
    assert "fix: DataLoader(num_workers=4, persistent_workers=True)" in printed
    assert "2 of 5 observations are as expected" in printed
    (about,) = (out / "1a/profiler").glob("*-faulty/run.json")
    assert json.loads(about.read_text())["truth"]["parameters"] == precision.PARAMETERS
    assert list((out / "1a/logs/nodes-1").glob("*-faulty/log.err"))
