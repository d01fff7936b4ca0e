"""Chrome traces of other programs than PyTorch are refused, in words, and left out of a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kineto_files import one_step, span, trace, written
from lostflops.errors import NotATrace
from lostflops.ingest import job
from lostflops.ingest.kineto import reader as kineto


def plain(name: str, ts: float, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "ts": ts, "dur": 8, "pid": 1, "tid": 1, **more}


OTHERS: dict[str, Any] = {
    "JAX": {"displayTimeUnit": "ns", "traceEvents": [plain("fusion.1", 5, args={"hlo_op": "fusion.1"}), {}]},
    "VizTracer": {"traceEvents": [plain("step (train.py:3)", 5, cat="FEE")], "viztracer_metadata": {}},
    "Bazel": {"otherData": {}, "traceEvents": [plain("compile", 5, cat="action processing")]},
    "TensorFlow": {"traceEvents": [plain("MatMul", 5, cat="Op", args={"op": "MatMul"})]},
    "a log of training": [{"loss": 1.0, "step": 1}, {"loss": 0.9, "step": 2}],
}


@pytest.mark.parametrize("content", OTHERS.values(), ids=OTHERS)
def test_the_trace_of_another_program_is_refused(tmp_path: Path, content: Any) -> None:
    path = written(tmp_path / "trace.json", json.dumps(content).encode())
    with pytest.raises(NotATrace, match=r"the PyTorch profiler's: another program wrote it"):
        kineto.read(path, tmp_path / "out")


def of_process(name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": name}}


@pytest.mark.parametrize(
    ("device", "what", "instead"),
    [
        ("/device:GPU:0", "the profiler of JAX and TensorFlow (XLA), on a GPU.", "nsys profile -t cuda,nvtx"),
        ("/device:TPU:3", "the profiler of JAX and TensorFlow (XLA), on a TPU.", "no recording of a TPU"),
        ("/host:CPU", "the profiler of JAX and TensorFlow (XLA).", "nsys profile -t cuda,nvtx"),
    ],
)
def test_a_trace_of_xla_is_called_that_and_what_to_do_is_said(
    tmp_path: Path, device: str, what: str, instead: str
) -> None:
    """As `jax.profiler.trace` leaves it in `plugins/profile/TIME/HOST.trace.json.gz`."""
    ran = plain("fusion.1", 5, args={"hlo_op": "fusion.1", "hlo_module": "jit_train_step"})
    content = {"displayTimeUnit": "ns", "metadata": {}, "traceEvents": [of_process(device), ran, {}]}
    path = written(tmp_path / "host.trace.json.gz", json.dumps(content).encode())
    with pytest.raises(NotATrace) as said:
        kineto.read(path, tmp_path / "out")
    assert what in said.value.message and instead in said.value.hint


def test_it_is_left_out_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "store"))
    folder = tmp_path / "traces"
    folder.mkdir()
    written(folder / "rank0.json", trace(one_step()))
    written(folder / "trainer_state.json", json.dumps(OTHERS["a log of training"]).encode())
    run = job.open(folder)
    told = [q.text for q in run.manifest.quality if q.name == "file left out"]
    assert len(told) == 1 and "trainer_state.json" in told[0]


def test_ranges_of_an_unknown_kind_in_the_profilers_own_file_are_kept(tmp_path: Path) -> None:
    path = written(tmp_path / "trace.json", trace([span("somebody_s", "work", 5, 8)]))
    assert "ranges" in kineto.read(path, tmp_path / "out")[0].tables
