"""Activations computed again instead of kept."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import config, python, shell

REMEDY = Remedy(
    name="checkpoint-activations",
    does="Layers keep their inputs only and compute the rest again in backward, which frees memory for time.",
    changes={
        "pytorch": Change(
            snippets=(
                python(
                    "+from torch.utils.checkpoint import checkpoint",
                    "+",
                    "-hidden = layer(hidden)",
                    "+hidden = checkpoint(layer, hidden, use_reentrant=False)",
                ),
            ),
        ),
        "hf": Change(
            snippets=(
                python("TrainingArguments(activation_checkpointing=True)", since="transformers 5.11"),
                python("TrainingArguments(gradient_checkpointing=True)", until="transformers 5.11"),
            ),
            note="Under FSDP use `fsdp_config` instead: the argument adds an all-gather there.",
        ),
        "accelerate": Change(
            snippets=(shell("accelerate launch --fsdp_activation_checkpointing true train.py"),),
        ),
        "lightning": Change(
            snippets=(
                python(
                    "trainer = Trainer(",
                    "    strategy=FSDPStrategy(activation_checkpointing_policy={Layer})",
                    ")",
                ),
            ),
        ),
        "deepspeed": Change(
            snippets=(config('{"activation_checkpointing": {"partition_activations": true}}'),),
            note="The model has to call `deepspeed.checkpointing.checkpoint`.",
        ),
        "megatron": Change(
            snippets=(
                shell("--recompute-granularity full --recompute-method uniform", "--recompute-num-layers 1"),
            ),
            note="`--checkpoint-activations` ends with an error.",
        ),
        "bridge": Change(
            snippets=(
                python(
                    'cfg.model.recompute_granularity = "full"',
                    'cfg.model.recompute_method = "uniform"',
                    "cfg.model.recompute_num_layers = 1",
                ),
            ),
        ),
        "torchtitan": Change(
            snippets=(python("config.activation_checkpoint = FullAC.Config()", since="torchtitan 0.3"),),
        ),
    },
    safety="bit-identical",
    when="Memory is what is short: calls fail or retry for lack of it, or a larger batch would pay.",
    safe="Random numbers are brought back; under `torch.compile` numerically close.",
    costs="About one more forward: a third of the step of full training, half of that of LoRA.",
    limits="Not with Megatron-LM's CPU offloading or overlapped experts. Hooks on saved tensors inside a "
    "layer switch it off.",
    seen="Forward kernels run once more inside backward, and the peak of memory falls.",
    recipe="kernel_families",
    helper="checkpoint",
    of_training=True,
)
