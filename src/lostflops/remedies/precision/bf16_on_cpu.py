"""Training in bf16 on a CPU."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python

REMEDY = Remedy(
    name="bf16-on-cpu",
    does="Matrix products run in bf16 on the CPU's own instructions, with fp32 weights.",
    changes={
        "pytorch": Change(
            snippets=(
                python(
                    "-loss = model(**batch).loss",
                    '+with torch.autocast("cpu", dtype=torch.bfloat16):',
                    "+    loss = model(**batch).loss",
                ),
            ),
        ),
        "hf": Change(snippets=(python("TrainingArguments(use_cpu=True, bf16=True)"),)),
        "accelerate": Change(
            snippets=(python('accelerator = Accelerator(cpu=True, mixed_precision="bf16")'),)
        ),
        "lightning": Change(
            snippets=(python('trainer = Trainer(accelerator="cpu", precision="bf16-mixed")'),)
        ),
    },
    safety="numerically close",
    when="Linux lists `amx_bf16`, `avx512_bf16` or `bf16` (Arm) in `/proc/cpuinfo`: PyTorch emulates bf16 "
    "elsewhere, and is slower for it.",
    safe="Weights and their updates stay fp32; keep softmax, norms and the loss in fp32, as autocast does.",
    costs="2 bytes per parameter for the cast weights; small products take longer, for their casts.",
    seen="Operators list products with bf16 inputs.",
    recipe="operator_summary",
    helper="autocast",
)
