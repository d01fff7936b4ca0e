"""Remedies for what the CPU does while the GPU waits."""

from .remedy import Remedy

REMEDIES = (
    Remedy(
        "remove-syncs",
        {
            "pytorch": "Take `.item()`, `.cpu()` and prints of device values out of the step, or do them "
            "every "
            'hundredth step; `torch.cuda.set_sync_debug_mode("warn")` finds them.',
            "hf": "Set `logging_nan_inf_filter=False` (on by default, it waits for the GPU in every "
            "micro-batch) and a larger `logging_steps`; then take `.item()` out of your own code.",
            "accelerate": "Take `gather(…).item()` and prints of device values out of the step, or do them "
            "every hundredth step; `accelerator.clip_grad_norm_` does not wait.",
            "lightning": "Log less often (`log_every_n_steps`, `log(…, on_step=False)`, "
            "`enable_progress_bar=False`). On several ranks Lightning itself waits once per batch for its "
            "SIGTERM broadcast: no flag turns that off.",
            "deepspeed": 'Set `"bf16": {"check_grad_overflow": false}` and, without clipping in stages 1 and '
            '2, `"compute_grad_norm": false`; fp16 needs its overflow check.',
            "megatron": "`--no-check-for-nan-in-loss-and-grad`, a larger `--log-interval`, "
            "`--timing-log-level 0`.",
            "bridge": "`check_for_nan_in_grad=False`, `rerun_state_machine.check_for_nan_in_loss=False`, and "
            "log less often.",
            "torchtitan": "Log less often: raise `metrics.log_freq`.",
        },
        is_in_deepspeed_json=True,
    ),
    Remedy(
        "compile",
        {
            "pytorch": "Launch fewer and larger kernels: `torch.compile(model)`.",
            "hf": "Launch fewer and larger kernels: `torch_compile=True`.",
            "accelerate": 'Launch fewer and larger kernels: `TorchDynamoPlugin(backend="inductor", '
            "use_regional_compilation=True)`.",
            "lightning": "Launch fewer and larger kernels: wrap the module in `torch.compile` before `fit`.",
            "deepspeed": "Launch fewer and larger kernels: `engine.compile()`.",
            "megatron": "",
            "bridge": "",
            "torchtitan": "Launch fewer and larger kernels: `compile.enable=True`.",
        },
        on="compiled",
    ),
    Remedy(
        "cuda-graphs",
        {
            "pytorch": "With steady shapes replay CUDA graphs: `torch.compile(model, "
            'mode="reduce-overhead")`, '
            "or `torch.cuda.make_graphed_callables`.",
            "hf": 'With steady shapes replay CUDA graphs: `torch_compile_mode="reduce-overhead"`.',
            "accelerate": "With steady shapes replay CUDA graphs: `--dynamo_mode reduce-overhead`.",
            "megatron": "With steady shapes replay CUDA graphs: `--cuda-graph-impl local` (or "
            "`transformer_engine` with `--cuda-graph-modules attn`).",
            "bridge": 'With steady shapes replay CUDA graphs: `cuda_graph_impl = "local"`.',
            "torchtitan": "CUDA graphs are on unless `training.disable_cuda_graphs=True`: see what keeps "
            "them "
            "from being used.",
        },
        note="With expandable segments, graphs of Transformer Engine need `NCCL_GRAPH_REGISTER=0`.",
        on="graphs",
    ),
    Remedy(
        "fused-optimizer",
        {
            "pytorch": "Fuse the optimizer: `AdamW(…, fused=True)`.",
            "hf": "",
            "deepspeed": "",
            "megatron": "",
            "bridge": "",
            "torchtitan": "",
        },
        on="fused optimizer",
    ),
    Remedy(
        "larger-batch",
        {
            "pytorch": "Or a larger batch per GPU, if memory allows.",
            "hf": "Or a larger `per_device_train_batch_size`, if memory allows.",
            "deepspeed": 'Or a larger `"train_micro_batch_size_per_gpu"`, if memory allows.',
            "megatron": "Or a larger `--micro-batch-size`, if memory allows.",
            "bridge": "Or a larger `cfg.train.micro_batch_size`, if memory allows.",
            "torchtitan": "Or a larger `training.local_batch_size`, if memory allows.",
        },
        is_in_deepspeed_json=True,
    ),
    Remedy(
        "gc-freeze",
        {
            "pytorch": "After the start call `gc.collect()`, `gc.freeze()` and `gc.disable()`; then "
            "`gc.collect(1)` every few hundred steps, on all ranks in the same one.",
            "deepspeed": "Turn the collector off: <no gc>.",
            "megatron": "`--manual-gc --manual-gc-interval 100`.",
            "bridge": "`cfg.train.manual_gc = True` and `cfg.train.manual_gc_interval = 100`.",
            "torchtitan": "Raise `training.gc_freq` (50).",
            "hf": "In a callback: after the start `gc.freeze()` and `gc.disable()`, then `gc.collect(1)` "
            "every "
            "few hundred steps, on all ranks in the same one. The Trainer has no flag for it.",
            "lightning": "In a callback: after the start `gc.freeze()` and `gc.disable()`, then "
            "`gc.collect(1)` every few hundred steps, on all ranks in the same one.",
        },
    ),
    Remedy(
        "async-checkpoint",
        {
            "pytorch": "Save in the background: `torch.distributed.checkpoint.async_save`, with a CPU "
            "backend "
            '(`init_process_group("cpu:gloo,cuda:nccl")`) and '
            "`async_checkpointer_type=AsyncCheckpointerType.PROCESS`; or save less often.",
            "hf": "Save less often: a larger `save_steps`, `save_only_model=True`, sharded state dicts. The "
            "Trainer cannot save in the background.",
            "accelerate": "Save less often, and sharded: `--fsdp_state_dict_type SHARDED_STATE_DICT`.",
            "lightning": "Save in the background: `Trainer(plugins=[AsyncCheckpointIO()])` (a thread, not "
            "for "
            "sharded states); or save less often (`every_n_train_steps`).",
            "deepspeed": 'Save less often, or in parallel: `"checkpoint": {"parallel_write": …}`.',
            "megatron": "Save in the background: `--async-save --use-persistent-ckpt-worker --ckpt-format "
            "torch_dist`.",
            "bridge": "Save in the background: `cfg.checkpoint.async_save = True`.",
            "torchtitan": 'Save in the background: `checkpoint.async_mode="async_with_pinned_mem"`.',
        },
        is_in_deepspeed_json=True,
    ),
    Remedy(
        "log-less",
        {
            "pytorch": "Log every hundredth step, read values from the GPU only then, and let a "
            "thread of its own write them.",
            "hf": "A larger `logging_steps`.",
            "lightning": "A larger `Trainer(log_every_n_steps=…)`.",
            "deepspeed": 'A larger `"steps_per_print"`.',
            "megatron": "A larger `--log-interval`.",
            "bridge": "A larger `cfg.logger.log_interval`.",
            "torchtitan": "A larger `metrics.log_freq`.",
        },
        is_in_deepspeed_json=True,
    ),
    Remedy(
        "steady-shapes",
        {
            "pytorch": "If it goes on after the warm-up, shapes change: pad them, or mark them "
            "(`torch._dynamo.mark_dynamic`, `dynamic=True`); after 8 recompilations (`recompile_limit`) a "
            "function runs eagerly. Compile block by block (`layer.compile()`) to make each shorter.",
            "hf": "If it goes on after the warm-up, shapes change: `pad_to_multiple_of` in the collator; "
            "after "
            "8 recompilations (`recompile_limit`) a function runs eagerly.",
            "accelerate": "If it goes on after the warm-up, shapes change: pad them, or "
            "`--dynamo_use_dynamic`; "
            "`--dynamo_use_regional_compilation` makes each compilation shorter.",
        },
    ),
    Remedy(
        "allocator",
        {
            "pytorch": "Set <expandable segments>, keep the shapes steady, and take "
            "`torch.cuda.empty_cache()` out of the loop.",
            "hf": "Set <expandable segments>, keep the shapes steady, and leave `torch_empty_cache_steps` "
            "unset.",
            "megatron": "Set <expandable segments>, and keep `--empty-unused-memory-level 0`.",
        },
        note="Not with tensors shared by CUDA IPC or with managed memory.",
    ),
)
