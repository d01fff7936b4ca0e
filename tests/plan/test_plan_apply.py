"""The settings that a plan prints are ones that the frameworks' own parsers take."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lostflops.plan.train import apply, exchanged
from lostflops.plan.train.job import Training
from lostflops.plan.train.layout import Layout, Sharding
from lostflops.plan.train.static_memory import OPTIMIZERS, Lora
from planned import job


def of(framework: str, asked: Training) -> apply.FrameworkSettings:
    return next(found for found in apply.settings(asked) if found.framework == framework)


def on_eight(sharding: Sharding, **more: object) -> Training:
    return replace(job(layout=Layout(gpus=8, sharding=sharding)), **more)  # pyright: ignore[reportArgumentType]


JOBS = {
    "plain": on_eight("none", checkpointing="full", microbatch=2, microbatches=3),
    "ZeRO-2": on_eight("zero-2"),
    "ZeRO-3, optimizer away": on_eight("zero-3", optimizer_away=True, checkpointing="full"),
    "FSDP, 8-bit": on_eight("zero-3", optimizer=OPTIMIZERS["adam-8bit"], checkpointing="full"),
    "FSDP, Adafactor, compiled": on_eight("fsdp2", optimizer=OPTIMIZERS["factored"], kernels="fused"),
}


@pytest.mark.parametrize("name", JOBS)
def test_the_trainer_takes_its_settings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers: Any = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    found = of("HF Trainer", JOBS[name])
    monkeypatch.chdir(tmp_path)
    for file, content in found.files.items():
        Path(file).write_text(json.dumps(content))
    words = shlex.split(found.command)
    words = words[words.index(apply.SCRIPT) + 1 :]
    if "--deepspeed" in words:  # building the plugin needs a compiler; the file is checked below
        at = words.index("--deepspeed")
        words = words[:at] + words[at + 2 :]
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    (read,) = parser.parse_args_into_dataclasses(["--output_dir", str(tmp_path), "--use_cpu", *words])
    assert read.per_device_train_batch_size == JOBS[name].microbatch
    assert read.gradient_accumulation_steps == JOBS[name].microbatches
    # With bf16 Accelerate makes what FSDP2 trains fp32: weights planned in 16 bits are loaded and left so.
    assert read.bf16 == ("FSDP" not in name)
    full = JOBS[name].checkpointing == "full"
    if "fsdp.json" in found.files:
        assert bool(read.fsdp_config.get("activation_checkpointing")) == full
    else:
        assert read.activation_checkpointing == full


@pytest.mark.parametrize("name", JOBS)
def test_accelerate_takes_its_settings(name: str) -> None:
    pytest.importorskip("torch")
    launch: Any = pytest.importorskip("accelerate.commands.launch")
    words = shlex.split(of("Accelerate", JOBS[name]).command)[2:]
    read = launch.launch_command_parser().parse_args(words)
    assert (read.num_processes, read.training_script) == (8, apply.SCRIPT)
    assert bool(read.use_fsdp) == (name.startswith("FSDP"))
    assert bool(read.use_deepspeed) == name.startswith("ZeRO")
    if read.use_deepspeed:
        assert read.zero_stage == JOBS[name].layout.stage
    assert (read.offload_optimizer_device == "cpu") == JOBS[name].optimizer_away


@pytest.mark.parametrize("name", [name for name in JOBS if name.startswith("ZeRO")])
def test_deepspeed_takes_its_configuration(name: str) -> None:
    pytest.importorskip("torch")
    zero: Any = pytest.importorskip("deepspeed.runtime.zero.config")
    config = of("DeepSpeed", JOBS[name]).files["ds.json"]
    read = zero.get_zero_config(config)
    assert int(read.stage) == JOBS[name].layout.stage
    away = read.offload_optimizer
    device = getattr(away, "device", None)
    assert (getattr(device, "value", device) == "cpu") == JOBS[name].optimizer_away


def test_several_nodes_are_told_where_to_meet() -> None:
    far = replace(job(layout=Layout(gpus=64, sharding="zero-3")), microbatches=4)
    assert of("HF Trainer", far).command.startswith(
        'torchrun --nnodes 8 --rdzv-backend c10d --rdzv-endpoint "$HEAD:29500" --nproc-per-node 8 train.py'
    )
    assert "run it on each of the 8 nodes" in of("HF Trainer", far).besides[0]
    launch: Any = pytest.importorskip("accelerate.commands.launch")
    pytest.importorskip("torch")
    words = shlex.split(of("Accelerate", far).command.replace("$NODE", "3"))[2:]
    read = launch.launch_command_parser().parse_args(words)
    assert (read.num_machines, read.machine_rank, read.main_process_ip) == (8, 3, "$HEAD")
    assert "--hostfile hostfile --num_nodes 8 --num_gpus 8" in of("DeepSpeed", far).command
    assert "slots=8" in of("DeepSpeed", far).besides[0]
    assert "$HEAD" not in of("HF Trainer", on_eight("zero-3")).command


@pytest.mark.parametrize(
    ("gpu", "gpus", "nodes"),
    [("h100", 20, 4), ("a10", 7, 7), ("gb200", 72, 18), ("h100", 12, 2), ("h100", 7, 1)],
)
def test_as_many_processes_start_as_there_are_gpus(gpu: str, gpus: int, nodes: int) -> None:
    """Every host starts as many, and none more than it has: a rack of GB200 is 18 hosts of four."""
    asked = job(gpu=gpu, layout=Layout(gpus=gpus, sharding="zero-3"))
    words = of("HF Trainer", asked).command.split()
    each = int(words[words.index("--nproc-per-node") + 1])
    assert each * nodes == gpus and each <= asked.gpu.on_host
    assert ("--nnodes" in words) == (nodes > 1) and (nodes == 1 or f"--nnodes {nodes} " in " ".join(words))
    assert f"--num_processes {gpus} " in of("Accelerate", asked).command
    assert f"--num_gpus {each} " in of("DeepSpeed", asked).command


def test_deepspeed_offloads_nothing_without_zero() -> None:
    """Stage 0 makes no ZeRO optimizer, and what `offload_optimizer` says is then not read."""
    asked = job(optimizer_away=True)
    assert of("DeepSpeed", asked).files["ds.json"]["zero_optimization"]["stage"] == 1
    assert of("HF Trainer", asked).files["ds.json"]["zero_optimization"]["stage"] == 1
    assert "--zero_stage 1 " in of("Accelerate", asked).command


def frameworks(**more: Any) -> list[str]:
    sizes = {"gpus": 16, "pipeline": 4, "sharding": "zero-1"} | more
    count = sizes.pop("microbatches")
    asked = replace(job(layout=Layout(**sizes)), microbatches=count)  # pyright: ignore[reportArgumentType]
    return [found.framework for found in apply.settings(asked)]


def test_frameworks_that_refuse_the_microbatches_are_left_out() -> None:
    """PyTorch's 1F1B takes no fewer than stages; Megatron weaves whole groups, PyTorch even rounds."""
    titan, megatron = "torchtitan", "Megatron-LM"
    assert frameworks(microbatches=3, sharding="fsdp2") == []
    assert frameworks(microbatches=4, sharding="fsdp2") == [titan]
    assert frameworks(microbatches=3) == [megatron]
    woven = {"schedule": "interleaved", "chunks": 2}
    assert frameworks(microbatches=8, **woven) == [megatron]
    assert frameworks(microbatches=6, **woven) == []
    assert frameworks(microbatches=6, sharding="fsdp2", **woven) == [titan]
    assert frameworks(microbatches=9, sharding="fsdp2", **woven) == []
    assert frameworks(microbatches=7, sharding="fsdp2", schedule="dualpipe") == []
    assert frameworks(microbatches=8, sharding="fsdp2", schedule="dualpipe") == [titan]


def test_an_interleaved_pipeline_has_pieces_in_every_framework() -> None:
    """Of 32 layers torchtitan makes 34 with embedding and head: 12 pieces of three, 17 of two, none of 16."""
    woven = Layout(gpus=4, pipeline=4, schedule="interleaved", chunks=3, sharding="fsdp2")
    three = replace(job(layout=woven), microbatches=4)
    assert "--parallelism.pipeline_parallel_layers_per_stage=3" in of("torchtitan", three).command
    assert not apply.settings(replace(three, layout=replace(woven, chunks=4)))
    two = of("torchtitan", replace(three, layout=replace(woven, chunks=2))).command
    assert "schedule=Interleaved1F1B" in two and "layers_per_stage" not in two
    assert "schedule=1F1B" in of("torchtitan", replace(three, layout=replace(woven, chunks=1))).command


def test_accumulation_by_accelerate_is_the_scripts_own() -> None:
    said = of("Accelerate", on_eight("fsdp2", optimizer=OPTIMIZERS["adam-8bit"], microbatches=4)).besides
    assert "make it with Accelerator(gradient_accumulation_steps=4)" in said


def test_a_fused_loss_is_a_flag_of_the_trainer_alone() -> None:
    asked = on_eight("zero-3", fused_loss=True)
    assert "--use_liger_kernel" in of("HF Trainer", asked).command
    for framework in ("Accelerate", "DeepSpeed", "torchtitan"):
        said = of(framework, asked)
        assert "liger_kernel" not in said.command and "Trainer" not in " ".join(said.besides)
        assert any("LigerFusedLinearCrossEntropyLoss" in more for more in said.besides)


def test_four_bit_weights_are_multiplied_in_16_bits() -> None:
    four = replace(job(layout=Layout()), lora=Lora(base_bits=4))
    (loaded,) = (more for more in of("HF Trainer", four).besides if more.startswith("load"))
    assert 'bnb_4bit_quant_type="nf4"' in loaded and "bnb_4bit_compute_dtype=torch.bfloat16" in loaded
    sixteen = of("HF Trainer", replace(four, lora=Lora()))
    assert "load the model with dtype=torch.bfloat16" in sixteen.besides


def test_what_is_kept_is_named_and_torchtitan_keeps_it_by_itself() -> None:
    asked = on_eight("fsdp2", checkpointing="alternate")
    (call,) = (more for more in of("HF Trainer", asked).besides if "checkpoint(" in more)
    assert "keep=('attention', 'q_proj', 'v_proj', 'gate_proj', 'down_proj')" in call
    assert not any("optimize.checkpoint" in more for more in of("torchtitan", asked).besides)
    assert "--activation_checkpoint.selective_ac_option=op" in of("torchtitan", asked).command


def test_a_framework_without_the_layout_is_left_out() -> None:
    layout = Layout(gpus=128, tensor=8, pipeline=16, sharding="fsdp2")
    asked = job("llama-3.1-405b", layout=layout, microbatches=16)
    assert [found.framework for found in apply.settings(asked)] == ["torchtitan"]
    command = of("torchtitan", asked).command
    assert "--parallelism.tensor_parallel_degree=8" in command
    assert "--parallelism.pipeline_parallel_degree=16" in command
    assert "--parallelism.pipeline_parallel_schedule=1F1B" in command


def test_the_precision_is_the_planned_one() -> None:
    """Autocast and FSDP2 keep fp32 weights as they were loaded; without master weights nothing is fp32."""
    for optimizer, sharding, loaded in (
        ("adam", "none", "float32"), ("adam-fp32", "none", "float32"), ("adam-fp32", "fsdp2", "float32"),
        ("adam", "fsdp2", "float32"), ("adam-16bit", "none", "bfloat16"), ("adam-8bit", "fsdp2", "bfloat16"),
    ):  # fmt: skip
        asked = on_eight(sharding, optimizer=OPTIMIZERS[optimizer])  # pyright: ignore[reportArgumentType]
        for framework in ("HF Trainer", "Accelerate"):
            assert f"load the model with dtype=torch.{loaded}" in of(framework, asked).besides
    bare = on_eight("none")
    said = "its gradients are then in fp32: plan with `--optimizer adam-fp32-gradients`"
    assert said in of("HF Trainer", bare).besides and said not in of("DeepSpeed", bare).besides
    pure = on_eight("fsdp2", optimizer=OPTIMIZERS["adam-16bit"])
    assert "--bf16" not in of("HF Trainer", pure).command
    assert "--mixed_precision no" in of("Accelerate", pure).command


def test_deepspeed_is_told_what_the_times_take_for_granted() -> None:
    """It overlaps nothing below stage 3 by default, and fetches less than a layer ahead in it."""
    pytest.importorskip("torch")
    config: Any = pytest.importorskip("deepspeed.runtime.zero.config")
    layer = 218_112_000  # of Llama 3 8B
    for sharding, stage in (("zero-1", 1), ("zero-2", 2), ("zero-3", 3)):
        file = of("DeepSpeed", on_eight(sharding)).files["ds.json"]  # pyright: ignore[reportArgumentType]
        read = config.get_zero_config(file)
        assert (int(read.stage), read.overlap_comm) == (stage, True)
        if stage == 3:
            assert (read.prefetch_bucket_size, read.max_live_parameters) == (layer, 2 * layer)
        else:
            assert read.reduce_bucket_size == read.allgather_bucket_size == 500_000_000
        assert file["data_types"] == {"grad_accum_dtype": "bf16"}
    # It mixes 16-bit weights with fp32 gradients under ZeRO alone.
    alone = apply.settings(on_eight("none", optimizer=OPTIMIZERS["adam-fp32-gradients"]))
    assert "DeepSpeed" not in [found.framework for found in alone]
    wide = on_eight("zero-2", optimizer=OPTIMIZERS["adam-fp32-gradients"])
    assert of("DeepSpeed", wide).files["ds.json"]["communication_data_type"] == "fp32"


def test_only_frameworks_that_have_the_model_are_named() -> None:
    """torchtitan has no T5, BERT or Qwen2, and its Llama ties no embeddings; Megatron no windows."""
    for model in ("flan-t5-xl", "bert-base", "qwen2.5-7b", "gpt-oss-20b", "llama-3.2-1b", "gemma-2b"):
        asked = job(model, layout=Layout(gpus=8, sharding="fsdp2"), sequence=512)
        assert "torchtitan" not in [found.framework for found in apply.settings(asked)]
    for model in ("llama-3-8b", "qwen3-8b", "deepseek-v3", "llama-4-scout"):
        asked = job(model, layout=Layout(gpus=8, sharding="fsdp2"))
        assert "torchtitan" in [found.framework for found in apply.settings(asked)]
    for model, has in (
        ("gemma-2b", False),
        ("gemma-2-9b", False),
        ("llama-3-8b", True),
        ("gpt-oss-20b", False),
    ):
        asked = job(model, layout=Layout(gpus=8, tensor=2))
        assert ("Megatron-LM" in [found.framework for found in apply.settings(asked)]) == has


def test_sharded_four_bit_weights_are_stored_as_what_is_computed_in() -> None:
    """FSDP leaves bytes whole on every rank: only floating types are sharded."""
    four = on_eight("zero-3", lora=Lora(base_bits=4))
    (loaded,) = (more for more in of("HF Trainer", four).besides if more.startswith("load"))
    assert "bnb_4bit_quant_storage=torch.bfloat16" in loaded
    alone = job(lora=Lora(base_bits=4))
    assert not any("quant_storage" in more for more in of("HF Trainer", alone).besides)
    experts = job("qwen3-30b-a3b", lora=Lora(base_bits=4))
    assert any(
        more.startswith("routed experts stay in 16 bits") for more in of("HF Trainer", experts).besides
    )


def test_deepspeed_does_not_run_what_it_would_add_master_weights_to() -> None:
    frameworks = [found.framework for found in apply.settings(JOBS["FSDP, 8-bit"])]
    assert "DeepSpeed" not in frameworks
    assert "load the model with dtype=torch.bfloat16" in of("HF Trainer", JOBS["FSDP, 8-bit"]).besides


def test_transformers_is_told_which_attention_was_planned() -> None:
    """It runs Gemma 2 and gpt-oss without a kernel by itself, and all others with PyTorch's."""
    for model, attention, says in (
        ("gpt-oss-20b", "flash", 'load the model with attn_implementation="flex_attention"'),
        ("gemma-2-2b", "flash", 'load the model with attn_implementation="flash_attention_2"'),
        ("gpt-oss-20b", "scores", 'load the model with attn_implementation="eager"'),
        ("llama-3-8b", "scores", 'load the model with attn_implementation="eager"'),
        ("llama-3-8b", "flash", None),
    ):
        for found in apply.settings(job(model, attention=attention)):
            told = [line for line in found.besides if "attn_implementation" in line]
            assert told == ([says] if says else []) or found.framework == "torchtitan"


def test_llama_4_in_transformers_sends_tokens_to_all_experts() -> None:
    """Of 16 experts a token has one: torchtitan, and whoever splits the model, computes that alone."""
    alone = job("llama-4-scout", gpu="b300", layout=Layout(8, sharding="fsdp2"), sequence=512)
    split = replace(alone, layout=Layout(8, expert=8, sharding="fsdp2"))
    h, width = 5120, 8192
    every, one = (exchanged.work(asked, 0).linear for asked in (alone, split))
    assert every - one == 15 * 2 * 512 * 3 * h * width
    (titan,) = (found for found in apply.settings(alone) if found.framework == "torchtitan")
    assert any("each token in all experts" in line for line in titan.besides)
