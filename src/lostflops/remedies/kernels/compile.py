"""Compiled kernels."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python, shell

REMEDY = Remedy(
    name="compile",
    does="The compiler fuses small operators, so that fewer and larger kernels are launched.",
    changes={
        "pytorch": Change(
            "Launch fewer and larger kernels: `torch.compile(model)`.",
            snippets=(python("-model = Model()", "+model = torch.compile(Model())"),),
            note="`layer.compile()` for each block makes compiling shorter. FSDP1 needs "
            "`use_orig_params=True`.",
        ),
        "hf": Change(
            "Launch fewer and larger kernels: `torch_compile=True`.",
            snippets=(python("TrainingArguments(torch_compile=True)"),),
        ),
        "accelerate": Change(
            'Launch fewer and larger kernels: `TorchDynamoPlugin(backend="inductor", '
            "use_regional_compilation=True)`.",
            snippets=(
                python(
                    "plugin = TorchDynamoPlugin(",
                    '    backend="inductor", use_regional_compilation=True',
                    ")",
                    "accelerator = Accelerator(dynamo_plugin=plugin)",
                ),
                shell(
                    "accelerate launch --dynamo_backend inductor \\",
                    "  --dynamo_use_regional_compilation train.py",
                    title="or on the command line",
                ),
            ),
        ),
        "lightning": Change(
            "Launch fewer and larger kernels: wrap the module in `torch.compile` before `fit`.",
            snippets=(python("-trainer.fit(module)", "+trainer.fit(torch.compile(module))"),),
        ),
        "deepspeed": Change(
            "Launch fewer and larger kernels: `engine.compile()`.",
            snippets=(
                python(" engine, *_ = deepspeed.initialize(model=model, config=config)", "+engine.compile()"),
            ),
        ),
        "megatron": Change(
            instead="Megatron-LM compiles its own fusions only, and has them on.",
        ),
        "bridge": Change(
            instead="NeMo and Megatron-Bridge compile Megatron's own fusions only, and have them on.",
        ),
        "torchtitan": Change(
            "Launch fewer and larger kernels: `compile.enable=True`.",
            snippets=(
                python("config.compile.enable = True", 'config.compile.components = ["model", "loss"]'),
            ),
        ),
    },
    safety="numerically close",
    when="Small kernels follow each other: launches cost 3 % of the step, or elementwise work and "
    "norms a fifth of the compute.",
    safe="Fused kernels round less often and in another order.",
    costs="Minutes at the start, and again for each new shape; host memory.",
    limits="Code that Python has to run inside breaks the graph; shapes that vary compile again.",
    seen="Triton kernels (`triton_poi_…`) and ranges of compiled functions are there, and elementwise "
    "kernels take less.",
    recipe="kernel_families",
    on="compiled",
)
