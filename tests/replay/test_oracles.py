"""Published cases: the same figures from the general engine."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT.parent / "shared" / "traces"
sys.path.insert(0, str(ROOT / "benchmarks"))

import oracles  # noqa: E402


@cache
def straggler_case(case: str) -> oracles.Slowdown:
    return oracles.straggler_case(TRACES / "bytedance_straggler", case)


needs_traces = pytest.mark.skipif(not TRACES.exists(), reason="no traces lie beside this repository")


@needs_traces
@pytest.mark.parametrize(
    ("case", "s", "launch", "by_type", "by_stage", "worker", "m_w", "m_s"),
    [
        (
            "AR",
            1.973045,
            1.006751,
            {
                "backward-compute": 1.580506,
                "forward-compute": 1.368886,
                "params-all-gather": 1.005476,
                "grads-reduce-scatter": 1.010782,
                "embedding-grads-all-reduce": 1.005152,
                "optimizer": 1.001105,
            },
            (1.979189, 0.997113, 0.995604, 1.002369),
            (0, 0),
            (1.001701, 1.006313),
            (-0.001212, 0.002435),
        ),
        (
            "ST",
            1.178702,
            1.019216,
            {
                "forward-compute": 1.087499,
                "backward-compute": 1.074156,
                "embedding-grads-all-reduce": 1.009550,
                "grads-reduce-scatter": 1.002667,
                "optimizer-clip-main-grad": 1.002351,
            },
            (0.998045, 0.983056, 0.982493, 1.232256),
            (1, 3),
            (0.031404, 1.297930),
            (1.219356, 1.299682),
        ),
    ],
)
def test_the_slowdown_of_a_published_job_is_met(
    case: str,
    s: float,
    launch: float,
    by_type: dict[str, float],
    by_stage: tuple[float, ...],
    worker: tuple[int, int],
    m_w: tuple[float, float],
    m_s: tuple[float, float],
) -> None:
    found = straggler_case(case)
    assert found.slowdown == pytest.approx(s, abs=1e-6)
    assert found.launch_slowdown == pytest.approx(launch, abs=1e-6)
    assert {name: found.by_type[name] for name in by_type} == pytest.approx(by_type, abs=1e-6)
    assert tuple(found.by_stage.values()) == pytest.approx(by_stage, abs=1e-6)
    assert found.slowest == (worker,)
    assert (found.of_workers.removal, found.of_workers.addition) == pytest.approx(m_w, abs=2e-6)
    assert (found.of_last_stage.removal, found.of_last_stage.addition) == pytest.approx(m_s, abs=2e-6)


@needs_traces
@pytest.mark.parametrize(
    ("case", "seconds", "by_rank", "worker", "of_worker"),
    [
        (
            "AR",
            (46.64918, 46.33637, 23.48470),
            (1.973044, 1.010891, 1.011151, 1.011143),
            (0, 0),
            1.973044,
        ),
        ("ST", (2.21445, 2.17270, 1.84330), (1.173083, 1.177870), (1, 3), 1.177870),
    ],
)
def test_the_times_and_ranks_of_a_published_job_are_met(
    case: str,
    seconds: tuple[float, ...],
    by_rank: tuple[float, ...],
    worker: tuple[int, int],
    of_worker: float,
) -> None:
    found = straggler_case(case)
    told = [ns / 1e9 for ns in (found.measured, found.replayed, found.ideal)]
    assert told == pytest.approx(list(seconds), abs=5.1e-6)  # published to 10 µs
    assert tuple(found.by_rank.values()) == pytest.approx(by_rank, abs=1e-6)
    assert found.worker(*worker) == pytest.approx(of_worker, abs=1e-6)


def test_the_operations_of_a_published_iteration_are_met() -> None:
    """GPT with a trillion parameters on 3,072 A100 at 163 TFLOP/s, all layers run again (Megatron-LM)."""
    (flops,) = oracles.gpt_flops(*(np.array([float(n)]) for n in (3072, 2048, 128, 25_600)))
    assert flops == pytest.approx(5.139e19, rel=1e-4)
    assert flops / (3072 * 163e12) == pytest.approx(102.6, abs=0.05)


@needs_traces
def test_the_split_of_a_published_pipeline_is_met_and_its_step_replayed() -> None:
    found = oracles.pipeline_case(TRACES / "primus_pp" / "gpu8_layer64_gbs16" / "pp8")
    step = float(np.median([s.step for s, _ in found]))
    shares = np.median(
        [
            [100 * getattr(s, n) / s.step for n in ("useful", "imbalance", "schedule", "rest")]
            for s, _ in found
        ],
        axis=0,
    )
    assert step == pytest.approx(3249.4, abs=0.1)
    stages = np.median([(of["F"] + of["B"]).sum(axis=1) / 1e6 for _, of in found], axis=0)
    assert [stages.mean(), stages[-1]] == pytest.approx([2102.6, 2271.4], abs=0.1)
    assert (round(min(stages[:-1])), round(max(stages[:-1]))) == (2043, 2113)
    assert 100 * (1 - stages.max() / step) == pytest.approx(30.1, abs=0.05)
    assert shares.tolist() == pytest.approx([64.7, 5.25, 28.0, 2.1], abs=0.2)
    assert oracles._replayed(found, "1f1b", 0) / step == pytest.approx(0.99, abs=0.002)
    assert oracles._replayed(found, "1f1b", 2_000_000) / step == pytest.approx(0.998, abs=0.001)


@needs_traces
def test_the_planner_is_better_than_what_was_fitted_to_the_runs() -> None:
    runs, predictors = oracles.config_case(TRACES / "vtrain_ground_truth" / "ground_truth_multi.csv")
    measured = runs["measured"].to_numpy()
    errors = {name: float(np.abs(ms / measured - 1).mean()) for name, ms in predictors.items()}
    assert errors["constant utilisation"] == pytest.approx(0.175, abs=0.001)
    assert errors["log-linear, leave one out"] == pytest.approx(0.121, abs=0.001)
    assert errors["lostflops plan"] < 0.1


@needs_traces
def test_the_baselines_of_the_published_runs_are_met() -> None:
    runs, _ = oracles.config_case(TRACES / "vtrain_ground_truth" / "ground_truth_multi.csv")
    get = {name: runs[name].to_numpy().astype(np.float64) for name in runs.columns}
    gpus = get["tensor"] * get["data"] * get["pipeline"]
    flops = oracles.gpt_flops(*(get[c] for c in ("global_batch", "sequence", "layers", "hidden")))
    perfect, measured = 1e3 * flops / gpus / 312e12, get["measured"]
    microbatches = get["global_batch"] / (get["data"] * get["batch"])
    bubble = 1 + (get["pipeline"] - 1) / microbatches
    reached = perfect / measured
    assert runs.height == 109
    assert [float(f(reached)) for f in (np.min, np.median, np.max)] == pytest.approx(
        [0.121, 0.395, 0.524], abs=5e-4
    )

    def error(predicted: np.ndarray) -> float:
        return float(np.abs(predicted / measured - 1).mean())

    constants = np.arange(0.3, 0.6, 0.0005)
    plain = [error(perfect / c) for c in constants]
    assert min(plain) == pytest.approx(0.172, abs=5e-4)
    assert constants[int(np.argmin(plain))] == pytest.approx(0.409, abs=2e-3)
    assert min(error(bubble * perfect / c) for c in constants) == pytest.approx(0.175, abs=5e-4)
    logs = [
        np.log(x)
        for x in (microbatches, *(get[c] for c in ("hidden", "layers", "tensor", "pipeline", "batch")))
    ]
    x = np.column_stack([np.ones(runs.height), *logs])
    hat, y = x @ np.linalg.pinv(x), np.log(measured)
    left_out = np.exp(y - (y - hat @ y) / (1 - np.diag(hat)))
    assert error(left_out) == pytest.approx(0.173, abs=5e-4)


def test_a_file_of_another_kind_is_refused_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "trace-X.parquet")
    for given in (
        ["stragglers", str(tmp_path), "X"],
        ["stragglers", str(tmp_path), "missing"],
        ["pipeline", str(tmp_path)],
        ["config", str(tmp_path / "none.csv")],
    ):
        sys.argv = ["oracles.py", *given]
        assert oracles.main() == 2
        assert "cannot be read as a case" in capsys.readouterr().err
