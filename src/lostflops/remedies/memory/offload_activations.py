"""Activations in host memory until backward."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import config, python, shell

REMEDY = Remedy(
    name="offload-activations",
    does="Activations wait for backward in host memory; the copies run beside compute.",
    changes={
        "pytorch": Change(
            snippets=(
                python(
                    "with lostflops.optimize.offload(model) as engine:",
                    "    model(**batch).loss.backward()",
                ),
                python(
                    "with torch.autograd.graph.save_on_cpu(pin_memory=True):",
                    "    loss = model(**batch).loss",
                    title="or, waiting for each copy",
                ),
            ),
            note="`save_on_cpu` waits for each copy, `lostflops.optimize.offload` does not.",
        ),
        "hf": Change(
            snippets=(
                python(
                    "TrainingArguments(",
                    "    activation_checkpointing=True,",
                    '    activation_checkpointing_kwargs={"offload": True},',
                    ")",
                    since="transformers 5.11",
                ),
            ),
            note="TRL: `activation_offloading=True`.",
        ),
        "accelerate": Change(
            snippets=(
                shell(
                    "accelerate launch --fsdp_activation_checkpointing true \\",
                    "  --fsdp_activation_checkpointing_offload true train.py",
                ),
            ),
        ),
        "deepspeed": Change(
            snippets=(
                config(
                    "{",
                    '  "activation_checkpointing": {',
                    '    "cpu_checkpointing": true,',
                    '    "partition_activations": true',
                    "  }",
                    "}",
                ),
            ),
        ),
        "megatron": Change(
            snippets=(
                shell(
                    "# without pipeline stages",
                    "--cpu-offloading-num-layers 8",
                    "# with them",
                    "--fine-grained-activation-offloading --offload-modules core_attn attn_proj",
                ),
            ),
        ),
        "bridge": Change(
            snippets=(python("cfg.model.cpu_offloading = True", "cfg.model.cpu_offloading_num_layers = 8"),),
        ),
        "torchtitan": Change(
            instead="torchtitan has no offloading of activations: wrap the model in "
            "`lostflops.optimize.offload`, as in plain PyTorch.",
        ),
    },
    safety="bit-identical",
    when="The peak of memory is activations, and the link can carry them beside compute: `lostflops "
    "plan offload` says whether.",
    costs="Page-locked host memory for the activations, and the link.",
    limits="In Megatron-LM not with recomputation, CUDA graphs or pipeline stages; the fine-grained form "
    "takes stages.",
    seen="Copies from and to the device run inside the spans of kernels, and less than 2 % of the "
    "step is exposed copies.",
    recipe="copy_summary_by_time",
    helper="offload",
    of_training=True,
)
