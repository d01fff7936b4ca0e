"""Training in bf16."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import config, python, shell

REMEDY = Remedy(
    name="bf16",
    does="Matrix products run in bf16 on the tensor cores, with fp32 master weights.",
    changes={
        "pytorch": Change(
            'Train in bf16: `torch.autocast("cuda", dtype=torch.bfloat16)`.',
            snippets=(
                python(
                    "-loss = model(**batch).loss",
                    '+with torch.autocast("cuda", dtype=torch.bfloat16):',
                    "+    loss = model(**batch).loss",
                ),
            ),
        ),
        "pytorch/fsdp": Change(
            "Train in bf16: `MixedPrecisionPolicy(param_dtype=torch.bfloat16, "
            "reduce_dtype=torch.float32)` for `fully_shard`.",
            snippets=(
                python(
                    "policy = MixedPrecisionPolicy(",
                    "    param_dtype=torch.bfloat16, reduce_dtype=torch.float32",
                    ")",
                    "fully_shard(model, mp_policy=policy)",
                ),
            ),
        ),
        "hf": Change(
            "Train in bf16: `bf16=True` in `TrainingArguments`.",
            snippets=(python("TrainingArguments(bf16=True)"),),
            note="transformers 5 loads a model in the dtype of its checkpoint: see that the weights "
            "that are trained are fp32.",
        ),
        "accelerate": Change(
            'Train in bf16: `Accelerator(mixed_precision="bf16")`, or `accelerate launch '
            "--mixed_precision bf16`.",
            snippets=(
                python('accelerator = Accelerator(mixed_precision="bf16")'),
                shell("accelerate launch --mixed_precision bf16 train.py", title="or on the command line"),
            ),
        ),
        "lightning": Change(
            'Train in bf16: `Trainer(precision="bf16-mixed")`.',
            snippets=(python('trainer = Trainer(precision="bf16-mixed")'),),
            note='`"bf16-true"` keeps no fp32 weights and changes convergence.',
        ),
        "deepspeed": Change(
            'Train in bf16: `"bf16": {"enabled": true}` in the JSON.',
            snippets=(config('{"bf16": {"enabled": true}}'),),
        ),
        "megatron": Change(
            "Train in bf16: `--bf16`.",
            snippets=(shell("--bf16"),),
        ),
        "bridge": Change(
            'Train in bf16: `cfg.mixed_precision = "bf16_mixed"`.',
            snippets=(python('cfg.mixed_precision = "bf16_mixed"'),),
            note="NeMo 2: `plugins=bf16_mixed()` of the trainer.",
        ),
        "torchtitan": Change(
            'Train in bf16: keep `training.mixed_precision_param = "bfloat16"` (the default).',
            snippets=(python('config.training.mixed_precision_param = "bfloat16"'),),
        ),
    },
    safety="numerically close",
    when="The GPU has bf16 tensor cores: Ampere or later, MI200 or later.",
    safe="Weights and their updates stay fp32; keep softmax, norms and the loss in fp32, as autocast does.",
    costs="2 bytes per parameter for the cast weights; activations take half.",
    limits="Not together with fp16.",
    seen="Matrix products are listed as bf16 on tensor cores.",
    recipe="precision_mix",
    edit="faster:fp32=2",
    helper="autocast",
    needs="bf16",
    unsure="Before Ampere bf16 is emulated: there use fp16 with a gradient scaler.",
    is_in_deepspeed_json=True,
)
