"""Matrix products in FP8."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python, shell

REMEDY = Remedy(
    name="fp8",
    does="The large matrix products run in FP8, with scales that follow the values.",
    changes={
        "pytorch": Change(
            snippets=(
                python(
                    "from torchao.float8 import Float8LinearConfig, convert_to_float8_training",
                    "",
                    'config = Float8LinearConfig.from_recipe_name("rowwise")',
                    "convert_to_float8_training(model, config=config)",
                    "model = torch.compile(model)",
                ),
            ),
        ),
        "accelerate": Change(
            snippets=(shell("accelerate launch --mixed_precision fp8 --fp8_backend ao train.py"),),
            note="`FP8RecipeKwargs` is deprecated: use `AORecipeKwargs` or `TERecipeKwargs`.",
        ),
        "lightning": Change(
            snippets=(python('trainer = Trainer(precision="transformer-engine")'),),
        ),
        "megatron": Change(
            snippets=(shell("--fp8-format hybrid --fp8-recipe tensorwise"),),
        ),
        "bridge": Change(
            snippets=(python('cfg.mixed_precision = "bf16_with_fp8_current_scaling_mixed"'),),
        ),
        "torchtitan": Change(
            snippets=(
                python(
                    'converter = Float8LinearConverter.Config(recipe_name="rowwise")',
                    since="torchtitan 0.3",
                ),
            ),
            note="`tensorwise` was removed in torchtitan 0.3; torchao has it still.",
        ),
    },
    safety="numerically close",
    when="bf16 matrix products take at least half of the step, the GPU has FP8 tensor cores (H100 or "
    "later), and dimensions are multiples of 16.",
    safe="Within the published recipes: watch the loss.",
    costs="Kernels that scale and cast, and time to compile. A job that is bound by launches gains little.",
    limits="torchao's form gains only under `torch.compile`; FP8 all-gathers under FSDP need the recipe "
    "`tensorwise`.",
    seen="Matrix products are listed as fp8, and small kernels that find the largest value and cast "
    "stand beside them.",
    recipe="precision_mix",
    edit="faster:gemm=1.5",
    helper="to_fp8",
    needs="fp8",
    unsure="FP8 needs H100 or later.",
)
