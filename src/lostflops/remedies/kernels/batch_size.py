"""A larger batch per GPU."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import config, python, shell

REMEDY = Remedy(
    name="batch-size",
    does="More samples per step and GPU make kernels larger, so that launches and reads of weights "
    "count less.",
    changes={
        "pytorch": Change(
            "Or a larger batch per GPU, if memory allows.",
            snippets=(
                python(
                    "-loader = DataLoader(dataset, batch_size=8)",
                    "+loader = DataLoader(dataset, batch_size=16)",
                ),
            ),
        ),
        "hf": Change(
            "Or a larger `per_device_train_batch_size`, if memory allows.",
            snippets=(python("TrainingArguments(per_device_train_batch_size=16)"),),
            note="`auto_find_batch_size=True` halves it until it fits.",
        ),
        "deepspeed": Change(
            'Or a larger `"train_micro_batch_size_per_gpu"`, if memory allows.',
            snippets=(config('{"train_micro_batch_size_per_gpu": 16}'),),
        ),
        "megatron": Change(
            "Or a larger `--micro-batch-size`, if memory allows.",
            snippets=(shell("--micro-batch-size 4"),),
        ),
        "bridge": Change(
            "Or a larger `cfg.train.micro_batch_size`, if memory allows.",
            snippets=(python("cfg.train.micro_batch_size = 4"),),
        ),
        "torchtitan": Change(
            "Or a larger `training.local_batch_size`, if memory allows.",
            snippets=(python("config.training.local_batch_size = 16"),),
            note="torchtitan's main branch calls it `num_tokens_per_microbatch_per_dp_rank`.",
        ),
    },
    safety="changes convergence",
    when="Kernels are short, memory is free, and tokens per second still rise with the batch. Where "
    "memory is short, a smaller one.",
    safe="The learning rate may have to grow with it. Numerically close where fewer micro-batches "
    "keep the global batch.",
    costs="Memory for activations.",
    seen="Tokens or samples per second rise; compare those, for the step itself gets longer.",
    recipe="kernel_summary",
    is_in_deepspeed_json=True,
)
