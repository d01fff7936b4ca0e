"""A planned job as the settings of a framework: HF Trainer, Accelerate, DeepSpeed, torchtitan, Megatron-LM.

Each way of setting it is the words of a command, the files that the command reads, and what the framework
has no setting for. A framework that cannot run the job at all is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lostflops.plan.modules import modules
from lostflops.plan.shape import Shape, elements

from . import apply_megatron
from .activation_memory import alternate
from .job import Training
from .static_memory import BUCKET, stage3_bucket

SCRIPT = "train.py"  # the user's own
TRAINER_OPTIMIZERS = {"adam-8bit": "adamw_torch_8bit", "factored": "adafactor"}
HEAD = '"$HEAD:29500"'  # where the processes of several nodes meet
ON_EACH_NODE = "run it on each of the {nodes} nodes, with HEAD set to the first one's name"
CALL_CHECKPOINTING = (
    "call model.activation_checkpointing_enable(); before transformers 5.23, gradient_checkpointing_enable()"
)
FUSED_LOSS = "use a fused loss, such as LigerFusedLinearCrossEntropyLoss of liger-kernel"
# Families that torchtitan has a model of; its Llama ties no embeddings, and DeepSeek-V2 is a size of its V3.
TITAN = ("llama", "llama4_text", "qwen3", "qwen3_moe", "deepseek_v2", "deepseek_v3")
# Families whose attention transformers runs without a kernel unless it is told, and what to tell it.
TOLD = {"gemma2": "flash_attention_2", "gpt_oss": "flex_attention"}
BF16, FP32 = "load the model with dtype=torch.bfloat16", "load the model with dtype=torch.float32"

FRAMEWORKS = ("HF Trainer", "Accelerate", "DeepSpeed", "torchtitan", "Megatron-LM")


@dataclass(frozen=True)
class FrameworkSettings:
    """How one framework is told: a command, files by name, and what has to be done besides."""

    framework: str
    command: str
    files: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    besides: tuple[str, ...] = ()


def settings(training: Training) -> tuple[FrameworkSettings, ...]:
    """Of every framework that has the layout of the job."""
    layout = training.layout
    found: list[FrameworkSettings] = []
    if not layout.splits:
        found += [_trainer(training), _accelerate(training)]
        # DeepSpeed keeps fp32 master weights beside whatever it trains in 16 bits.
        mixed = training.optimizer.gradients == 4 and _zero_stage(training) == 0  # which it does not have
        if not (_by_fsdp(training) or mixed) and (training.optimizer.master or training.lora):
            found.append(_deepspeed(training))
    if _has_titan(training) and _pytorch_schedules(training):
        found.append(_torchtitan(training))
    if apply_megatron.has(training):
        command, besides = apply_megatron.pretrain(training)
        launched = f"{_launch(training)} pretrain_gpt.py {command}"
        found.append(FrameworkSettings("Megatron-LM", launched, {}, (*_on_each_node(training), *besides)))
    return tuple(found)


def _has_titan(training: Training) -> bool:
    """Whether torchtitan has the model, and trains all of it with the optimizer where the model is."""
    t = training
    known = t.shape.family in TITAN and not (t.shape.tied and t.shape.family == "llama")
    replicated = t.layout.stage in (1, 2)  # it shards weights too: it has no ZeRO stage 1 or 2
    return known and t.lora is None and not t.optimizer_away and not replicated


def _pytorch_schedules(training: Training) -> bool:
    """Whether torch.distributed.pipelining takes the microbatches: its own checks, schedule by schedule."""
    here, count = training.layout, training.microbatches
    if here.pipeline == 1 or here.schedule == "gpipe":
        return True
    if here.schedule == "dualpipe":
        return count >= 2 * here.pipeline
    if here.chunks > 1:
        cut = here.chunks == 2 or _layers_of_a_piece(training)
        return bool(cut) and count % max(1, count // here.pipeline) == 0
    return count >= here.pipeline


def _layers_of_a_piece(training: Training) -> int:
    """What makes torchtitan cut as many pieces, embedding and head counted as a layer each; 0 if nothing."""
    pieces, layers = training.layout.pipeline * training.layout.chunks, training.shape.layers + 2
    size = -(-layers // pieces)
    return size if -(-layers // size) == pieces else 0


def _by_fsdp(training: Training) -> bool:
    """Whether FSDP runs it: DeepSpeed keeps fp32 master weights, whatever optimizer comes behind them."""
    t = training
    if t.optimizer_away:
        return False
    return t.layout.sharding == "fsdp2" or (t.layout.stage > 0 and not t.optimizer.master)


def _stays_16bit(training: Training) -> bool:
    """Whether mixed precision has to be left out: with it Accelerate's FSDP2 makes trained weights fp32."""
    t = training
    return _by_fsdp(t) and t.lora is None and t.optimizer.weights == 2 and not t.optimizer.master


def _by_deepspeed(training: Training) -> bool:
    return not _by_fsdp(training) and (training.layout.stage > 0 or training.optimizer_away)


def _nodes(training: Training) -> int:
    """The fewest hosts that have as many GPUs each: launchers start as many processes on every one."""
    gpus, most = training.layout.gpus, training.gpu.on_host
    return next(nodes for nodes in range(-(-gpus // most), gpus + 1) if gpus % nodes == 0)


def _launch(training: Training) -> str:
    nodes = _nodes(training)
    more = f"--nnodes {nodes} --rdzv-backend c10d --rdzv-endpoint {HEAD} " if nodes > 1 else ""
    return f"torchrun {more}--nproc-per-node {training.layout.gpus // nodes}"


def _on_each_node(training: Training, more: str = "") -> Iterator[str]:
    if (nodes := _nodes(training)) > 1:
        yield ON_EACH_NODE.format(nodes=nodes) + more


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


def _trainer(training: Training) -> FrameworkSettings:
    t = training
    words = [
        _launch(t), SCRIPT, f"--per_device_train_batch_size {t.microbatch}",
        f"--gradient_accumulation_steps {t.microbatches}", *(() if _stays_16bit(t) else ("--bf16",)),
    ]  # fmt: skip
    files: dict[str, dict[str, Any]] = {}
    more = [*_on_each_node(t)]
    if t.optimizer.name in TRAINER_OPTIMIZERS:
        words.append(f"--optim {TRAINER_OPTIMIZERS[t.optimizer.name]}")
    if t.kernels == "fused":
        words.append("--torch_compile")
    if t.fused_loss:
        words.append("--use_liger_kernel")
    if _by_fsdp(t):
        words += ["--fsdp full_shard", "--fsdp_config fsdp.json"]
        files["fsdp.json"] = _wrapped(t)
    else:
        if t.checkpointing == "full":
            words.append("--activation_checkpointing")
            more.append("before transformers 5.23 it is --gradient_checkpointing")
        if _by_deepspeed(t):
            words.append("--deepspeed ds.json")
            files["ds.json"] = _zero(t)
    return FrameworkSettings(
        "HF Trainer", " ".join(words), files, (*more, *_besides(t, by_deepspeed=_by_deepspeed(t)))
    )


def _accelerate(training: Training) -> FrameworkSettings:
    t = training
    precision = "no" if _stays_16bit(t) else "bf16"
    words = ["accelerate launch", f"--num_processes {t.layout.gpus}", f"--mixed_precision {precision}"]
    more: list[str] = []
    if (nodes := _nodes(t)) > 1:
        words += [f"--num_machines {nodes}", '--machine_rank "$NODE"', '--main_process_ip "$HEAD"']
        words.append("--main_process_port 29500")
        more += _on_each_node(t, f", and NODE from 0 to {nodes - 1}")
    if _by_fsdp(t):
        words += ["--use_fsdp", "--fsdp_version 2", "--fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP"]
        words.append(f"--fsdp_reshard_after_forward {str(t.layout.stage >= 3).lower()}")
        if t.checkpointing == "full":
            words.append("--fsdp_activation_checkpointing true")
    elif _by_deepspeed(t):
        if 0 < t.layout.stage < 3:
            more.append("its flags leave overlap_comm off: give a --deepspeed_config_file that has it on")
        words += ["--use_deepspeed", f"--zero_stage {_zero_stage(t)}"]
        words.append(f"--gradient_accumulation_steps {t.microbatches}")
        if t.optimizer_away:
            words.append("--offload_optimizer_device cpu")
    elif t.layout.gpus > 1:
        words.append("--multi_gpu")
    if t.kernels == "fused":
        words.append("--dynamo_backend inductor")
    if t.microbatches > 1 and "--use_deepspeed" not in words:
        more.append(f"make it with Accelerator(gradient_accumulation_steps={t.microbatches})")
    if t.checkpointing == "full" and not _by_fsdp(t):
        more.append(CALL_CHECKPOINTING)
    if t.fused_loss:
        more.append(FUSED_LOSS)
    if t.optimizer.name in TRAINER_OPTIMIZERS:
        more.append(
            {
                "adam-8bit": "optimizer: torchao.optim.AdamW8bit",
                "factored": "optimizer: transformers.Adafactor",
            }[t.optimizer.name]
        )
    return FrameworkSettings(
        "Accelerate", " ".join([*words, SCRIPT]), {}, (*more, *_besides(t, by_deepspeed=_by_deepspeed(t)))
    )


def _zero_stage(training: Training) -> int:
    """DeepSpeed offloads nothing without ZeRO: on one GPU its stage 1 shards nothing, and offloads."""
    return max(training.layout.stage, int(training.optimizer_away))


def _zero(training: Training) -> dict[str, Any]:
    """What DeepSpeed reads; `auto` is the Trainer's own setting."""
    t = training
    zero: dict[str, Any] = {"stage": _zero_stage(t), "overlap_comm": True, "contiguous_gradients": True}
    if _zero_stage(t) >= 3:
        # One layer is there and the next on its way: the default fetches less than a layer ahead.
        layer = max(map(elements, map(t.shape.layer, (0, t.shape.layers - 1))))
        zero["reduce_bucket_size"] = stage3_bucket(t.shape)
        zero["stage3_prefetch_bucket_size"] = layer
        zero["stage3_max_live_parameters"] = 2 * layer
    else:
        zero["reduce_bucket_size"] = zero["allgather_bucket_size"] = BUCKET
    if t.optimizer_away:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    kind = "fp32" if t.optimizer.gradients == 4 else "bf16"
    return {
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": kind},
        "communication_data_type": kind,
        "zero_optimization": zero,
        "train_micro_batch_size_per_gpu": t.microbatch,
        "gradient_accumulation_steps": t.microbatches,
    }


def _deepspeed(training: Training) -> FrameworkSettings:
    t = training
    nodes = _nodes(t)
    where = f"--hostfile hostfile --num_nodes {nodes} " if nodes > 1 else ""
    config = _zero(t)
    kind = "Adam" if t.optimizer_away else "AdamW"
    more = [f"hostfile has a line for each node: `NAME slots={t.layout.gpus // nodes}`"] if where else []
    if t.optimizer.name in TRAINER_OPTIMIZERS:
        config["zero_allow_untested_optimizer"] = True
        more.append("pass your own optimizer to deepspeed.initialize")
    else:
        config["optimizer"] = {"type": kind, "params": {"lr": 1e-5}}
        more.append("lr is an example: set your own")
    if t.checkpointing == "full":
        more.append(CALL_CHECKPOINTING)
    if t.fused_loss:
        more.append(FUSED_LOSS)
    each = t.layout.gpus // nodes
    command = f"deepspeed {where}--num_gpus {each} {SCRIPT} --deepspeed --deepspeed_config ds.json"
    return FrameworkSettings(
        "DeepSpeed", command, {"ds.json": config}, (*more, *_besides(t, by_deepspeed=True))
    )


def _torchtitan(training: Training) -> FrameworkSettings:
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
            "interleaved": "Interleaved1F1B" if here.chunks > 1 else "1F1B",
            "dualpipe": "DualPipeV",
        }
        flags["parallelism.pipeline_parallel_schedule"] = names[here.schedule]
        flags["parallelism.pipeline_parallel_microbatch_size"] = t.microbatch
    kinds = {"none": "none", "full": "full", "alternate": "selective", "selective": "selective"}
    flags["activation_checkpoint.mode"] = kinds[t.checkpointing]
    if t.checkpointing in ("alternate", "selective"):
        flags["activation_checkpoint.selective_ac_option"] = "op"
    more: list[str] = []
    if t.checkpointing == "selective":
        more.append("its selective mode also keeps every second matrix product, which takes more memory")
    if here.copies > 1:
        more.append("DualPipeV folds the pipeline: each stage is there once, not twice as planned")
    if here.chunks > 2:  # by default it makes two
        flags["parallelism.pipeline_parallel_layers_per_stage"] = _layers_of_a_piece(t)
    if t.microbatches > 1 and here.pipeline == 1:
        flags["training.local_batch_size"] = t.microbatch
        flags["training.global_batch_size"] = t.microbatch * t.microbatches * here.data
    if t.kernels == "fused":
        flags["compile.enable"] = ""
    if t.optimizer.name in TRAINER_OPTIMIZERS:
        more.append(f"no setting for the optimizer '{t.optimizer.name}': plan with `--optimizer adam`")
    words = [f"--{name}" if value == "" else f"--{name}={value}" for name, value in flags.items()]
    start = f"{_launch(t)} -m torchtitan.train --job.config_file model.toml"
    more.insert(
        0, "flags of torchtitan 0.2 (2025); model.toml is your model's, see its train_configs folders"
    )
    if t.fused_loss:
        more.append(FUSED_LOSS)
    if t.executed.every_expert:
        more.append("planned with each token in all experts: here it is in its own, in less time and memory")
    besides = (*_on_each_node(t), *more, *_calls(t, checkpoints=False))
    return FrameworkSettings("torchtitan", " ".join([start, *words]), {}, besides)


def _besides(training: Training, *, by_deepspeed: bool) -> Iterator[str]:
    """What no launcher sets: the model's precision, its adapters, and remedies that are a call."""
    t = training
    if t.lora:
        if t.lora.base_bits == 4:
            # Sharded weights have to be of the type that is computed in: bytes are not sharded.
            stored = ", bnb_4bit_quant_storage=torch.bfloat16" if t.layout.stage >= 3 else ""
            yield (
                'load the model with BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", '
                f"bnb_4bit_use_double_quant={t.lora.double_quantised}, "
                f"bnb_4bit_compute_dtype=torch.bfloat16{stored}), dtype=torch.bfloat16"
            )
            if t.shape.experts:
                yield "routed experts stay in 16 bits: transformers 5 has them as parameters, not as modules"
        else:
            yield BF16
        targets = ", ".join(f'"{name}"' for name in t.lora.modules)
        more = ", lora_dropout=0.05" if t.lora.dropout else ""
        yield f"wrap the model with peft.LoraConfig(r={t.lora.rank}, target_modules=[{targets}]{more})"
        if not t.lora.fp32:
            yield "call peft.get_peft_model(model, config, autocast_adapter_dtype=False)"
    elif t.optimizer.weights == 2 and not t.optimizer.master:
        yield BF16
    elif not by_deepspeed:
        yield FP32
        if t.layout.stage == 0 and t.optimizer.gradients == 2:
            yield "its gradients are then in fp32: plan with `--optimizer adam-fp32-gradients`"
        if t.layout.sharding == "fsdp2":
            yield "it reduces gradients in 16 bits; planned in fp32, as torchtitan does"
    how = "eager" if t.attention == "scores" else TOLD.get(t.shape.family)
    if how:
        yield f'load the model with attn_implementation="{how}"'
    yield from _calls(t)


def _calls(training: Training, checkpoints: bool = True) -> Iterator[str]:
    t = training
    if checkpoints and t.checkpointing == "selective":
        yield "call lostflops.optimize.checkpoint(model), which keeps attention's outputs"
    elif checkpoints and t.checkpointing == "alternate":
        keep = ("attention", *_alternate(t.shape))
        yield f"call lostflops.optimize.checkpoint(model, keep={keep}), or every second product of yours"
    if t.offloaded:
        yield "train inside `with lostflops.optimize.offload(model):`"
    if t.streamed:
        yield "train inside `with lostflops.optimize.stream_frozen(model):`"
    if t.fp8:
        yield "call lostflops.optimize.to_fp8(model)"


def _alternate(shape: Shape) -> list[str]:
    """Every second matrix product of a layer, which torchtitan's selective mode keeps, by its module."""
    kept = {name.rpartition(".")[2] for name in alternate(shape, shape.layers - 1)}
    return [name for name, members in modules(shape) if kept & {*members}]


def lines(training: Training) -> Iterator[str]:
    """The settings for a terminal."""
    all_of_them = settings(training)
    if not all_of_them:
        yield f"  none of {', '.join(FRAMEWORKS)} is known to have all of it together"
    for found in all_of_them:
        yield f"  {found.framework}"
        for name, content in found.files.items():
            yield f"    echo '{json.dumps(content)}' > {name}"
        yield f"    {found.command}"
        for more in found.besides:
            yield f"    # {more}"
