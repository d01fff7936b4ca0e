"""Replay of every recorded trace: exact with its residuals, close without them, or refused in words.

`pytest -s tests/replay/test_recorded_traces.py` prints the table.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import zstandard

import lostflops
from lostflops.replay.dependencies import waits
from lostflops.replay.dependencies.edges import Kind
from lostflops.replay.edit import REMOVED
from lostflops.replay.edits import edit
from lostflops.replay.recorded import SMALL
from lostflops.replay.whatif import Replay
from lostflops.session import Session

TRACES = Path(__file__).parents[3] / "shared" / "traces"
LARGEST_ERROR = 0.01


@dataclass(frozen=True)
class Verdict:
    """What a trace has to give: a word of the reason for a refusal, and how far a replay without residuals
    may end from the recording, as a share of it. `instead` says why that differs from the reference's table.
    """

    refused: str = ""
    ends: float = 0.0
    without_steps: bool = False
    instead: str = ""


OK = Verdict()
FEW = Verdict("too few")
BACKWARD = Verdict("misses the recorded steps")
LOST = Verdict("GPU work was not recorded")
WINDOW = Verdict(without_steps=True)  # only shorter kernels and transfers are predicted
ONE_RANK = Verdict("ranks were recorded")
# By path below kineto/ and nsys/. The shares are those of the reference's column `nominal`.
VERDICTS = {
    "aorta/smci350_200691": FEW,
    "deepseek/train": Verdict(ends=-0.0029),
    "gen_torch213_cpu/ddp_": OK,
    "gen_torch213_cpu/fsdp2_rank": OK,
    "gen_torch213_cpu/fsdp2_ws2_with_stack": ONE_RANK,
    "gen_torch213_cpu/tp_pp_": OK,
    "hta/amd_trace__mi250": FEW,
    "hta/cpu_only__rank-34.Jul": ONE_RANK,
    "hta/cpu_only__rank-34_older": ONE_RANK,
    "hta/critical_path__cuda_event_sync__": FEW,
    "hta/critical_path__cuda_event_sync_multi_stream": FEW,
    "hta/critical_path__end_to_end__simple_add__input": WINDOW,
    "hta/critical_path__end_to_end__simple_add__output": WINDOW,
    "hta/cupti_profiler": LOST,
    "hta/df_index_resolver": OK,
    "hta/distributed_info_unavailable": OK,
    "hta/execution_trace": FEW,
    "hta/large_integer_trace": Verdict("one rank was recorded"),
    "hta/mixed_files__rank_non_gpu": OK,
    "hta/mtia_inference_trace": WINDOW,
    "hta/nccl_parser_config": OK,
    "hta/negative_queue_length": Verdict(
        "misses the recorded steps",
        instead="misses 57 % of the window instead of 17: after a first row that waited, nothing does",
    ),
    "hta/rank_unavailable": OK,
    "hta/trace_compare__base": FEW,
    "hta/trace_compare__test": FEW,
    "hta/trace_file_list": FEW,
    "hta/trace_filter__sampled_rank-0": Verdict(instead="host and communication edits are refused alone"),
    "hta/trace_filter__sampled_rank-1": Verdict(instead="host and communication edits are refused alone"),
    "hta/triton_example": FEW,
    "hta/with_gpu_user_annotation": Verdict(ends=-0.0002),
    "kineto_tb/after_fix": FEW,
    "kineto_tb/before_fix": FEW,
    "kineto_tb/older_resnet50": OK,
    "kineto_tb/resnet50_num_workers_0__worker0.1623143089861": Verdict(ends=-0.0003),
    "kineto_tb/resnet50_num_workers_0__worker0.1623143566756": Verdict(ends=-0.0004),
    "kineto_tb/resnet50_num_workers_4": Verdict(ends=-0.0005),
    "kineto_tb/tb_plugin_gpu_metrics": Verdict("too few", instead="32 rows; the reference replays it"),
    "kineto_tb/v0.1_resnet50": Verdict(ends=-0.0029),
    "param/linear": OK,
    "param_dlrm8/": Verdict(ends=-0.0007),
    "tracelens/h100__Falconsai": OK,
    "tracelens/h100__Qwen": Verdict(ends=-0.0086),
    "tracelens/h100__gaunernst": OK,
    "tracelens/inference__sglang_decode__capture": FEW,
    "tracelens/inference__sglang_decode__sglang": BACKWARD,
    "tracelens/inference__sglang_prefilldecode": BACKWARD,
    "tracelens/inference__vllm_decode_full__capture": FEW,
    "tracelens/inference__vllm_prefilldecode_piecewise__capture": LOST,
    "tracelens/inference__vllm_prefilldecode_piecewise__graph": Verdict(ends=-0.0011, without_steps=True),
    "tracelens/inference__xdit_flux.1__capture": LOST,
    "tracelens/inference__xdit_flux.1_aiter": LOST,
    "tracelens/mi210__gpu_only": WINDOW,
    "tracelens/mi300__Falconsai": OK,
    "tracelens/mi300__Qwen": Verdict(ends=-0.0006),
    "tracelens/mi300__gaunernst": OK,
    "tracelens/mi300__resnet_act_checkpoint": Verdict(ends=-0.0049),
    "tracelens/perf_model__normalization": WINDOW,
    "tracelens/torch_compile_triton": FEW,
    "nsys/fastvideo_train_2xH100_before": Verdict(ends=-0.0009, without_steps=True),
    "nsys/fastvideo_train_2xH100_after": Verdict(ends=-0.0006, without_steps=True),
    "nsys/fastvideo_sp2_2xH100": Verdict(ends=-0.0021, without_steps=True),
}


def files(name: str) -> list[Path]:
    folder, _, begin = name.partition("/")
    under = TRACES if folder == "nsys" else TRACES / "kineto"
    return sorted((under / folder).glob(f"{begin}*"))


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("traces")
    before = os.environ.get("LOSTFLOPS_CACHE")
    os.environ["LOSTFLOPS_CACHE"] = str(place / "cache")
    yield place
    if before is None:
        del os.environ["LOSTFLOPS_CACHE"]
    else:
        os.environ["LOSTFLOPS_CACHE"] = before


def replay_of(name: str, place: Path) -> Replay:
    found = files(name)
    if not found:
        pytest.skip("the shared traces are not here")
    for at, path in enumerate(found):
        if path.suffix == ".zst":
            found[at] = place / path.stem
            if not found[at].exists():
                with path.open("rb") as packed, found[at].open("wb") as target:
                    zstandard.ZstdDecompressor().copy_stream(packed, target)
    return Session(lostflops.open(found, allow_missing_ranks=True)).replay()


def test_every_recorded_trace_has_its_verdict() -> None:
    if not TRACES.exists():
        pytest.skip("the shared traces are not here")
    here = {p for p in (TRACES / "kineto").rglob("*") if p.name.endswith((".json.gz", ".raw.gz"))}
    here |= set((TRACES / "nsys").glob("*.zst"))
    told = [path for name in VERDICTS for path in files(name)]
    assert len(told) == len(set(told)), "two verdicts for one trace"
    left = here - set(told)
    assert {p.name for p in left} == {"memory_analysis__memory_timeline.raw.gz"}, "no trace"


@pytest.mark.parametrize("name", VERDICTS)
def test_a_recorded_trace_is_replayed_or_refused(name: str, unpacked: Path) -> None:
    verdict, replay = VERDICTS[name], replay_of(name, unpacked)
    job, trust = replay.job, replay.trust
    assert (job.replayed(job.lags()) == job.measured).all(), "exact with all residuals"
    span = int(job.measured.max() - job.measured.min()) or 1
    small, none = (
        float((job.replayed(job.lags(above=above)).max() - job.measured.max()) / span)
        for above in (SMALL, -1)
    )
    path = trust.path
    shares = "".join(f" {share:4.0%}" for share in (path.host, path.opaque, path.device, path.residual))
    print(
        f"\n{name:58} {job.operations.height:7,} {small:8.2%} {none:8.2%} {trust.error:7.2%} |{shares}"
        f" | {trust.reason or trust.other_edits or 'trusted'}"
        + (f" (reference: {verdict.instead})" if verdict.instead else ""),
        end="",
    )
    assert verdict.refused in trust.reason
    if verdict.refused:
        return
    assert trust.trusted
    assert trust.error <= LARGEST_ERROR
    assert none == pytest.approx(verdict.ends, abs=0.0025), "the reference's share"
    assert bool(trust.other_edits) == verdict.without_steps
    assert abs(trust.replayed_ns - trust.measured_ns) <= LARGEST_ERROR * trust.measured_ns
    parts = path.host, path.opaque, path.device, path.transfer, path.residual, path.unexplained
    assert np.isclose(sum(parts), 1)


def edges(replay: Replay, *kinds: Kind) -> int:
    return int(np.isin(replay.job.edges.kind, kinds).sum())


HANDOVERS = {
    "kineto_tb/older_resnet50": 12,
    "kineto_tb/resnet50_num_workers_0__worker0.1623143089861": 12,
    "kineto_tb/resnet50_num_workers_0__worker0.1623143566756": 12,
    "kineto_tb/resnet50_num_workers_4": 12,
    "kineto_tb/v0.1_resnet50": 12,
    "hta/df_index_resolver": 10,
    "hta/nccl_parser_config": 6,
    "tracelens/mi300__resnet_act_checkpoint": 6,
}


@pytest.mark.parametrize("name", HANDOVERS)
def test_autograd_takes_over_and_gives_back_once_a_step(name: str, unpacked: Path) -> None:
    assert edges(replay_of(name, unpacked), Kind.HANDOVER) == HANDOVERS[name]


@pytest.mark.parametrize(
    ("name", "depth"), [("nsys/fastvideo_sp2_2xH100", 1_136), ("hta/negative_queue_length", 960)]
)
def test_a_full_queue_tells_its_depth(name: str, depth: int, unpacked: Path) -> None:
    replay = replay_of(name, unpacked)
    assert all(found is not None and abs(found - depth) <= 3 for found in replay.job.depth.values())
    assert edges(replay, Kind.QUEUE) >= 50


def test_every_copy_to_pageable_memory_is_waited_for(unpacked: Path) -> None:
    copies = waited = 0
    names = ("hta/critical_path__cuda_event_sync__", "hta/negative_queue", "param_dlrm8/")
    for name in (*names, "hta/trace_filter__sampled_rank-0", "hta/trace_filter__sampled_rank-1"):
        job = replay_of(name, unpacked).job
        sync = job.edges.kind == Kind.SYNC
        known = set(zip(job.edges.source[sync].tolist(), job.edges.target[sync].tolist(), strict=True))
        out = (pl.col("direction") == "device to host") & (pl.col("host_memory") == "pageable")
        rows = job.operations.filter(out & pl.col("call").is_not_null())
        pairs = [(2 * row + 1, 2 * call + 1) for row, call in rows.select("operation", "call").iter_rows()]
        copies, waited = copies + len(pairs), waited + len(known.intersection(pairs))
    assert (copies, waited) == (63, 63)


def without(replay: Replay, *kinds: Kind) -> tuple[float, float]:
    """By how much the window and the mean step are shorter in a replay without edges of some kinds."""
    job, steps = replay.job, replay.known.steps
    times = job.replayed(np.where(np.isin(job.edges.kind, kinds), REMOVED, job.lags(above=SMALL)))
    window = (times.max() - job.measured.max()) / (job.measured.max() - job.measured.min())
    return float(window), steps.mean(times) / steps.mean(job.measured) - 1


@pytest.mark.parametrize(
    ("name", "window"),
    [("param_dlrm8/worker1", -0.275), ("deepseek/train", -0.022), ("tracelens/mi300__resnet", -0.144)],
)
def test_streams_that_do_not_wait_for_each_other_end_too_early(
    name: str, window: float, unpacked: Path
) -> None:
    found, _ = without(replay_of(name, unpacked), Kind.EVENT, Kind.GUESSED, Kind.CONTENDED)
    assert found == pytest.approx(window, abs=0.005)


def test_without_handovers_free_launches_are_worth_less_than_half(unpacked: Path) -> None:
    """Forward and backward run on two threads: without the edges between them the gaps stay as they were."""
    replay = replay_of("hta/df_index_resolver", unpacked)
    job, steps = replay.job, replay.known.steps
    launching = np.zeros(job.operations.height, bool)
    launching[job.operations["call"].drop_nulls().unique().to_numpy()] = True
    own = (job.edges.kind == Kind.OWN) & launching[job.edges.source // 2]
    free = np.where(own, 0, job.lags())
    handed = job.edges.kind == Kind.HANDOVER
    gap = (job.edges.kind == Kind.PROGRAM) & np.isin(job.edges.target, job.edges.target[handed])
    since = job.measured[job.edges.target] - job.measured[job.edges.source]
    apart = np.where(gap, since, np.where(handed, REMOVED, free))
    now = steps.mean(job.measured)
    assert now == pytest.approx(347.6e6, rel=1e-3)
    assert now - steps.mean(job.replayed(free)) > 2.5 * (now - steps.mean(job.replayed(apart))) > 0


def test_a_call_may_return_before_the_device_s_clock_says_so(
    unpacked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def early() -> list[int]:
        edges = replay_of("tracelens/mi300__Qwen", unpacked).job.edges
        return sorted(-edges.lag[(edges.kind == Kind.SYNC) & (edges.lag < 0)])

    assert [us // 100 for us in early()] == [75, 80], "7.5 and 8.1 us"
    monkeypatch.setattr(waits, "CLOCKS_DIFFER", 0)
    assert not early()


def test_what_a_copy_from_pageable_memory_waits_for_on_its_stream_is_no_staging(unpacked: Path) -> None:
    job = replay_of("param_dlrm8/worker1", unpacked).job
    staged = job.lags()[job.edges.kind == Kind.STAGING]
    assert len(staged) and staged.max() < 100_000


def test_a_memset_is_waited_for_by_no_call(unpacked: Path) -> None:
    job = replay_of("nsys/fastvideo_train_2xH100_after", unpacked).job
    source = job.edges.source[job.edges.kind == Kind.SYNC] // 2
    own = job.edges.target[job.edges.kind == Kind.SYNC] // 2
    direction = job.operations["direction"].to_numpy()[source]
    assert not (direction[job.operations["call"].to_numpy()[source] == own] == "memset").any()


@pytest.mark.parametrize(
    "name",
    ["resnet50_num_workers_0__worker0.1623143089861", "resnet50_num_workers_0__worker0.1623143566756",
     "older_resnet50_num_workers_0"],
)  # fmt: skip
def test_workers_bring_what_the_same_script_with_workers_recorded(name: str, unpacked: Path) -> None:
    """One ResNet-50 script with no workers and with four, whose median step took 126.2 ms.

    That is more than the job computes in: workers take processor time from it. `loader=0ms` leaves that out.
    """
    truth = replay_of("kineto_tb/resnet50_num_workers_4", unpacked).trust.steps["measured"].median()
    found = replay_of(f"kineto_tb/{name}", unpacked)
    several, at_once = (found.predicted([edit(text)]) for text in ("loader-workers=4", "loader=0ms"))
    assert several.low_ns is not None and several.high_ns is not None and several.predicted_ns is not None
    assert several.low_ns <= truth <= several.high_ns  # type: ignore[operator]
    assert several.predicted_ns == pytest.approx(truth, rel=0.09)  # type: ignore[arg-type]
    assert at_once.high_ns is not None and at_once.high_ns < truth  # type: ignore[operator]
