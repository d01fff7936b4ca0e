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
        note="Before Ampere bf16 is emulated: there use fp16 with a gradient scaler.",
    ),
    Remedy(
        "tf32",
        {
            "pytorch": "Or let fp32 matmuls use TF32 from Ampere on: "
            "`torch.set_float32_matmul_precision('high')`.",
            "hf": "Or let fp32 matmuls use TF32 from Ampere on: `tf32=True`.",
        },
        note="Set it in one way only: once `fp32_precision` is set, reading `allow_tf32` raises. Compare the "
        "loss before you keep it.",
    ),
    Remedy(
        "no-float64",
        {
            "pytorch": "Find the tensor that is float64: PyTorch makes them from NumPy arrays by default; "
            "cast it with `.float()` where it is made.",
        },
    ),
)
