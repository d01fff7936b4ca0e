"""Shapes that do not make the compiler start again."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python, shell

REMEDY = Remedy(
    name="steady-shapes",
    does="Shapes stay the same or are marked as dynamic, so that nothing is compiled after the first steps.",
    changes={
        "pytorch": Change(
            "If it goes on after the warm-up, shapes change: pad them, or mark them "
            "(`torch._dynamo.mark_dynamic`, `dynamic=True`); after 8 recompilations "
            "(`recompile_limit`) a function runs eagerly. Compile block by block "
            "(`layer.compile()`) to make each shorter.",
            snippets=(
                python("torch._dynamo.mark_dynamic(batch, 1)", title="where it is made"),
                python(
                    "-model = torch.compile(model)",
                    "+model = torch.compile(model, dynamic=True)",
                    title="or for all shapes",
                ),
            ),
        ),
        "hf": Change(
            "If it goes on after the warm-up, shapes change: `pad_to_multiple_of` in the "
            "collator; after 8 recompilations (`recompile_limit`) a function runs eagerly.",
            snippets=(python("collator = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=64)"),),
        ),
        "accelerate": Change(
            "If it goes on after the warm-up, shapes change: pad them, or "
            "`--dynamo_use_dynamic`; `--dynamo_use_regional_compilation` makes each compilation "
            "shorter.",
            snippets=(shell("accelerate launch --dynamo_backend inductor --dynamo_use_dynamic train.py"),),
        ),
        "megatron": Change(
            "If it goes on after the warm-up, shapes change: pad them, or mark them "
            "(`torch._dynamo.mark_dynamic`, `dynamic=True`); after 8 recompilations "
            "(`recompile_limit`) a function runs eagerly. Compile block by block "
            "(`layer.compile()`) to make each shorter.",
            instead="Shapes are fixed in Megatron-LM: look at what else compiles, such as kernels that "
            "load lazily.",
        ),
        "bridge": Change(
            "If it goes on after the warm-up, shapes change: pad them, or mark them "
            "(`torch._dynamo.mark_dynamic`, `dynamic=True`); after 8 recompilations "
            "(`recompile_limit`) a function runs eagerly. Compile block by block "
            "(`layer.compile()`) to make each shorter.",
            instead="Shapes are fixed in Megatron: look at what else compiles, such as kernels that load "
            "lazily.",
        ),
        "torchtitan": Change(
            "If it goes on after the warm-up, shapes change: pad them, or mark them "
            "(`torch._dynamo.mark_dynamic`, `dynamic=True`); after 8 recompilations "
            "(`recompile_limit`) a function runs eagerly. Compile block by block "
            "(`layer.compile()`) to make each shorter.",
            instead="Shapes are fixed in torchtitan: look at what else compiles, such as kernels that "
            "load lazily.",
        ),
    },
    safety="bit-identical",
    when="Compiling goes on after the warm-up.",
    safe="Padding must be masked. Numerically close where a dynamic kernel replaces a static one.",
    costs="Compute on padding.",
    seen="No range of the compiler stands after the second step.",
    recipe="idle_names",
    edit="host:compilation=0ms",
)
