"""Gradients sent while backward runs."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import config, python, shell

REMEDY = Remedy(
    name="overlap-communication",
    does="Gradients are sent, and parameters fetched, while compute runs.",
    changes={
        "pytorch": Change(
            "Hide it<unless bf16 gradients: , or reduce in bf16>: DDP and FSDP2 overlap by themselves where "
            "layers are wrapped one by one and no hook waits, and FSDP2 fetches weights further ahead with "
            "`set_modules_to_forward_prefetch`.",
            snippets=(
                python(
                    "for layer in model.layers:",
                    "    fully_shard(layer, mp_policy=policy)  # FSDP2: one group per layer",
                    "model = DistributedDataParallel(model)  # DDP overlaps by itself",
                ),
            ),
            note="Both overlap by themselves where layers are wrapped one by one and no hook waits.",
        ),
        "pytorch/ddp": Change(
            "DDP overlaps by itself; what stays exposed is the last buckets and slow links: "
            "<unless bf16 gradients: reduce in bf16 (`bf16_compress_hook`), or >try another `bucket_cap_mb` "
            "(25; the first bucket is 1 MiB unless it is set).",
            snippets=(
                python(
                    "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks",
                    "",
                    "model.register_comm_hook(None, default_hooks.bf16_compress_hook)",
                ),
            ),
            note="DDP overlaps by itself unless `no_sync`, a hook that waits or unused parameters "
            "keep it from it.",
        ),
        "pytorch/fsdp": Change(
            instead="FSDP overlaps by itself; how far ahead it fetches is `fsdp-prefetch`.",
        ),
        "hf": Change(
            "DDP overlaps by itself; what stays exposed is the last buckets and slow links: try "
            "another `ddp_bucket_cap_mb`.",
            snippets=(python("TrainingArguments(ddp_bucket_cap_mb=50)"),),
        ),
        "hf/fsdp": Change(
            instead="FSDP overlaps by itself; how far ahead it fetches is `fsdp-prefetch`.",
        ),
        "accelerate": Change(
            "DDP overlaps by itself; what stays exposed is the last buckets and slow links: try "
            "`DistributedDataParallelKwargs(bucket_cap_mb=n)`.",
            snippets=(
                python(
                    "accelerator = Accelerator(",
                    "    kwargs_handlers=[DistributedDataParallelKwargs(bucket_cap_mb=50)]",
                    ")",
                ),
            ),
        ),
        "accelerate/fsdp": Change(
            instead="FSDP overlaps by itself; how far ahead it fetches is `fsdp-prefetch`.",
        ),
        "lightning": Change(
            "Try `DDPStrategy(bucket_cap_mb=n, gradient_as_bucket_view=True)`; DDP overlaps by itself.",
            snippets=(
                python(
                    "trainer = Trainer(",
                    "    strategy=DDPStrategy(bucket_cap_mb=50, gradient_as_bucket_view=True)",
                    ")",
                ),
            ),
        ),
        "lightning/fsdp": Change(
            instead="FSDP overlaps by itself; how far ahead it fetches is `fsdp-prefetch`.",
        ),
        "deepspeed": Change(
            'Overlap it: `"overlap_comm": true` in `zero_optimization` (false by default in stages 1 and 2).',
            snippets=(config('{"zero_optimization": {"overlap_comm": true}}'),),
        ),
        "megatron": Change(
            "Overlap it: `--overlap-grad-reduce --overlap-param-gather` with `--use-distributed-optimizer`.",
            snippets=(shell("--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"),),
            note="Persistent kernels of layer norms block the overlap: "
            "`NVTE_FWD_LAYERNORM_SM_MARGIN=16 NVTE_BWD_LAYERNORM_SM_MARGIN=16` leaves room.",
        ),
        "bridge": Change(
            "<unless bf16 gradients: Reduce in bf16 (`grad_reduce_in_fp32=False`). >Keep "
            "`overlap_grad_reduce` and `overlap_param_gather` of `CommOverlapConfig` on (the default).",
            snippets=(
                python(
                    "cfg.comm_overlap = CommOverlapConfig(",
                    "    tp_comm_overlap=False,",
                    "    overlap_grad_reduce=True,",
                    "    overlap_param_gather=True,",
                    ")",
                    "cfg.ddp.grad_reduce_in_fp32 = False",
                ),
            ),
        ),
        "torchtitan": Change(
            instead="FSDP2 overlaps by itself in torchtitan.",
        ),
    },
    safety="numerically close",
    when="Communication starts after the compute that it could run beside has ended.",
    safe="Sums may be formed in another order. Reducing in bf16 also rounds.",
    costs="Buffers for what is under way; kernels are a few per cent slower beside communication.",
    seen="A larger share of the communication is hidden behind compute.",
    recipe="communication_exposed",
    edit="overlap",
    is_in_deepspeed_json=True,
)
