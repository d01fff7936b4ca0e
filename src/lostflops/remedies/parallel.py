"""Remedies for communication, and for ranks that wait for each other."""

from .remedy import Remedy

REMEDIES = (
    Remedy(
        "overlap",
        {
            "pytorch": "Hide it or send less: FSDP2 prefetches with `set_modules_to_forward_prefetch`, DDP "
            "overlaps by itself; accumulate gradients under `no_sync()`, reduce them in bf16.",
            "pytorch/ddp": "DDP overlaps by itself; what stays exposed is the last buckets and slow links: "
            "accumulate under `model.no_sync()`, reduce in bf16 (`bf16_compress_hook`), or try another "
            "`bucket_cap_mb` (25; the first bucket is 1 MiB unless it is set).",
            "pytorch/fsdp": "Prefetch further ahead (FSDP2: `set_modules_to_forward_prefetch`, "
            "`set_modules_to_backward_prefetch`), keep parameters after forward if memory allows "
            "(`reshard_after_forward=False`), or shard within a node and replicate across "
            "(`fully_shard(m, mesh=mesh_2d)`).",
            "hf": "Send less: `gradient_accumulation_steps`, `ddp_bucket_cap_mb`; on FSDP2 "
            '`fsdp_config={"reshard_after_forward": false}` if memory allows. FSDP2 prefetches only from '
            "code "
            "(`set_modules_to_forward_prefetch` after `prepare`).",
            "accelerate": "Send less: `GradientAccumulationPlugin(num_steps=k)`, "
            "`DistributedDataParallelKwargs(bucket_cap_mb=n)`; on FSDP2 "
            "`--fsdp_reshard_after_forward false` if memory allows. FSDP2 prefetches only from code "
            "(`forward_prefetch` raises there): `set_modules_to_forward_prefetch` after `prepare`.",
            "lightning": "Send less: `accumulate_grad_batches=k`, `DDPStrategy(bucket_cap_mb=n, "
            "gradient_as_bucket_view=True)`; `FSDPStrategy(forward_prefetch=True)`, or "
            '`sharding_strategy="SHARD_GRAD_OP"` if memory allows.',
            "deepspeed": 'Overlap it: `"overlap_comm": true` in `zero_optimization` (false by default in '
            'stages 1 and 2); in stage 3 raise `"stage3_prefetch_bucket_size"`, or use a lower stage if '
            "memory "
            "allows.",
            "megatron": "Overlap it: `--overlap-grad-reduce --overlap-param-gather` with "
            "`--use-distributed-optimizer`; `--tp-comm-overlap` for tensor parallelism, "
            "`--overlap-moe-expert-parallel-comm` for experts.",
            "bridge": "Overlap it: `CommOverlapConfig(tp_comm_overlap=True)` (silently off without sequence "
            "parallelism or Transformer Engine), `overlap_moe_expert_parallel_comm` for experts.",
            "torchtitan": "Keep parameters after forward "
            '(`parallelism.fsdp_reshard_after_forward="never"`) if '
            "memory allows, replicate across nodes (`data_parallel_replicate_degree`), and for tensor "
            "parallelism set `compile.enable_async_tensor_parallel=True`.",
        },
    ),
    Remedy(
        "buckets",
        {
            "pytorch": "Join small operations: larger buckets, flattened tensors, coalescing.",
            "pytorch/ddp": "Join small operations: a larger `bucket_cap_mb` (25), while the last bucket "
            "stays "
            "small enough to hide.",
            "pytorch/fsdp": "FSDP2 has no buckets: wrap coarser, several layers in one `fully_shard` group.",
            "hf": "Join small operations: `ddp_bucket_cap_mb` for DDP; with DeepSpeed a number for "
            '`"reduce_bucket_size"` (elements; `"auto"` is hidden size squared).',
            "accelerate": "Join small operations: `DistributedDataParallelKwargs(bucket_cap_mb=n)`; FSDP2 "
            "has "
            "no buckets, wrap coarser.",
            "lightning": "Join small operations: `DDPStrategy(bucket_cap_mb=n)`.",
            "deepspeed": 'Join small operations: `"reduce_bucket_size"` and `"allgather_bucket_size"` '
            '(elements), `"stage3_param_persistence_threshold"` up.',
            "megatron": "Join small operations: `--ddp-bucket-size` (elements).",
            "bridge": "Join small operations: `bucket_size` of the data-parallel configuration (elements).",
            "torchtitan": "FSDP2 has no buckets: wrap coarser, several layers in one group.",
        },
    ),
    Remedy(
        "stage-balance",
        {
            "pytorch": "Move layers off that stage: other split points, fewer layers beside the embedding "
            "and the loss.",
            "accelerate": "Move layers off that stage: `--megatron_lm_decoder_last_pipeline_num_layers`.",
            "megatron": "Move layers off that stage: `--pipeline-model-parallel-layout`, "
            "`--decoder-first-pipeline-num-layers`, `--decoder-last-pipeline-num-layers`, or "
            "`--account-for-embedding-in-pipeline-split` and `--account-for-loss-in-pipeline-split`.",
            "bridge": "Move layers off that stage: `pipeline_model_parallel_layout`, "
            "`num_layers_in_first_pipeline_stage`, `num_layers_in_last_pipeline_stage`.",
            "deepspeed": 'Move layers off that stage: `PipelineModule(partition_method="parameters")` or '
            '`"type:regex"`.',
            "torchtitan": "Move layers off that stage: `pipeline_parallel_first_stage_less_layers`, "
            "`pipeline_parallel_last_stage_less_layers`.",
        },
    ),
    Remedy(
        "bubble",
        {
            "pytorch": "More microbatches per step, or another schedule of `torch.distributed.pipelining` "
            "(`Interleaved1F1B`, `InterleavedZeroBubble`, `ZBVZeroBubble`), with stages of one cost.",
            "megatron": "More microbatches (a larger `--global-batch-size` or a smaller "
            "`--micro-batch-size`), "
            "or interleaving: `--num-virtual-stages-per-pipeline-rank 2`. Megatron has no zero-bubble "
            "schedule; `--defer-embedding-wgrad-compute` and `--delay-wgrad-compute` fill part of it.",
            "bridge": "More microbatches, or interleaving: `virtual_pipeline_model_parallel_size`; "
            "`defer_embedding_wgrad_compute` fills part of the bubble.",
            "deepspeed": 'More microbatches: `"gradient_accumulation_steps"` is their number. DeepSpeed has '
            "1F1B only; even out the stages with `PipelineModule(partition_method=…)`.",
            "torchtitan": 'More microbatches, or `parallelism.pipeline_parallel_schedule="Interleaved1F1B"`; '
            "even out the first and the last stage (`pipeline_parallel_first_stage_less_layers`, "
            "`…_last_stage_less_layers`).",
        },
    ),
)
