"""Parameters fetched further ahead."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import config, python, shell

REMEDY = Remedy(
    name="fsdp-prefetch",
    does="FSDP fetches the parameters of the next layers before they are needed.",
    changes={
        "pytorch": Change(
            "Prefetch further ahead (FSDP2: `set_modules_to_forward_prefetch`, "
            "`set_modules_to_backward_prefetch`).",
            snippets=(
                python(
                    "for i, layer in enumerate(model.layers):",
                    "    layer.set_modules_to_forward_prefetch(model.layers[i + 1 : i + 3])",
                    "    layer.set_modules_to_backward_prefetch(",
                    "        model.layers[max(0, i - 2) : i][::-1]",
                    "    )",
                ),
            ),
            note="FSDP1: `FullyShardedDataParallel(forward_prefetch=True, limit_all_gathers=True)`.",
        ),
        "pytorch/ddp": Change(
            instead="DDP keeps all parameters on every rank: there is nothing to fetch.",
        ),
        "hf": Change(
            "FSDP2 prefetches further ahead only from code: `set_modules_to_forward_prefetch` "
            "after `prepare`.",
            snippets=(
                python(
                    "TrainingArguments(",
                    '    fsdp=True, fsdp_config={"version": 1, "forward_prefetch": True}',
                    ")",
                ),
            ),
            note="That is FSDP1. On FSDP2, the default, call `set_modules_to_forward_prefetch` as in "
            "plain PyTorch.",
        ),
        "hf/ddp": Change(
            instead="DDP keeps all parameters on every rank: there is nothing to fetch.",
        ),
        "accelerate": Change(
            "FSDP2 prefetches further ahead only from code (`forward_prefetch` raises there): "
            "`set_modules_to_forward_prefetch` after `prepare`.",
            snippets=(
                python(
                    "model = accelerator.prepare(model)",
                    "for i, layer in enumerate(model.layers):",
                    "    layer.set_modules_to_forward_prefetch(model.layers[i + 1 : i + 3])",
                ),
            ),
        ),
        "accelerate/ddp": Change(
            instead="DDP keeps all parameters on every rank: there is nothing to fetch.",
        ),
        "lightning": Change(
            "Prefetch further ahead: `FSDPStrategy(forward_prefetch=True)`.",
            snippets=(python("trainer = Trainer(strategy=FSDPStrategy(forward_prefetch=True))"),),
        ),
        "lightning/ddp": Change(
            instead="DDP keeps all parameters on every rank: there is nothing to fetch.",
        ),
        "deepspeed": Change(
            'In stage 3 fetch further ahead: a larger `"stage3_prefetch_bucket_size"`.',
            snippets=(
                config(
                    "{",
                    '  "zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 100000000}',
                    "}",
                ),
            ),
            note="It counts elements; the default is 5e7.",
        ),
        "megatron": Change(
            "With Megatron-FSDP fetch into two buffers: `--fsdp-double-buffer`.",
            snippets=(shell("--use-megatron-fsdp --fsdp-double-buffer"),),
        ),
        "bridge": Change(
            "With Megatron-FSDP fetch into two buffers: `cfg.ddp.fsdp_double_buffer = True`.",
            snippets=(python("cfg.ddp.use_megatron_fsdp = True", "cfg.ddp.fsdp_double_buffer = True"),),
        ),
        "torchtitan": Change(
            instead="torchtitan has no option for it and leaves it to FSDP2, except with experts: call "
            "`set_modules_to_forward_prefetch` in your model's `parallelize`.",
        ),
    },
    safety="bit-identical",
    when="All-gathers are exposed in front of layers.",
    costs="Memory for one or two more unsharded layers.",
    limits="Not with parameters that are offloaded to the host. With experts the host waits for counts of "
    "tokens, which breaks the order of prefetching.",
    seen="All-gathers start before the kernels of the layer before them end.",
    recipe="communication_exposed",
    edit="overlap",
    is_in_deepspeed_json=True,
)
