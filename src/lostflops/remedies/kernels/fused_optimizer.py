"""One kernel for the optimizer's step."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python

REMEDY = Remedy(
    name="fused-optimizer",
    does="The optimizer updates many parameters with one kernel.",
    changes={
        "pytorch": Change(
            "Fuse the optimizer: `fused=True`, as in `AdamW(…, fused=True)`.",
            snippets=(
                python(
                    "-optimizer = torch.optim.AdamW(model.parameters())",
                    "+optimizer = torch.optim.AdamW(model.parameters(), fused=True)",
                ),
            ),
        ),
        "hf": Change(
            'Fuse the optimizer: `optim="adamw_torch_fused"` in `TrainingArguments`.',
            snippets=(python('TrainingArguments(optim="adamw_torch_fused")'),),
            note="From torch 2.8 on that is the default: another `optim`, or an optimizer that you hand to "
            "the Trainer, is not fused by it.",
        ),
        "deepspeed": Change(
            instead="The optimizer that DeepSpeed's JSON names is its FusedAdam already.",
        ),
        "megatron": Change(
            instead="Megatron-LM takes the fused optimizer of Transformer Engine or Apex already.",
        ),
        "bridge": Change(
            instead="NeMo and Megatron-Bridge take the fused optimizer of Transformer Engine or Apex "
            "already.",
        ),
        "torchtitan": Change(
            instead="The optimizer is fused by default.",
        ),
    },
    safety="numerically close",
    when="Many elementwise kernels run in the optimizer's step.",
    safe="The same update, rounded in another order.",
    limits="Not with `differentiable=True`.",
    seen="Kernels of a fused optimizer stand where many elementwise ones stood at the end of the step.",
    recipe="kernel_summary",
    on="fused optimizer",
    of_training=True,
)
