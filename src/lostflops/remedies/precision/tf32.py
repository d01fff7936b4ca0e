"""fp32 matrix products in TF32."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python

REMEDY = Remedy(
    name="tf32",
    does="fp32 matrix products use the tensor cores with a mantissa of 10 bits.",
    changes={
        "pytorch": Change(
            "Or let fp32 matmuls use TF32: <tf32>. Set it in one way only: once `fp32_precision` "
            "is set, reading `allow_tf32` raises.",
            snippets=(
                python('torch.backends.cuda.matmul.fp32_precision = "tf32"', since="torch 2.9"),
                python('torch.set_float32_matmul_precision("high")', until="torch 2.9"),
            ),
        ),
        "hf": Change(
            "Or let fp32 matmuls use TF32: `tf32=True`.",
            snippets=(python("TrainingArguments(tf32=True)"),),
        ),
    },
    safety="numerically close",
    when="The matrix products are fp32 on purpose, and the GPU is an Ampere or later.",
    safe="Inputs of products are rounded to 10 bits; sums stay fp32.",
    limits="Use one spelling: once `fp32_precision` is set, reading `allow_tf32` or "
    "`get_float32_matmul_precision()` raises.",
    seen="The names of the kernels hold `tf32`, and fp32 matrix products are listed on tensor cores.",
    recipe="precision_mix",
    edit="faster:fp32=2",
    note="Compare the loss before you keep it.",
    needs="tf32",
    unsure="TF32 needs Ampere or later.",
)
