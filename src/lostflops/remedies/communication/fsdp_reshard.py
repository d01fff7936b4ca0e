"""Parameters kept whole from forward to backward."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import config, python, shell

REMEDY = Remedy(
    name="fsdp-reshard",
    does="Parameters stay unsharded after forward, so that backward need not fetch them again.",
    changes={
        "pytorch": Change(
            "Keep parameters after forward if memory allows (FSDP2: `reshard_after_forward=False`).",
            snippets=(python("-fully_shard(layer)", "+fully_shard(layer, reshard_after_forward=False)"),),
            note="A number shards over that many ranks, such as those of a node. FSDP1: "
            "`ShardingStrategy.SHARD_GRAD_OP`.",
        ),
        "pytorch/ddp": Change(
            instead="DDP keeps all parameters on every rank already.",
        ),
        "hf": Change(
            'Keep parameters after forward if memory allows: `fsdp_config={"reshard_after_forward": false}`.',
            snippets=(python('TrainingArguments(fsdp=True, fsdp_config={"reshard_after_forward": False})'),),
        ),
        "hf/ddp": Change(
            instead="DDP keeps all parameters on every rank already.",
        ),
        "accelerate": Change(
            "Keep parameters after forward if memory allows: `--fsdp_reshard_after_forward false`.",
            snippets=(
                shell("accelerate launch --fsdp_version 2 --fsdp_reshard_after_forward false train.py"),
            ),
            note="`--fsdp_sharding_strategy` is deprecated.",
        ),
        "accelerate/ddp": Change(
            instead="DDP keeps all parameters on every rank already.",
        ),
        "lightning": Change(
            "Keep parameters after forward if memory allows: "
            '`FSDPStrategy(sharding_strategy="SHARD_GRAD_OP")`.',
            snippets=(python('trainer = Trainer(strategy=FSDPStrategy(sharding_strategy="SHARD_GRAD_OP"))'),),
        ),
        "lightning/ddp": Change(
            instead="DDP keeps all parameters on every rank already.",
        ),
        "deepspeed": Change(
            'Use `"stage": 2` of ZeRO if memory allows: it fetches parameters once per step.',
            snippets=(config('{"zero_optimization": {"stage": 2}}'),),
        ),
        "megatron": Change(
            "With sharded parameters keep them after forward if memory allows: "
            "`--data-parallel-sharding-strategy optim_grads`.",
            snippets=(
                shell(
                    "# Megatron-FSDP",
                    "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads",
                    "# FSDP2 of PyTorch",
                    "--use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward",
                ),
            ),
        ),
        "bridge": Change(
            "With Megatron-FSDP keep parameters after forward if memory allows: "
            '`data_parallel_sharding_strategy = "optim_grads"`.',
            snippets=(python('cfg.ddp.data_parallel_sharding_strategy = "optim_grads"'),),
        ),
        "torchtitan": Change(
            'Keep parameters after forward (`parallelism.fsdp_reshard_after_forward="never"`) if '
            "memory allows.",
            snippets=(python('config.parallelism.fsdp_reshard_after_forward = "never"'),),
        ),
    },
    safety="bit-identical",
    when="Memory has room for all parameters in bf16 (2 bytes each), and all-gathers of backward are "
    "exposed.",
    costs="2 bytes per parameter between forward and backward.",
    seen="There is one all-gather per layer and step instead of two.",
    recipe="communication_summary",
    is_in_deepspeed_json=True,
)
