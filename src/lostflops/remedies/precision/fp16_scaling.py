"""Training in fp16 with a gradient scaler."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import config, python, shell

REMEDY = Remedy(
    name="fp16-scaling",
    does="Matrix products run in fp16 on the tensor cores, and a scaler keeps small gradients from "
    "vanishing.",
    changes={
        "pytorch": Change(
            'Train in fp16, as this GPU\'s tensor cores take no bf16: `torch.autocast("cuda", '
            'dtype=torch.float16)` with a `torch.amp.GradScaler("cuda")`.',
            snippets=(
                python(
                    'scaler = torch.amp.GradScaler("cuda")',
                    'with torch.autocast("cuda", dtype=torch.float16):',
                    "    loss = model(**batch).loss",
                    "scaler.scale(loss).backward()",
                    "scaler.step(optimizer)",
                    "scaler.update()",
                ),
            ),
        ),
        "hf": Change(
            "Train in fp16, as this GPU's tensor cores take no bf16: `fp16=True` in `TrainingArguments`.",
            snippets=(python("TrainingArguments(fp16=True)"),),
        ),
        "accelerate": Change(
            'Train in fp16, as this GPU\'s tensor cores take no bf16: `Accelerator(mixed_precision="fp16")`.',
            snippets=(
                python('accelerator = Accelerator(mixed_precision="fp16")'),
                shell("accelerate launch --mixed_precision fp16 train.py", title="or on the command line"),
            ),
        ),
        "lightning": Change(
            'Train in fp16, as this GPU\'s tensor cores take no bf16: `Trainer(precision="16-mixed")`.',
            snippets=(python('trainer = Trainer(precision="16-mixed")'),),
        ),
        "deepspeed": Change(
            'Train in fp16, as this GPU\'s tensor cores take no bf16: `"fp16": {"enabled": '
            'true, "initial_scale_power": 16}` in the JSON.',
            snippets=(config('{"fp16": {"enabled": true, "initial_scale_power": 16}}'),),
        ),
        "megatron": Change(
            "Train in fp16, as this GPU's tensor cores take no bf16: `--fp16`.",
            snippets=(shell("--fp16"),),
        ),
        "bridge": Change(
            'Train in fp16, as this GPU\'s tensor cores take no bf16: `cfg.mixed_precision = "fp16_mixed"`.',
            snippets=(python('cfg.mixed_precision = "fp16_mixed"'),),
        ),
        "torchtitan": Change(
            instead="torchtitan trains in bf16 or fp32 only.",
        ),
    },
    safety="numerically close",
    when="The GPU has fp16 tensor cores and none for bf16: V100, T4.",
    safe="That holds as long as fewer than one step in a hundred is skipped for an overflow.",
    costs="The scaler reads one value per step from the GPU, which waits for it.",
    limits="Not together with bf16. Unscale gradients before they are clipped.",
    seen="Matrix products are listed as fp16 on tensor cores, and each step reads one value for the scaler.",
    recipe="precision_mix",
    edit="faster:fp32=2",
    helper="to_fp16",
    note="Its gradient scaler reads one value per step from the GPU.",
    needs="fp16",
    lacks="bf16",
    is_in_deepspeed_json=True,
    of_training=True,
)
