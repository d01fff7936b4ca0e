"""Advice fits the accelerators that a job computes on: NVIDIA's words are not printed for others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lostflops
from eager_jobs import Eager, EagerStep, recorded
from lostflops.naming.makers import MAKERS, NVIDIA, Maker, maker
from lostflops.remedies import REMEDIES, Setting
from lostflops.report.remedy import RemedyForJob

OF_OTHERS = re.compile(r"torch\.cuda|[\"']cuda|cuda:nccl|nvidia|nsys|CUDA graph|GRAPH_REGISTER|CUDA_ALLOC")
CALLS = {
    "Intel(R) Data Center GPU Max 1550": {
        "cudaLaunchKernel": "urEnqueueKernelLaunch",
        "cudaStreamSynchronize": "urEventWait",
        "cudaDeviceSynchronize": "urQueueFinish",
        "cudaMemcpyAsync": "urEnqueueUSMMemcpy",
        "cuda_runtime": "xpu_runtime",
    },
    "": {  # which device properties leave out
        "cudaLaunchKernel": "AscendCL@aclnnMatmul",
        "cudaStreamSynchronize": "AscendCL@aclrtSynchronizeStream",
        "cudaDeviceSynchronize": "AscendCL@aclrtSynchronizeDevice",
        "cudaMemcpyAsync": "AscendCL@aclrtMemcpyAsync",
    },
}


def page_of(folder: Path, job: Eager, gpu: str) -> lostflops.Page:
    """The page of a job whose trace is written as another maker's runtime would."""
    trace = recorded(folder, job)
    text = trace.read_text().replace("NVIDIA H100 80GB HBM3", gpu)
    for theirs, own in CALLS[gpu].items():
        text = text.replace(f'"{theirs}"', f'"{own}"')
    trace.write_text(text)
    return lostflops.why(trace)


def reads(step: EagerStep) -> None:
    step.item()


@pytest.mark.parametrize("gpu", CALLS)
@pytest.mark.parametrize(
    ("job", "first"),
    [
        (Eager(gemm_us=25, small_us=5, each_layer=reads), "because the CPU waits for it 12 times per step"),
        (Eager(gemm_us=3, small_us=2), "because the CPU launches work too slowly"),
    ],
)
def test_a_page_of_others_accelerators_names_nothing_of_nvidia_s(
    tmp_path: Path, gpu: str, job: Eager, first: str
) -> None:
    page = page_of(tmp_path, job, gpu)
    assert first in page.findings[0].claim
    for one in page.findings:
        assert not OF_OTHERS.search(one.next), one.next
        assert "cuda-graphs" not in one.remedies
    for skipped in page.skipped:
        assert not OF_OTHERS.search(skipped.reason.replace("nsys profile -t osrt", "")), skipped.reason


@pytest.mark.parametrize("of", [one for one in MAKERS if one.name not in ("NVIDIA", "AMD")])
def test_no_remedy_speaks_of_nvidia_s_to_others(of: Maker) -> None:
    for framework in ("pytorch", "unknown"):
        job = Setting(framework, fitting=of.spelled, replays_graphs=False)
        for remedy in REMEDIES.values():
            assert not OF_OTHERS.search(job.says(remedy)), job.says(remedy)


def test_what_is_typed_fits_too() -> None:
    own = next(one for one in MAKERS if one.name == "Intel")
    job = Setting("pytorch", fitting=own.spelled, replays_graphs=False)
    shown = str(RemedyForJob(REMEDIES["remove-syncs"], job))
    assert "loss.detach()" in shown and "set_sync_debug_mode" not in shown
    assert 'torch.autocast("xpu"' in str(RemedyForJob(REMEDIES["bf16"], job))


def test_makers_are_known_by_calls_where_no_name_tells() -> None:
    assert maker([], ["cudaLaunchKernel"]) is maker(["NVIDIA A100"]) is NVIDIA
    said = "Count the steps (`nvidia-smi`)."
    assert NVIDIA.spelled(said) == said
    told = {one.name: one.spelled(said) for one in MAKERS}
    assert told["AMD"] == "Count the steps (`amd-smi process`)."
    assert told["Ascend"] == "Count the steps (`npu-smi info`)."
    calls = {"hipLaunchKernel": "AMD", "synLaunch": "Habana", "musaLaunchKernel": "Moore Threads"}
    assert {call: found.name for call in calls if (found := maker([], [call]))} == calls
    assert maker([], ["a"]) is None
