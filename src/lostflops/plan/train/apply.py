"""A planned job as the settings of a framework: HF Trainer, Accelerate, DeepSpeed, torchtitan.

Each way of setting it is the words of a command, the files that the command reads, and what the framework
has no setting for. A framework that cannot run the job at all is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .job import Training

SCRIPT = "train.py"  # the user's own
TRAINER_OPTIMIZERS = {"adam-8bit": "adamw_torch_8bit", "factored": "adafactor"}
ONLY_TITAN = "tensor and pipeline parallelism need torchtitan or Megatron"


@dataclass(frozen=True)
class Settings:
    """How one framework is told: a command, files by name, and what has to be done besides."""

    framework: str
    command: str
    files: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    besides: tuple[str, ...] = ()


def settings(training: Training) -> tuple[Settings, ...]:
    """Of every framework that has the layout of the job."""
    layout = training.layout
    found: list[Settings] = []
    if layout.tensor * layout.pipeline * layout.context * layout.expert == 1:
        found += [_trainer(training), _accelerate(training)]
        if not _by_fsdp(training):
            found.append(_deepspeed(training))
    if training.lora is None and training.shape.gated and not training.optimizer_away:
        found.append(_torchtitan(training))
    return tuple(found)


def _by_fsdp(training: Training) -> bool:
    """Whether FSDP runs it: DeepSpeed keeps fp32 master weights, whatever optimizer comes behind them."""
    t = training
    if t.optimizer_away:
        return False
    return t.layout.sharding == "fsdp2" or (t.layout.stage > 0 and not t.optimizer.master)


def _launch(training: Training) -> str:
    t = training.layout
    nodes = -(-t.gpus // training.gpu.node)
    each = t.gpus // nodes
    more = f"--nnodes {nodes} " if nodes > 1 else ""
    return f"torchrun {more}--nproc-per-node {each}"


def _wrapped(training: Training) -> dict[str, Any]:
    """FSDP2 as `fsdp_config` names it."""
    config: dict[str, Any] = {
        "version": 2,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "reshard_after_forward": training.layout.stage >= 3,
    }
    if training.checkpointing == "full":
        config["activation_checkpointing"] = True
    return config


def _trainer(training: Training) -> Settings:
    t = training
    words = [
        _launch(t), SCRIPT, f"--per_device_train_batch_size {t.microbatch}",
        f"--gradient_accumulation_steps {t.microbatches}", "--bf16",
    ]  # fmt: skip
    files: dict[str, dict[str, Any]] = {}
    if t.optimizer.name in TRAINER_OPTIMIZERS:
        words.append(f"--optim {TRAINER_OPTIMIZERS[t.optimizer.name]}")
    if t.kernels == "fused":
        words.append("--torch_compile")
    if _by_fsdp(t):
        words += ["--fsdp full_shard", "--fsdp_config fsdp.json"]
        files["fsdp.json"] = _wrapped(t)
    else:
        if t.checkpointing == "full":
            words.append("--gradient_checkpointing")
        if t.layout.stage or t.optimizer_away:
            words.append("--deepspeed ds.json")
            files["ds.json"] = _zero(t)
    return Settings("HF Trainer", " ".join(words), files, tuple(_besides(t)))


def _accelerate(training: Training) -> Settings:
    t = training
    words = ["accelerate launch", f"--num_processes {t.layout.gpus}", "--mixed_precision bf16"]
    nodes = -(-t.layout.gpus // t.gpu.node)
    if nodes > 1:
        words.append(f"--num_machines {nodes}")
    if _by_fsdp(t):
        words += ["--use_fsdp", "--fsdp_version 2", "--fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP"]
        words.append(f"--fsdp_reshard_after_forward {str(t.layout.stage >= 3).lower()}")
        if t.checkpointing == "full":
            words.append("--fsdp_activation_checkpointing true")
    elif t.layout.stage or t.optimizer_away:
        words += ["--use_deepspeed", f"--zero_stage {t.layout.stage}"]
        words.append(f"--gradient_accumulation_steps {t.microbatches}")
        if t.optimizer_away:
            words.append("--offload_optimizer_device cpu")
    elif t.layout.gpus > 1:
        words.append("--multi_gpu")
    if t.kernels == "fused":
        words.append("--dynamo_backend inductor")
    more = [] if t.checkpointing != "full" or _by_fsdp(t) else ["call model.gradient_checkpointing_enable()"]
    if t.optimizer.name in TRAINER_OPTIMIZERS:
        more.append(
            {
                "adam-8bit": "optimizer: torchao.optim.AdamW8bit",
                "factored": "optimizer: transformers.Adafactor",
            }[t.optimizer.name]
        )
    return Settings("Accelerate", " ".join([*words, SCRIPT]), {}, (*more, *_besides(t)))


def _zero(training: Training) -> dict[str, Any]:
    """What DeepSpeed reads; `auto` is the Trainer's own setting."""
    t = training
    zero: dict[str, Any] = {"stage": t.layout.stage}
    if t.optimizer_away:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return {
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "train_micro_batch_size_per_gpu": t.microbatch,
        "gradient_accumulation_steps": t.microbatches,
    }


def _deepspeed(training: Training) -> Settings:
    t = training
    nodes = -(-t.layout.gpus // t.gpu.node)
    where = f"--num_nodes {nodes} " if nodes > 1 else ""
    config = _zero(t)
    kind = "Adam" if t.optimizer_away else "AdamW"
    more: list[str] = []
    if t.optimizer.name in TRAINER_OPTIMIZERS:
        config["zero_allow_untested_optimizer"] = True
        more.append("pass your own optimizer to deepspeed.initialize")
    else:
        config["optimizer"] = {"type": kind, "params": {"lr": 1e-5}}
        more.append("lr is an example: set your own")
    if t.checkpointing == "full":
        more.append("call model.gradient_checkpointing_enable()")
    each = t.layout.gpus // nodes
    command = f"deepspeed {where}--num_gpus {each} {SCRIPT} --deepspeed --deepspeed_config ds.json"
    return Settings("DeepSpeed", command, {"ds.json": config}, (*more, *_besides(t)))


def _torchtitan(training: Training) -> Settings:
    t, here = training, training.layout
    sharded = here.data if here.stage >= 3 else 1
    flags: dict[str, Any] = {
        "training.local_batch_size": t.microbatch * t.microbatches,
        "training.seq_len": t.sequence,
        "parallelism.data_parallel_shard_degree": sharded,
        "parallelism.data_parallel_replicate_degree": here.data // sharded,
    }
    for name in ("tensor", "pipeline", "context", "expert"):
        if (size := getattr(here, name)) > 1:
            flags[f"parallelism.{name}_parallel_degree"] = size
    if here.pipeline > 1:
        names = {
            "1f1b": "1F1B",
            "gpipe": "GPipe",
            "interleaved": "Interleaved1F1B",
            "dualpipe": "ZBVZeroBubble",
        }
        flags["parallelism.pipeline_parallel_schedule"] = names[here.schedule]
        flags["parallelism.pipeline_parallel_microbatch_size"] = t.microbatch
    kinds = {"none": "none", "full": "full", "alternate": "selective", "selective": "selective"}
    flags["activation_checkpoint.mode"] = kinds[t.checkpointing]
    if t.checkpointing in ("alternate", "selective"):
        flags["activation_checkpoint.selective_ac_option"] = "op"
    more: list[str] = []
    if t.checkpointing == "selective":
        more.append(
            "its selective mode also keeps every second matrix product: plan `--checkpoint alternate`"
        )
    if t.microbatches > 1 and here.pipeline == 1:
        flags["training.local_batch_size"] = t.microbatch
        flags["training.global_batch_size"] = t.microbatch * t.microbatches * here.data
    if t.kernels == "fused":
        flags["compile.enable"] = ""
    if here.stage in (1, 2):
        more.append("torchtitan shards weights too: it has no ZeRO stage 1 or 2")
    if t.optimizer.name in TRAINER_OPTIMIZERS:
        more.append(f"no setting for the optimizer '{t.optimizer.name}': plan with `--optimizer adam`")
    words = [f"--{name}" if value == "" else f"--{name}={value}" for name, value in flags.items()]
    return Settings("torchtitan", " ".join(["./run_train.sh", *words]), {}, (*more, *_calls(t)))


def _besides(training: Training) -> Iterator[str]:
    """What no launcher sets: the model's precision, its adapters, and remedies that are a call."""
    t = training
    if t.lora:
        if t.lora.base_bits == 4:
            yield (
                'load the model with BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", '
                f"bnb_4bit_use_double_quant={t.lora.double_quantised})"
            )
        targets = ", ".join(f'"{name}_proj"' for name in t.lora.targets)
        yield f"wrap the model with peft.LoraConfig(r={t.lora.rank}, target_modules=[{targets}])"
    elif t.optimizer.weights == 2 and not t.optimizer.master:
        yield "load the model with dtype=torch.bfloat16"
    yield from _calls(t)


def _calls(training: Training) -> Iterator[str]:
    t = training
    if t.checkpointing in ("selective", "alternate"):
        yield "call lostflops.optimize.checkpoint(model), which keeps attention's outputs"
    if t.offloaded:
        yield "train inside `with lostflops.optimize.offload(model):`"
    if t.streamed:
        yield "train inside `with lostflops.optimize.stream_frozen(model):`"
    if t.fused_loss:
        yield "use a fused loss: `--use_liger_kernel` in the Trainer"
    if t.fp8:
        yield "call lostflops.optimize.to_fp8(model)"


def lines(training: Training) -> Iterator[str]:
    """The settings for a terminal."""
    for found in settings(training):
        yield f"  {found.framework}"
        for name, content in found.files.items():
            yield f"    echo '{json.dumps(content)}' > {name}"
        yield f"    {found.command}"
        for more in found.besides:
            yield f"    # {more}"
