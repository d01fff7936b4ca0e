"""Remedies for communication, and for ranks that wait for each other."""

from .remedy import Remedy

REMEDIES = (
    Remedy(
        "accumulate",
        {
            "pytorch": "Send less often: accumulate gradients, and synchronise in the last micro-batch of a "
            "step only (DDP: `no_sync()`, FSDP2: `set_requires_gradient_sync(False)`).",
            "pytorch/ddp": "Send less often: accumulate gradients under `model.no_sync()`, all but the last "
            "micro-batch of a step.",
            "pytorch/fsdp": "Send less often: accumulate gradients with "
            "`model.set_requires_gradient_sync(False)`, all but the last micro-batch of a step, if memory "
            "holds unsharded gradients.",
            "hf": "Send less often: raise `gradient_accumulation_steps`, whose last micro-batch alone sends.",
            "accelerate": "Send less often: `GradientAccumulationPlugin(num_steps=k)`, without "
            "`sync_each_batch=True`.",
            "lightning": "Send less often: `Trainer(accumulate_grad_batches=k)`.",
            "deepspeed": "Send less often: raise `gradient_accumulation_steps` (in stages 2 and 3 every "
            "micro-batch still sends).",
            "megatron": "",
            "bridge": "",
            "torchtitan": "",
        },
        on="no_sync",
    ),
    Remedy(
        "overlap",
        {
            "pytorch": "Hide it, or send less: reduce in bf16, and let FSDP2 prefetch further ahead "
            "(`set_modules_to_forward_prefetch`); DDP overlaps by itself.",
            "pytorch/ddp": "DDP overlaps by itself; what stays exposed is the last buckets and slow links: "
            "reduce in bf16 (`bf16_compress_hook`), or try another `bucket_cap_mb` (25; the first bucket is "
            "1 MiB unless it is set).",
            "pytorch/fsdp": "Prefetch further ahead (FSDP2: `set_modules_to_forward_prefetch`, "
            "`set_modules_to_backward_prefetch`), keep parameters after forward if memory allows "
            "(`reshard_after_forward=False`), or shard within a node and replicate across "
            "(`fully_shard(m, mesh=mesh_2d)`).",
            "hf": "Try another `ddp_bucket_cap_mb`; on FSDP2 "
            '`fsdp_config={"reshard_after_forward": false}` if memory allows. FSDP2 prefetches only from '
            "code (`set_modules_to_forward_prefetch` after `prepare`).",
            "accelerate": "Try `DistributedDataParallelKwargs(bucket_cap_mb=n)`; on FSDP2 "
            "`--fsdp_reshard_after_forward false` if memory allows. FSDP2 prefetches only from code "
            "(`forward_prefetch` raises there): `set_modules_to_forward_prefetch` after `prepare`.",
            "lightning": "Try `DDPStrategy(bucket_cap_mb=n, gradient_as_bucket_view=True)`; "
            '`FSDPStrategy(forward_prefetch=True)`, or `sharding_strategy="SHARD_GRAD_OP"` if memory allows.',
            "deepspeed": 'Overlap it: `"overlap_comm": true` in `zero_optimization` (false by default in '
            'stages 1 and 2); in stage 3 raise `"stage3_prefetch_bucket_size"`, or use a lower stage if '
            "memory allows.",
            "megatron": "Overlap it: `--overlap-grad-reduce --overlap-param-gather` with "
            "`--use-distributed-optimizer`.",
            "bridge": "Reduce in bf16 (`grad_reduce_in_fp32=False`), and keep `overlap_grad_reduce` and "
            "`overlap_param_gather` of `CommOverlapConfig` on (the default).",
            "torchtitan": "Keep parameters after forward "
            '(`parallelism.fsdp_reshard_after_forward="never"`) if memory allows, or replicate across nodes '
            "(`data_parallel_replicate_degree`).",
        },
        is_in_deepspeed_json=True,
    ),
    Remedy(
        "fewer-barriers",
        {
            "pytorch": "Take the barriers out of the step: a collective that needs the data of all ranks "
            "waits for them by itself.",
        },
    ),
    Remedy(
        "fewer-broadcasts",
        {
            "pytorch": "Broadcast less often: settings and flags once, before training.",
            "pytorch/ddp": "Broadcast less often: `DistributedDataParallel(broadcast_buffers=False)` where "
            "the buffers need not be alike on all ranks, as those of batch norms need not.",
        },
    ),
    Remedy(
        "tensor-overlap",
        {
            "pytorch": "Overlap it with the matrix products: async tensor parallelism under `torch.compile` "
            "(`torch._inductor.config._micro_pipeline_tp = True` with "
            "`enable_symm_mem_for_group(group_name)`).",
            "hf": "",
            "accelerate": "",
            "lightning": "",
            "deepspeed": "",
            "megatron": "Overlap it with the matrix products: `--tp-comm-overlap` (it needs "
            "`--sequence-parallel` and Transformer Engine; on Hopper and before "
            "`CUDA_DEVICE_MAX_CONNECTIONS=1`).",
            "bridge": "Overlap it with the matrix products: `CommOverlapConfig(tp_comm_overlap=True)` "
            "(silently off without sequence parallelism or Transformer Engine).",
            "torchtitan": "Overlap it with the matrix products: "
            "`compile.enable_async_tensor_parallel=True` with `compile.enable=True`.",
        },
    ),
    Remedy(
        "tensor-inside-node",
        {
            "pytorch": "Keep the tensor-parallel group on the GPUs of one node, or make it smaller: its "
            "operations are in every layer, and accumulating gradients does not save any.",
            "hf": "Keep `tp_size` of `parallelism_config` at the GPUs of one node or below: its operations "
            "are in every layer, and accumulating gradients does not save any.",
            "accelerate": "Keep `--parallelism_config_tp_size` at the GPUs of one node or below: its "
            "operations are in every layer, and accumulating gradients does not save any.",
            "lightning": "Keep `ModelParallelStrategy(tensor_parallel_size=…)` at the GPUs of one node or "
            "below: its operations are in every layer.",
            "deepspeed": 'Keep `"tensor_parallel": {"autotp_size": n}` at the GPUs of one node or below: its '
            "operations are in every layer.",
            "megatron": "Keep `--tensor-model-parallel-size` at the GPUs of one node or below.",
            "bridge": "Keep `tensor_model_parallel_size` at the GPUs of one node or below.",
            "torchtitan": "Keep `parallelism.tensor_parallel_degree` at the GPUs of one node or below.",
        },
        is_in_deepspeed_json=True,
    ),
    Remedy(
        "expert-overlap",
        {
            "pytorch": "Overlap the exchange with the matrix products of another micro-batch, keep its ranks "
            "within a node, and even out the tokens per expert (the router's auxiliary loss).",
            "hf": "Even out the tokens per expert (`router_aux_loss_coef` of the model), and keep experts "
            "that exchange tokens within a node.",
            "megatron": "Overlap it: `--overlap-moe-expert-parallel-comm`, with "
            "`--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep`; "
            "`--moe-shared-expert-overlap` hides part of it behind shared experts.",
            "bridge": "Overlap it: `overlap_moe_expert_parallel_comm = True`, with the flex dispatcher; "
            "setting its backend alone does nothing.",
            "torchtitan": 'Use the dispatcher `moe_comm_backend="hybridep"`, and keep experts that exchange '
            "tokens within a node.",
        },
    ),
    Remedy(
        "exchange",
        {
            "pytorch": "Start the exchange earlier, so that compute which does not need its result hides it, "
            "keep its ranks within a node, and give every rank as much to send.",
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
        is_in_deepspeed_json=True,
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
        is_in_deepspeed_json=True,
    ),
)
