"""Fewer and larger messages."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import config, python, shell

REMEDY = Remedy(
    name="bucket-size",
    does="Small messages are joined into larger ones, which use the link better.",
    changes={
        "pytorch": Change(
            "Join small operations: larger buckets, flattened tensors, coalescing.",
            snippets=(
                python(
                    "-model = DistributedDataParallel(model)",
                    "+model = DistributedDataParallel(model, bucket_cap_mb=50)",
                ),
            ),
        ),
        "pytorch/ddp": Change(
            "Join small operations: a larger `bucket_cap_mb` (25), while the last bucket stays "
            "small enough to hide.",
            snippets=(
                python(
                    "-model = DistributedDataParallel(model)",
                    "+model = DistributedDataParallel(model, bucket_cap_mb=50)",
                ),
            ),
            note="Setting it makes the first bucket as large, which is 1 MiB otherwise.",
        ),
        "pytorch/fsdp": Change(
            "FSDP2 has no buckets: wrap coarser, several layers in one `fully_shard` group.",
            snippets=(
                python(
                    "-for layer in model.layers:",
                    "-    fully_shard(layer)",
                    "+for first, second in zip(model.layers[::2], model.layers[1::2]):",
                    "+    fully_shard([first, second])",
                ),
            ),
        ),
        "hf": Change(
            "Join small operations: `ddp_bucket_cap_mb` for DDP; with DeepSpeed a number for "
            '`"reduce_bucket_size"` (elements; `"auto"` is hidden size squared).',
            snippets=(python("TrainingArguments(ddp_bucket_cap_mb=50)"),),
        ),
        "accelerate": Change(
            "Join small operations: `DistributedDataParallelKwargs(bucket_cap_mb=n)`; FSDP2 has "
            "no buckets, wrap coarser.",
            snippets=(
                python(
                    "accelerator = Accelerator(",
                    "    kwargs_handlers=[DistributedDataParallelKwargs(bucket_cap_mb=50)]",
                    ")",
                ),
            ),
        ),
        "lightning": Change(
            "Join small operations: `DDPStrategy(bucket_cap_mb=n)`.",
            snippets=(python("trainer = Trainer(strategy=DDPStrategy(bucket_cap_mb=50))"),),
        ),
        "deepspeed": Change(
            'Join small operations: `"reduce_bucket_size"` and `"allgather_bucket_size"` '
            '(elements), `"stage3_param_persistence_threshold"` up.',
            snippets=(
                config(
                    "{",
                    '  "zero_optimization": {',
                    '    "reduce_bucket_size": 500000000,',
                    '    "allgather_bucket_size": 500000000',
                    "  }",
                    "}",
                ),
            ),
            note='Both count elements. The Hugging Face Trainer\'s `"auto"` is the hidden size squared.',
        ),
        "megatron": Change(
            "Join small operations: `--ddp-bucket-size` (elements).",
            snippets=(shell("--overlap-grad-reduce --ddp-bucket-size 100000000"),),
            note="Without `--overlap-grad-reduce` there is one bucket of everything.",
        ),
        "bridge": Change(
            "Join small operations: `bucket_size` of the data-parallel configuration (elements).",
            snippets=(python("cfg.ddp.bucket_size = 128 * 1024**2"),),
        ),
        "torchtitan": Change(
            "FSDP2 has no buckets: wrap coarser, several layers in one group.",
            instead="FSDP2 has no buckets, and torchtitan groups layer by layer: wrap several layers in "
            "one group in your model's `parallelize`.",
        ),
    },
    safety="numerically close",
    when="Messages are small for their link. Larger buckets start later: where the last one is "
    "exposed, a smaller one hides better.",
    safe="Sums are formed in another order.",
    costs="Memory for one bucket, for several where they overlap.",
    seen="There are fewer collectives, of larger messages, at a higher bandwidth.",
    recipe="communication_summary",
    is_in_deepspeed_json=True,
)
