"""Sharding within a node, replicas across nodes."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import config, python, shell

REMEDY = Remedy(
    name="hierarchical-partitioning",
    does="Parameters are sharded over the GPUs of one node and replicated across nodes, so that "
    "all-gathers stay on fast links.",
    changes={
        "pytorch": Change(
            "Shard within a node and replicate across (`fully_shard(m, mesh=mesh_2d)`).",
            snippets=(
                python(
                    "mesh = init_device_mesh(",
                    '    "cuda", (nodes, gpus_per_node), mesh_dim_names=("replicate", "shard")',
                    ")",
                    "fully_shard(model, mesh=mesh)",
                ),
            ),
            note="FSDP1: `ShardingStrategy.HYBRID_SHARD`.",
        ),
        "pytorch/ddp": Change(
            instead="DDP replicates everything already.",
        ),
        "hf": Change(
            snippets=(
                python(
                    "TrainingArguments(",
                    "    fsdp=True,",
                    "    parallelism_config=ParallelismConfig(",
                    "        dp_replicate_size=nodes, dp_shard_size=gpus_per_node",
                    "    ),",
                    ")",
                ),
            ),
        ),
        "hf/ddp": Change(
            instead="DDP replicates everything already.",
        ),
        "accelerate": Change(
            snippets=(
                shell(
                    "accelerate launch --parallelism_config_dp_replicate_size 4 \\",
                    "  --parallelism_config_dp_shard_size 8 train.py",
                ),
            ),
        ),
        "accelerate/ddp": Change(
            instead="DDP replicates everything already.",
        ),
        "lightning": Change(
            snippets=(
                python(
                    "strategy = FSDPStrategy(",
                    '    sharding_strategy="HYBRID_SHARD", device_mesh=(nodes, gpus_per_node)',
                    ")",
                    "trainer = Trainer(strategy=strategy)",
                ),
            ),
        ),
        "lightning/ddp": Change(
            instead="DDP replicates everything already.",
        ),
        "deepspeed": Change(
            snippets=(config('{"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}'),),
            note="Stage 3 only; 8 is the number of GPUs per node. Quantised weights and gradients "
            "(qwZ, qgZ) lose precision.",
        ),
        "megatron": Change(
            snippets=(shell("--use-distributed-optimizer --num-distributed-optimizer-instances 4"),),
        ),
        "bridge": Change(
            snippets=(python("cfg.ddp.num_distributed_optimizer_instances = 4"),),
        ),
        "torchtitan": Change(
            "Replicate across nodes (`data_parallel_replicate_degree`).",
            snippets=(python("config.parallelism.data_parallel_replicate_degree = 4"),),
        ),
    },
    safety="numerically close",
    when="The job has several nodes, their network is slower than the links within one, and a node "
    "holds the model's states.",
    safe="Sums are formed in another order.",
    costs="Memory for the states times the number of replicas.",
    seen="All-gathers and reduce-scatters have as many ranks as a node has GPUs, beside one "
    "all-reduce across nodes.",
    recipe="communication_summary",
    edit="faster-links=2",
)
