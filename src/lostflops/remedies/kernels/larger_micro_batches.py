"""Fewer and larger micro-batches."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import config, python, shell

REMEDY = Remedy(
    name="larger-micro-batches",
    does="A step of the same batch in fewer and larger micro-batches launches fewer and larger kernels.",
    changes={
        "pytorch": Change(
            "If memory allows, run fewer and larger micro-batches: twice the loader's "
            "`batch_size`, and half as many backward passes per step.",
            snippets=(
                python(
                    "-loader, micro_batches = DataLoader(dataset, batch_size=1), 16",
                    "+loader, micro_batches = DataLoader(dataset, batch_size=2), 8",
                ),
            ),
        ),
        "hf": Change(
            "If memory allows, run fewer and larger micro-batches: twice "
            "`per_device_train_batch_size`, and half of `gradient_accumulation_steps`.",
            snippets=(
                python(
                    "TrainingArguments(",
                    "    per_device_train_batch_size=2, gradient_accumulation_steps=8",
                    ")",
                ),
            ),
        ),
        "accelerate": Change(
            "If memory allows, run fewer and larger micro-batches: twice the loader's "
            "`batch_size`, and half of `gradient_accumulation_steps`.",
            snippets=(python("accelerator = Accelerator(gradient_accumulation_steps=8)"),),
        ),
        "lightning": Change(
            "If memory allows, run fewer and larger micro-batches: twice the loader's "
            "`batch_size`, and half of `accumulate_grad_batches`.",
            snippets=(python("trainer = Trainer(accumulate_grad_batches=8)"),),
        ),
        "deepspeed": Change(
            "If memory allows, run fewer and larger micro-batches: twice "
            '`"train_micro_batch_size_per_gpu"`, and half of `"gradient_accumulation_steps"`.',
            snippets=(
                config(
                    "{",
                    '  "train_micro_batch_size_per_gpu": 2,',
                    '  "gradient_accumulation_steps": 8',
                    "}",
                ),
            ),
        ),
        "megatron": Change(
            "If memory allows, run fewer and larger micro-batches: a larger "
            "`--micro-batch-size` with the same `--global-batch-size`.",
            snippets=(shell("--micro-batch-size 2"),),
        ),
        "bridge": Change(
            "If memory allows, run fewer and larger micro-batches: a larger "
            "`cfg.train.micro_batch_size` with the same `cfg.train.global_batch_size`.",
            snippets=(python("cfg.train.micro_batch_size = 2"),),
        ),
        "torchtitan": Change(
            "If memory allows, run fewer and larger micro-batches: a larger "
            "`training.local_batch_size` with the same `training.global_batch_size`.",
            snippets=(python("config.training.local_batch_size = 16"),),
            note="torchtitan's main branch calls them `num_tokens_per_microbatch_per_dp_rank` and "
            "`num_tokens_per_train_step`.",
        ),
    },
    safety="numerically close",
    when="A step accumulates gradients over micro-batches whose kernels are short, and memory is free.",
    safe="The same batch, added up in another order. A loss that is a mean over tokens is to be weighted by "
    "them, or it changes with the split.",
    costs="Memory for the activations of a larger micro-batch.",
    seen="Fewer kernels run per step, each for longer, and the step gets shorter.",
    recipe="kernel_summary",
    is_in_deepspeed_json=True,
    of_training=True,
)
