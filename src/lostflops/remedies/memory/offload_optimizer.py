"""Optimizer states in host memory."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import config, python, shell

REMEDY = Remedy(
    name="offload-optimizer",
    does="The optimizer's states live in host memory, and the step gets slower for it.",
    changes={
        "pytorch": Change(
            snippets=(
                python("offloaded = lostflops.optimize.optimizer_offload(optimizer)"),
                python(
                    "policy = CPUOffloadPolicy(pin_memory=True)",
                    "fully_shard(model, offload_policy=policy)",
                    title="or with FSDP2",
                ),
            ),
            note="`CPUOffloadPolicy` moves parameters, too.",
        ),
        "hf": Change(
            snippets=(python('TrainingArguments(fsdp=True, fsdp_config={"cpu_offload": True})'),),
            note="It moves parameters, too; with DeepSpeed use its JSON.",
        ),
        "accelerate": Change(
            snippets=(shell("accelerate launch --use_deepspeed --offload_optimizer_device cpu train.py"),),
        ),
        "lightning": Change(
            snippets=(
                python(
                    "trainer = Trainer(",
                    "    strategy=DeepSpeedStrategy(",
                    "        stage=2, offload_optimizer=True, pin_memory=True",
                    "    )",
                    ")",
                ),
            ),
        ),
        "deepspeed": Change(
            snippets=(
                config(
                    "{",
                    '  "zero_optimization": {',
                    '    "offload_optimizer": {"device": "cpu", "pin_memory": true}',
                    "  }",
                    "}",
                ),
            ),
            note="`pin_memory` is false by default before DeepSpeed 0.19.",
        ),
        "megatron": Change(
            snippets=(
                shell(
                    "--optimizer-cpu-offload --optimizer-offload-fraction 0.5",
                    "--overlap-cpu-optimizer-d2h-h2d",
                ),
            ),
        ),
        "bridge": Change(
            snippets=(
                python(
                    "cfg.optimizer.optimizer_cpu_offload = True",
                    "cfg.optimizer.optimizer_offload_fraction = 0.5",
                    "cfg.optimizer.overlap_cpu_optimizer_d2h_h2d = True",
                ),
            ),
        ),
        "torchtitan": Change(
            snippets=(python("config.training.enable_cpu_offload = True"),),
            note="It moves parameters, too.",
        ),
    },
    safety="bit-identical",
    when="The peak of memory is weights and optimizer states, and nothing cheaper frees enough.",
    safe="Numerically close where the CPU computes the update.",
    costs="12 to 16 bytes of host memory per parameter, cores, and time: published steps are 1.9 times "
    "as long with a quarter offloaded, 4.2 times with all.",
    seen="Copies from the device follow backward, and the CPU's optimizer runs at the end of the step.",
    recipe="copy_summary_by_time",
    helper="optimizer_offload",
    of_training=True,
)
