"""Parameters in host memory."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import config, python, shell

REMEDY = Remedy(
    name="offload-parameters",
    does="Parameters live in host memory and come to the device layer by layer.",
    changes={
        "pytorch": Change(
            snippets=(
                python(
                    "policy = CPUOffloadPolicy(pin_memory=True)",
                    "fully_shard(model, offload_policy=policy)",
                    title="with FSDP2",
                ),
                python(
                    "streamed = lostflops.optimize.stream_frozen(model)",
                    title="or, for weights that are not trained",
                ),
            ),
        ),
        "hf": Change(
            snippets=(python('TrainingArguments(fsdp=True, fsdp_config={"cpu_offload": True})'),),
        ),
        "accelerate": Change(
            snippets=(
                shell(
                    "accelerate launch --use_deepspeed --zero_stage 3 \\",
                    "  --offload_param_device cpu train.py",
                ),
            ),
        ),
        "lightning": Change(
            snippets=(
                python(
                    "trainer = Trainer(",
                    "    strategy=DeepSpeedStrategy(stage=3, offload_parameters=True)",
                    ")",
                ),
            ),
        ),
        "deepspeed": Change(
            snippets=(
                config(
                    "{",
                    '  "zero_optimization": {',
                    '    "stage": 3,',
                    '    "offload_param": {"device": "cpu", "pin_memory": true}',
                    "  }",
                    "}",
                ),
            ),
        ),
        "megatron": Change(
            instead="Megatron-LM has no flag for it: its field `cpu_offloading_weights` is set from code "
            "only.",
        ),
        "bridge": Change(
            snippets=(python("cfg.model.cpu_offloading = True", "cfg.model.cpu_offloading_weights = True"),),
        ),
        "torchtitan": Change(
            snippets=(python("config.training.enable_cpu_offload = True"),),
        ),
    },
    safety="bit-identical",
    when="The weights themselves do not fit, and sharding over more GPUs is no option.",
    costs="The time in which the link carries all weights, as far as compute does not hide it.",
    limits="DeepSpeed needs stage 3 for it.",
    seen="Copies to the device stand before each layer.",
    recipe="copy_summary_by_time",
    helper="stream_frozen",
)
