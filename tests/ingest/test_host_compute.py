"""On a CPU-only rank, what operators do for a loader, a checkpoint or a compiler is no compute."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kineto_files import Event, operator, span, step
from lostflops.ingest import job
from lostflops.session import Session

STEPS = 3


@pytest.fixture(autouse=True)
def _own_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "store"))


def spent(folder: Path, *of_one: Event) -> dict[str, int]:
    """Mean time by account, µs, of three steps of 100 µs, each with these events (times within the step)."""
    events = [step(k, 1000 + 100 * k, 100) for k in range(STEPS)]
    events += [{**e, "ts": e["ts"] + 1000 + 100 * k} for k in range(STEPS) for e in of_one]
    path = folder / "rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}))
    table = Session(job.open(path)).run("step_ledger").table
    return {
        a: ns // STEPS // 1000 for a, ns in table.group_by("account").sum().select("account", "ns").rows()
    }


def frame(name: str, ts: float, dur: float) -> Event:
    return span("python_function", name, ts, dur)


DYNAMO = [
    operator("dynamo", 5, 60),
    operator("entire_frame_compile", 5, 60),
    operator("_compile.compile_inner (dynamo_timed)", 6, 58),
    operator("aten::mm", 10, 20),
    operator("prims::le", 32, 7),
]


def test_operators_that_a_compiler_traces_are_compilation(tmp_path: Path) -> None:
    assert spent(tmp_path, *DYNAMO, operator("aten::add", 70, 25)) == {
        "compute": 25,
        "idle.compilation": 60,
        "idle.unexplained": 15,
    }


@pytest.mark.parametrize(
    "name",
    [
        "Torch-Compiled Region: 0/1",
        "## Call CompiledFxGraph fbitt ##",
        "CompiledFunction",
        "CompiledFunctionBackward",
    ],
)
def test_what_was_compiled_computes_also_inside_a_compiler(tmp_path: Path, name: str) -> None:
    assert spent(tmp_path, operator(name, 5, 60))["compute"] == 60
    inside = [operator("dynamo", 0, 90), operator(name, 5, 60), operator("aten::mm", 10, 20)]
    assert spent(tmp_path, *inside) == {"compute": 60, "idle.compilation": 30, "idle.unexplained": 10}


@pytest.mark.parametrize(
    ("around", "account"),
    [
        (span("user_annotation", "compile_fx_inner (dynamo_timed)", 5, 60), "idle.compilation"),
        (frame("torch/_dynamo/convert_frame.py(715): _compile", 5, 60), "idle.compilation"),
        (frame("torch/serialization.py(943): save", 5, 60), "idle.checkpoint_logging"),
        (span("user_annotation", "save_checkpoint", 5, 60), "idle.checkpoint_logging"),
        (frame("torch/utils/data/dataloader.py(720): __next__", 5, 60), "idle.data_loading"),
        (
            span("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 5, 60),
            "idle.data_loading",
        ),
    ],
)
def test_operators_inside_what_is_no_compute_are_no_compute(
    tmp_path: Path, around: Event, account: str
) -> None:
    found = spent(tmp_path, around, operator("aten::copy_", 10, 40), operator("aten::mm", 70, 20))
    assert found == {"compute": 20, account: 60, "idle.unexplained": 20}


def test_on_another_thread_they_compute(tmp_path: Path) -> None:
    around = {**span("user_annotation", "save_checkpoint", 5, 60), "tid": 2}
    assert spent(tmp_path, around, operator("aten::mm", 10, 40))["compute"] == 40


def test_activation_checkpoints_compute(tmp_path: Path) -> None:
    around = frame("torch/utils/checkpoint.py(343): checkpoint", 5, 60)
    assert spent(tmp_path, around, operator("aten::mm", 10, 40))["compute"] == 40
