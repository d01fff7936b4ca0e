"""A loss that does not keep all logits."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python, shell

REMEDY = Remedy(
    name="fused-loss",
    does="The head and its loss go through the tokens in chunks, and never hold all logits in fp32.",
    changes={
        "pytorch": Change(
            "Compute head and loss together: Liger's `LigerFusedLinearCrossEntropyLoss`, Cut Cross-Entropy "
            "(`linear_cross_entropy`), or in chunks of tokens as torchtune does.",
            snippets=(
                shell("pip install liger-kernel"),
                python(
                    "-loss = cross_entropy(head(hidden).float(), labels)",
                    "+loss = LigerFusedLinearCrossEntropyLoss()(",
                    "+    head.weight, hidden, labels",
                    "+)",
                    title="from liger_kernel.transformers",
                ),
            ),
            note="`torch.compile` of the loss alone fuses its passes over the logits, and keeps them.",
        ),
        "hf": Change(
            "Compute head and loss together: `use_liger_kernel=True`.",
            snippets=(python("TrainingArguments(use_liger_kernel=True)"),),
            note="It knows the models that Liger knows.",
        ),
        "deepspeed": Change(instead="DeepSpeed has none of its own: the model's loss is the user's."),
        "megatron": Change(
            "Fuse the loss: `--cross-entropy-loss-fusion`.",
            snippets=(shell("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te"),),
        ),
        "bridge": Change(
            "Fuse the loss: `cross_entropy_loss_fusion=True`.",
            snippets=(python("cfg.model.cross_entropy_loss_fusion = True"),),
        ),
        "torchtitan": Change(
            'Compile the loss: `compile.components=["model", "loss"]`; `ChunkedLossWrapper` computes it in '
            "chunks.",
            snippets=(
                python("config.compile.enable = True", 'config.compile.components = ["model", "loss"]'),
            ),
        ),
    },
    safety="numerically close",
    when="Log-softmax and cross-entropy over a large vocabulary take a twentieth of the step, or the peak of "
    "memory is at the head.",
    safe="The same loss, added up in another order.",
    costs="Products of the head are computed in chunks, which are smaller.",
    limits="Not where the logits are returned or go into metrics. With a vocabulary that is split over ranks "
    "the loss of the framework that splits it.",
    seen="Kernels of log-softmax are gone, and the peak of memory is lower.",
    recipe="kernel_summary",
    of_training=True,
)
