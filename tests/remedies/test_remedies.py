"""Remedies are told in the words of the framework that the job uses, and not told where they are on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import lostflops
from lostflops.accounts import IDLE
from lostflops.causes import remedies as asked_for
from lostflops.frameworks import setting
from lostflops.remedies import FRAMEWORKS, REMEDIES, Setting, advice
from lostflops.report.first_page.page import Page
from made_runs import LOADER, THREAD, Job, Work, made

STARVED = "data-loading-starves-device"


def row(name: str) -> dict[str, Any]:
    return {"start": 1, "end": 9, "thread": THREAD, "name": name}


@pytest.mark.parametrize(
    ("names", "framework"),
    [
        (["transformers/trainer.py(2100): train", "accelerate/accelerator.py(2400): backward"], "hf"),
        (["/site-packages/trl/trainer/sft_trainer.py(30): compute_loss"], "hf"),
        (["accelerate/accelerator.py(2400): backward"], "accelerate"),
        (["lightning/pytorch/loops/training_epoch_loop.py(180): advance"], "lightning"),
        (["pytorch_lightning/trainer/trainer.py(500): fit"], "lightning"),
        (["deepspeed/runtime/engine.py(1900): forward"], "deepspeed"),
        (["megatron/core/pipeline_parallel/schedules.py(300): forward_step"], "megatron"),
        (["megatron/bridge/training/train.py(9): train", "megatron/core/optimizer.py(2): step"], "bridge"),
        (["torchtitan/trainer.py(400): train_step"], "torchtitan"),
        (["train.py(16): main", "torch/nn/modules/module.py(1500): _call_impl"], "pytorch"),
        # A user's own file that is called like a framework is none.
        (["my_transformers/trainers.py(3): f", "experiments/deepspeed.py(2): g"], "pytorch"),
    ],
)
def test_the_framework_is_told_by_its_frames(names: list[str], framework: str, tmp_path: Path) -> None:
    run = made(tmp_path, {"ranks": [{}], "frames": [row(name) for name in names]})
    assert setting(run).framework == framework


def test_the_framework_is_told_by_its_ranges(tmp_path: Path) -> None:
    ranges = [row("[_TrainingEpochLoop].train_dataloader_next"), row("DistributedDataParallel.forward")]
    found = setting(made(tmp_path, {"ranks": [{}], "ranges": ranges}))
    assert (found.framework, found.sharding) == ("lightning", "ddp")


def test_a_trainer_on_deepspeed_gets_both_spellings() -> None:
    job = Setting("hf", deepspeed=True)
    said = advice(asked_for()["communication-exposed"].remedies, job, "")
    assert "gradient_accumulation_steps" in said and '"overlap_comm": true' in said


@pytest.mark.parametrize(
    ("gpu", "has", "lacks"),
    [
        ("Tesla V100-SXM2-32GB", ("torch.float16", "GradScaler"), ("bfloat16", "TF32", "Ampere")),
        ("NVIDIA A100-SXM4-80GB", ("torch.bfloat16", "TF32"), ("float16,", "GradScaler", "Ampere")),
        ("AMD Instinct MI300X", ("torch.bfloat16",), ("TF32", "GradScaler", "Ampere")),
        ("AMD Radeon RX 7900 XTX", ("torch.bfloat16",), ("TF32", "GradScaler", "Ampere")),
        ("AMD Radeon Graphics", ("torch.bfloat16",), ("TF32", "GradScaler", "Ampere")),
        ("a card of tomorrow", ("torch.bfloat16", "Before Ampere", "TF32 needs Ampere"), ("GradScaler",)),
    ],
)
def test_fp32_is_mended_as_the_gpu_allows(
    gpu: str, has: tuple[str, ...], lacks: tuple[str, ...], tmp_path: Path
) -> None:
    job = setting(made(tmp_path, {"ranks": [{"gpu": gpu}]}))
    said = advice(asked_for()["fp32-without-tensor-cores"].remedies, job, "")
    assert all(word in said for word in has) and not any(word in said for word in lacks), said


def test_a_job_that_only_runs_a_model_is_not_told_to_train() -> None:
    remedies = asked_for()["fp32-without-tensor-cores"].remedies
    assert advice(remedies, Setting("pytorch"), "").startswith("Train in bf16: ")
    assert advice(remedies, Setting("pytorch", trains=False), "").startswith("Compute in bf16: ")


def test_a_gpu_without_tensor_cores_is_not_told_to_use_them(tmp_path: Path) -> None:
    def page(gpu: str, **kernel: object) -> Page:
        kernels = [
            {"start": s * 100, "end": s * 100 + 90, "family": "gemm", "precision": "fp32"}
            | {"tensor_cores": False, "launch_start": s * 100, "launch_end": s * 100 + 1}
            | kernel
            for s in range(4)
        ]
        steps = [{"step": s, "start": s * 100, "end": s * 100 + 100} for s in range(4)]
        ranks = [{"gpu": gpu, "end": 400, "device_kind": "gpu"}]
        return lostflops.why(
            made(tmp_path / f"{gpu}{kernel}", {"ranks": ranks, "steps": steps, "kernels": kernels})
        )

    assert page("Tesla V100-SXM2-32GB").findings[0].name == "fp32-without-tensor-cores"
    assert not [f for f in page("Tesla P100-PCIE-16GB").findings if f.name == "fp32-without-tensor-cores"]
    instinct, untold = "AMD Instinct MI300X", {"tensor_cores": None}
    assert page(instinct, **untold).findings[0].claim == "Matrix work in fp32 takes 90 ns per step (90.0 %)."
    none = page("AMD Radeon RX 6800", **untold).findings
    assert not [f for f in none if f.name == "fp32-matrix-work"]
    double = page("NVIDIA A100-SXM4-80GB", precision="fp64", tensor_cores=True).findings[0]
    assert (double.name, double.remedies) == ("fp64-matrix-work", ("no-float64",))


@pytest.mark.parametrize(
    ("finding", "versions", "has", "lacks"),
    [
        ("allocator-stalls", "torch 2.8.0", "`PYTORCH_CUDA_ALLOC_CONF=", "PYTORCH_ALLOC_CONF="),
        ("allocator-stalls", "torch 2.13.0+cpu", "`PYTORCH_ALLOC_CONF=", "PYTORCH_CUDA_ALLOC_CONF="),
        ("allocator-stalls", "cuda runtime 12.8", "(before torch 2.9: `PYTORCH_CUDA_ALLOC_CONF=", "nothing"),
        ("uneven-work", "transformers 5.0.0", "`group_by_length=True`", "train_sampling_strategy"),
        ("uneven-work", "transformers 5.10.2", "train_sampling_strategy", "group_by_length=True"),
        ("fp32-without-tensor-cores", "torch 2.7.1", 'set_float32_matmul_precision("high")', "allow_tf32 ="),
    ],
)
def test_a_change_is_spelled_for_the_version_that_the_recording_names(
    finding: str, versions: str, has: str, lacks: str, tmp_path: Path
) -> None:
    tables = {"ranks": [{"versions": versions}]}
    if finding == "uneven-work":
        tables["frames"] = [row("transformers/trainer.py(2100): train")]
    said = advice(asked_for()[finding].remedies, setting(made(tmp_path, tables)), "")
    assert has in said and lacks not in said, said


def test_a_starved_loader_is_mended_in_the_words_of_the_framework() -> None:
    said = {name: advice(asked_for()[STARVED].remedies, Setting(name), "") for name in FRAMEWORKS}
    assert "`DataLoader(num_workers=4" in said["pytorch"]
    assert "`dataloader_num_workers=4`" in said["hf"]
    assert "`--num-workers 8` (the default is 2)" in said["megatron"]
    assert "`config.dataloader.num_workers = 4`" in said["torchtitan"]


def test_a_remedy_that_is_on_is_not_recommended() -> None:
    workers = advice(asked_for()[STARVED].remedies, Setting("hf", on=frozenset({"workers"})), "")
    assert "has workers already" in workers and "default is 0" not in workers
    launching = Setting("pytorch", on=frozenset({"compiled", "graphs", "fused optimizer"}))
    said = advice(asked_for()["launch-bound"].remedies, launching, "")
    assert "compile" not in said and "fused" not in said
    graphs = Setting("hf", on=frozenset({"compiled", "graphs", "fused optimizer"}))
    assert "fused" not in advice(asked_for()["launch-bound"].remedies, graphs, "")
    # Of a Trainer whose recording shows an optimizer that is not fused: by its default or not, it can be.
    loops = Setting("hf", on=frozenset({"compiled", "graphs"}))
    assert '`optim="adamw_torch_fused"`' in advice(asked_for()["launch-bound"].remedies, loops, "")


def test_what_a_recording_shows_to_be_on_is_read_from_it(tmp_path: Path) -> None:
    tables = {
        "ranks": [{}],
        "ranges": [row("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__")],
        "operators": [row("aten::_fused_adamw_"), row("CompiledFunction")],
        "launches": [row("cudaGraphLaunch")],
    }
    assert setting(made(tmp_path, tables)).on == {"workers", "fused optimizer", "compiled", "graphs"}
    alone = made(tmp_path / "alone", {"ranks": [{}], "ranges": [row(LOADER)]})
    assert setting(alone).on == frozenset()
    several = [row(LOADER) | {"end": 90}, *[{**each, "rank": 1} for each in tables["ranges"]]]
    mixed = made(tmp_path / "mixed", {"ranks": [{}, {"rank": 1}], "ranges": several})
    assert setting(mixed).on == frozenset()  # the loader that takes long has no workers


def test_sharded_jobs_are_not_told_of_buckets() -> None:
    fsdp = advice(asked_for()["communication-exposed"].remedies, Setting(sharding="fsdp"), "")
    assert "bucket" not in fsdp and "set_modules_to_forward_prefetch" in fsdp
    assert "prefetch" not in advice(
        asked_for()["communication-exposed"].remedies, Setting(sharding="ddp"), ""
    )
    hf = advice(asked_for()["communication-exposed"].remedies, Setting("hf", sharding="fsdp"), "")
    assert "forward_prefetch=" not in hf  # Accelerate raises on it


def test_every_cause_that_can_be_removed_has_a_remedy_in_every_framework() -> None:
    """Those without one have advice of their own: look at the calls, look at the names."""
    own = {"graph-capture-inside-step", "long-api-calls", "host-busy-elsewhere"}
    for account in IDLE:
        loss = account.loss
        if loss and loss.removable and loss.finding not in own and account.name != "idle.initialisation":
            for framework in FRAMEWORKS:
                assert advice(asked_for()[loss.finding].remedies, Setting(framework), "").endswith(
                    (".", "`).")
                ), loss.finding


@pytest.mark.parametrize("framework", [*FRAMEWORKS])
def test_what_must_not_be_advised_is_not(framework: str) -> None:
    for finding in asked_for():
        said = advice(asked_for()[finding].remedies, Setting(framework), "")
        for never in (
            "NCCL_ALGO",
            "CUDA_LAUNCH_BLOCKING",
            "set_to_none",
            "group_by_length=True)",
            "torch.cuda.amp",
        ):
            assert never not in said
        if "PYTORCH_CUDA_ALLOC_CONF" in said:
            assert "PYTORCH_ALLOC_CONF=" in said


def test_the_page_tells_the_remedy_of_the_jobs_framework(tmp_path: Path) -> None:
    tables = Job(transfer=0).run([[Work(loads=30)]] * 4)
    tables["frames"] = [row("transformers/trainer.py(2100): train")]
    page = lostflops.why(made(tmp_path, tables))
    assert page.findings[0].next.startswith("Give the loader worker processes: `dataloader_num_workers=4`")
    assert setting(made(tmp_path / "b", tables)).framework == "hf"


def test_only_what_stands_in_deepspeeds_json_is_told_beside_another_framework() -> None:
    job = Setting("hf", deepspeed=True)
    assert advice(["log-less"], job, "").endswith('In DeepSpeed\'s JSON: a larger `"steps_per_print"`.')
    assert "DeepSpeed" not in advice(["stage-balance"], job, "otherwise"), "PipelineModule is code"
    for remedy in REMEDIES.values():
        assert not remedy.is_in_deepspeed_json or '"' in remedy.changes["deepspeed"].says, remedy.name


@pytest.mark.parametrize("name", ["loader-workers", "pinned-copies"])
def test_what_to_edit_of_a_loader_leaves_its_batch_size(name: str) -> None:
    """`tune` prints it below "change the job itself": a number of ours would be another training."""
    told = [text for one in REMEDIES[name].changes.values() for text in (s.text for s in one.snippets)]
    assert any("DataLoader(" in text for text in told)
    assert not any(re.search(r"batch_size=\d", text) for text in told)
    assert "GPU" not in REMEDIES["loader-workers"].does  # the job may have none
