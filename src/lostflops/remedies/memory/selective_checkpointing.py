"""Less computed again."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python, shell

REMEDY = Remedy(
    name="selective-checkpointing",
    does="Only what is cheap to compute and large to keep is computed again, or fewer layers are.",
    changes={
        "pytorch": Change(
            snippets=(
                python(
                    "from torch.utils.checkpoint import (",
                    "    CheckpointPolicy,",
                    "    create_selective_checkpoint_contexts,",
                    ")",
                    "",
                    "",
                    "def policy(context, operator, *args, **kwargs):",
                    "    kept = (",
                    "        operator",
                    "        is torch.ops.aten._scaled_dot_product_flash_attention.default",
                    "    )",
                    "    return (",
                    "        CheckpointPolicy.MUST_SAVE",
                    "        if kept",
                    "        else CheckpointPolicy.PREFER_RECOMPUTE",
                    "    )",
                    "",
                    "",
                    "contexts = functools.partial(create_selective_checkpoint_contexts, policy)",
                    "hidden = checkpoint(layer, hidden, use_reentrant=False, context_fn=contexts)",
                ),
            ),
        ),
        "hf": Change(
            snippets=(
                python(
                    "TrainingArguments(",
                    "    activation_checkpointing=True,",
                    '    activation_checkpointing_kwargs={"every_n_layers": 2},',
                    ")",
                    since="transformers 5.11",
                ),
            ),
            note="It chooses layers, not operators.",
        ),
        "accelerate": Change(
            instead="Accelerate checkpoints all layers that FSDP wraps: choose in your own code, as in "
            "plain PyTorch.",
        ),
        "lightning": Change(
            snippets=(
                python(
                    "trainer = Trainer(",
                    "    strategy=FSDPStrategy(activation_checkpointing_policy={LargeLayer})",
                    ")",
                ),
            ),
            note="It chooses layers by their class.",
        ),
        "deepspeed": Change(
            instead="DeepSpeed checkpoints what your model's code tells it to: choose there.",
        ),
        "megatron": Change(
            snippets=(shell("--recompute-granularity selective --recompute-modules core_attn layernorm"),),
            note="With FlashAttention `core_attn` frees nothing. Or fewer layers: a lower "
            "`--recompute-num-layers` with `--recompute-method block`.",
        ),
        "bridge": Change(
            snippets=(
                python(
                    'cfg.model.recompute_granularity = "selective"',
                    'cfg.model.recompute_modules = ["core_attn", "layernorm"]',
                ),
            ),
        ),
        "torchtitan": Change(
            snippets=(python("config.activation_checkpoint = SelectiveAC.Config()", since="torchtitan 0.3"),),
            note="It is the default.",
        ),
    },
    safety="bit-identical",
    when="Everything is computed again, and the peak of memory leaves a fifth of the device free.",
    safe="The same operators on the same inputs.",
    costs="Memory for what is kept.",
    limits="Hooks on saved tensors around the checkpoint see nothing.",
    seen="Fewer kernels of forward run inside backward: those of attention once.",
    recipe="kernel_families",
    helper="checkpoint",
    of_training=True,
)
