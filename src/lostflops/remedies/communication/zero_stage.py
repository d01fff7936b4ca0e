"""A lower stage of ZeRO."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import config, python, shell

REMEDY = Remedy(
    name="zero-stage",
    does="Optimizer states or gradients are sharded, parameters are not: those are fetched once per step.",
    changes={
        "pytorch": Change(
            snippets=(
                python(
                    "-fully_shard(layer)",
                    "+fully_shard(layer, reshard_after_forward=False)",
                    title="with FSDP2, like stage 2",
                ),
                python(
                    "optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)",
                    title="with DDP, like stage 1",
                ),
            ),
        ),
        "hf": Change(
            snippets=(config('{"zero_optimization": {"stage": 2}}'),),
            note="The file that `TrainingArguments(deepspeed=…)` names; on FSDP see `fsdp-reshard`.",
        ),
        "accelerate": Change(
            snippets=(shell("accelerate launch --use_deepspeed --zero_stage 2 train.py"),),
        ),
        "lightning": Change(
            snippets=(python('trainer = Trainer(strategy="deepspeed_stage_2")'),),
        ),
        "deepspeed": Change(
            'Use `"stage": 2` of ZeRO if memory allows: it fetches parameters once per step.',
            snippets=(config('{"zero_optimization": {"stage": 2}}'),),
        ),
        "megatron": Change(
            snippets=(shell("--use-distributed-optimizer"),),
        ),
        "bridge": Change(
            snippets=(python("cfg.ddp.use_distributed_optimizer = True"),),
        ),
        "torchtitan": Change(
            snippets=(python('config.parallelism.fsdp_reshard_after_forward = "never"'),),
        ),
    },
    safety="numerically close",
    when="Exposed all-gathers of parameters dominate, and memory holds what the lower stage keeps: "
    "`lostflops plan train` says whether.",
    safe="Sums may be formed in another order.",
    costs="From stage 3 to 2: 2 bytes per parameter; from 2 to 1 also the gradients.",
    limits="Offloaded parameters need stage 3.",
    seen="All-gathers of parameters are gone from forward and backward.",
    recipe="communication_summary",
    is_in_deepspeed_json=True,
    of_training=True,
)
