"""The framework of a job is told by what the job leaves, and unknown where nothing tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lostflops import run_folder
from lostflops.frameworks import command_line, setting
from lostflops.remedies import FRAMEWORKS, UNKNOWN
from made_runs import LOADER, THREAD, made


def row(name: str) -> dict[str, Any]:
    return {"start": 1, "end": 9, "thread": THREAD, "name": name}


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("accelerate launch --num_processes 8 train.py", "accelerate"),
        ("/opt/bin/accelerate launch train.py", "accelerate"),
        ("python -m accelerate.commands.launch train.py", "accelerate"),
        ("accelerate-launch train.py", "accelerate"),
        ("deepspeed train.py --deepspeed_config ds.json", "deepspeed"),
        ("torchrun train.py --deepspeed_config=ds.json", "deepspeed"),
        ("torchrun --nproc-per-node 8 pretrain_gpt.py --bf16", "megatron"),
        ("torchrun train.py --tensor-model-parallel-size 4", "megatron"),
        ("torchrun -m torchtitan.train --module llama3", "torchtitan"),
        ("python -m megatron.bridge.training.run", "bridge"),
        ("nemo llm pretrain --factory llama3_8b", "bridge"),
        ("fabric run train.py", "lightning"),
        ("torchrun train.py --bf16 True", ""),
        ("python deepspeed.py", ""),
        ("python train.py --notes accelerate", ""),
        ("python train.py --output nemotron", ""),
    ],
)
def test_a_command_line_tells_its_framework(command: str, told: str, tmp_path: Path) -> None:
    (tmp_path / run_folder.RECORDING).write_text(
        json.dumps({"kind": "start", "command": command.split()}) + "\n"
    )
    assert command_line.framework([tmp_path]) == told
    assert not told or told in FRAMEWORKS


@pytest.mark.parametrize(
    "text", ["", "no json", "[1, 2]", '{"command": 7}', '{"command": [1, null]}', "null", "\x00\xff"]
)
def test_a_run_folder_that_holds_nonsense_tells_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / run_folder.RECORDING).write_text(text)
    assert command_line.framework([tmp_path, tmp_path / "absent"]) == ""


def test_what_the_job_did_comes_before_how_it_was_started(tmp_path: Path) -> None:
    run = made(tmp_path, {"ranks": [{}], "frames": [row("transformers/trainer.py(2100): train")]})
    (tmp_path / run_folder.RECORDING).write_text(json.dumps({"command": ["accelerate", "launch", "a.py"]}))
    run.given = (str(tmp_path),)
    found = setting(run)
    assert (found.framework, found.told_by) == ("hf", "'transformers/trainer.py: train' is in the recording")


def test_the_command_line_tells_where_nothing_else_does(tmp_path: Path) -> None:
    run = made(tmp_path, {"ranks": [{"versions": "torch 2.13.0"}], "ranges": [row(LOADER)]})
    (tmp_path / run_folder.RECORDING).write_text(json.dumps({"command": ["accelerate", "launch", "a.py"]}))
    run.given = (str(tmp_path),)
    assert (setting(run).framework, setting(run).told_by) == ("accelerate", "its command line names it")


def test_objects_that_the_recorder_saw_tell(tmp_path: Path) -> None:
    run = made(tmp_path, {"ranks": [{"frameworks": "deepspeed hf"}], "ranges": [row(LOADER)]})
    found = setting(run)
    assert (found.framework, found.deepspeed) == ("hf", True)
    assert found.told_by == "`lostflops record` saw it at work"


@pytest.mark.parametrize(
    ("versions", "told"),
    [
        ("torch 2.13.0, torchtitan 0.3.0", "torchtitan"),
        ("torch 2.13.0, lightning 2.6.6", "lightning"),
        ("torch 2.13.0, transformers 5.23.0, accelerate 1.15.0", "pytorch"),  # for its models alone
        ("torch 2.13.0", "pytorch"),
        ("cuda runtime 12.8", UNKNOWN),
        (None, UNKNOWN),
    ],
)
def test_imported_packages_tell_where_nothing_else_does(
    versions: str | None, told: str, tmp_path: Path
) -> None:
    run = made(tmp_path, {"ranks": [{"versions": versions}], "ranges": [row(LOADER)]})
    assert setting(run).framework == told


def test_another_framework_is_not_plain_pytorch(tmp_path: Path) -> None:
    frames = [row("/site-packages/vllm/worker/worker.py(88): execute_model"), row("serve.py(3): main")]
    found = setting(made(tmp_path, {"ranks": [{"versions": "torch 2.13.0"}], "frames": frames}))
    assert found.framework == UNKNOWN and "vllm/worker/worker.py" in found.told_by


def test_functions_of_no_framework_are_those_of_plain_pytorch(tmp_path: Path) -> None:
    frames = [row("train.py(16): main"), row("torch/nn/modules/module.py(1500): _call_impl")]
    assert setting(made(tmp_path / "a", {"ranks": [{}], "frames": frames})).framework == "pytorch"
    ranges = [row("ProfilerStep#4"), row("DistributedDataParallel.forward")]
    found = setting(made(tmp_path / "b", {"ranks": [{}], "ranges": ranges}))
    assert (found.framework, found.sharding, found.told_by) == (UNKNOWN, "ddp", "")
