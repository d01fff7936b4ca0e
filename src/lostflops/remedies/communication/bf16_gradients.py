"""Gradients reduced in bf16."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import config, python, shell

REMEDY = Remedy(
    name="bf16-gradients",
    does="Gradients are sent in bf16, which halves the bytes of an fp32 reduction.",
    changes={
        "pytorch": Change(
            snippets=(
                python(
                    "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks",
                    "",
                    "model.register_comm_hook(None, default_hooks.bf16_compress_hook)",
                    title="with DDP",
                ),
                python(
                    "policy = MixedPrecisionPolicy(",
                    "    param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16",
                    ")",
                    "fully_shard(layer, mp_policy=policy)",
                    title="with FSDP2",
                ),
            ),
            note="From torch 2.15 `reduce_dtype=None` means fp32 for fp32 parameters; before, it "
            "followed `param_dtype`.",
        ),
        "hf": Change(
            instead="The Trainer reduces in bf16 already where it trains in bf16 under FSDP, and has no "
            "switch for DDP.",
        ),
        "accelerate": Change(
            snippets=(
                python(
                    "hook = DistributedDataParallelKwargs(",
                    "    comm_hook=DDPCommunicationHookType.BF16",
                    ")",
                    "accelerator = Accelerator(kwargs_handlers=[hook])",
                ),
            ),
            note="FSDP with bf16 reduces in bf16 already.",
        ),
        "lightning": Change(
            snippets=(
                python(
                    "trainer = Trainer(",
                    "    strategy=DDPStrategy(ddp_comm_hook=default_hooks.bf16_compress_hook)",
                    ")",
                ),
            ),
        ),
        "deepspeed": Change(
            snippets=(config('{"communication_data_type": "bf16"}'),),
        ),
        "megatron": Change(
            snippets=(shell("--grad-reduce-in-bf16"),),
        ),
        "bridge": Change(
            snippets=(python("cfg.ddp.grad_reduce_in_fp32 = False"),),
        ),
        "torchtitan": Change(
            instead="torchtitan reduces in fp32 only.",
        ),
    },
    safety="numerically close",
    when="Gradients are reduced in fp32 and exposed.",
    safe="That holds below about 128 data-parallel ranks; sums over more lose precision, and the loss "
    "has to be watched.",
    limits="Not with `--accumulate-allreduce-grads-in-fp32` of Megatron-LM.",
    seen="The messages of gradients have half the bytes.",
    recipe="communication_summary",
    edit="faster-links=2",
    on="bf16 gradients",
    of_training=True,
)
