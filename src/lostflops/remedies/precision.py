"""Remedies for matrix work off the tensor cores."""

from .remedy import Remedy

REMEDIES = (
    Remedy(
        "bf16",
        {
            "pytorch": 'Train in bf16: `torch.autocast("cuda", dtype=torch.bfloat16)`.',
            "pytorch/fsdp": "Train in bf16: `MixedPrecisionPolicy(param_dtype=torch.bfloat16, "
            "reduce_dtype=torch.float32)` for `fully_shard`.",
            "hf": "Train in bf16: `bf16=True` in `TrainingArguments`.",
            "accelerate": 'Train in bf16: `Accelerator(mixed_precision="bf16")`, or '
            "`accelerate launch --mixed_precision bf16`.",
            "lightning": 'Train in bf16: `Trainer(precision="bf16-mixed")`.',
            "deepspeed": 'Train in bf16: `"bf16": {"enabled": true}` in the JSON.',
            "megatron": "Train in bf16: `--bf16`.",
            "bridge": 'Train in bf16: `cfg.mixed_precision = "bf16_mixed"`.',
            "torchtitan": 'Train in bf16: keep `training.mixed_precision_param = "bfloat16"` (the default).',
        },
        needs="bf16",
        unsure="Before Ampere bf16 is emulated: there use fp16 with a gradient scaler.",
        is_in_deepspeed_json=True,
    ),
    Remedy(
        "fp16",
        {
            "pytorch": "Train in fp16, as this GPU's tensor cores take no bf16: "
            '`torch.autocast("cuda", dtype=torch.float16)` with a `torch.amp.GradScaler("cuda")`.',
            "hf": "Train in fp16, as this GPU's tensor cores take no bf16: `fp16=True` in "
            "`TrainingArguments`.",
            "accelerate": "Train in fp16, as this GPU's tensor cores take no bf16: "
            '`Accelerator(mixed_precision="fp16")`.',
            "lightning": "Train in fp16, as this GPU's tensor cores take no bf16: "
            '`Trainer(precision="16-mixed")`.',
            "deepspeed": "Train in fp16, as this GPU's tensor cores take no bf16: "
            '`"fp16": {"enabled": true, "initial_scale_power": 16}` in the JSON.',
            "megatron": "Train in fp16, as this GPU's tensor cores take no bf16: `--fp16`.",
            "bridge": "Train in fp16, as this GPU's tensor cores take no bf16: "
            '`cfg.mixed_precision = "fp16_mixed"`.',
        },
        needs="fp16",
        lacks="bf16",
        note="Its gradient scaler reads one value per step from the GPU.",
        is_in_deepspeed_json=True,
    ),
    Remedy(
        "tf32",
        {
            "pytorch": "Or let fp32 matmuls use TF32: <tf32>. Set it in one way only: once `fp32_precision` "
            "is set, reading `allow_tf32` raises.",
            "hf": "Or let fp32 matmuls use TF32: `tf32=True`.",
        },
        needs="tf32",
        note="Compare the loss before you keep it.",
        unsure="TF32 needs Ampere or later.",
    ),
    Remedy(
        "no-float64",
        {
            "pytorch": "Find the tensor that is float64: PyTorch makes them from NumPy arrays by default; "
            "cast it with `.float()` where it is made.",
        },
    ),
)
