"""Steps that one call launches."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python, shell

REMEDY = Remedy(
    name="cuda-graphs",
    does="A captured graph launches the kernels of a step with one call.",
    changes={
        "pytorch": Change(
            "With steady shapes replay CUDA graphs: `torch.compile(model, "
            'mode="reduce-overhead")`, or `torch.cuda.make_graphed_callables`.',
            snippets=(
                python("-model = Model()", '+model = torch.compile(Model(), mode="reduce-overhead")'),
                python("model = torch.cuda.make_graphed_callables(model, (sample,))", title="or"),
            ),
        ),
        "hf": Change(
            'With steady shapes replay CUDA graphs: `torch_compile_mode="reduce-overhead"`.',
            snippets=(python('TrainingArguments(torch_compile=True, torch_compile_mode="reduce-overhead")'),),
        ),
        "accelerate": Change(
            "With steady shapes replay CUDA graphs: `--dynamo_mode reduce-overhead`.",
            snippets=(
                shell(
                    "accelerate launch --dynamo_backend inductor \\",
                    "  --dynamo_mode reduce-overhead train.py",
                ),
            ),
        ),
        "deepspeed": Change(
            instead="DeepSpeed captures graphs for inference only.",
        ),
        "megatron": Change(
            "With steady shapes replay CUDA graphs: `--cuda-graph-impl local` (or "
            "`transformer_engine` with `--cuda-graph-modules attn`).",
            snippets=(shell("--cuda-graph-impl local --te-rng-tracker"),),
            note="`--enable-cuda-graph`, `--external-cuda-graph` and `--cuda-graph-scope` are deprecated.",
        ),
        "bridge": Change(
            'With steady shapes replay CUDA graphs: `cuda_graph_impl = "local"`.',
            snippets=(python('cfg.model.cuda_graph_impl = "local"', "cfg.model.use_te_rng_tracker = True"),),
        ),
        "torchtitan": Change(
            "CUDA graphs are on unless `training.disable_cuda_graphs=True`: see what keeps them "
            "from being used.",
            snippets=(python("config.training.disable_cuda_graphs = False", since="torchtitan 0.3"),),
            note="It refuses pipeline stages and most backends of experts with an error.",
        ),
    },
    safety="bit-identical",
    when="Kernels are short (below 20 µs), shapes are steady, and the GPU waits for launches.",
    safe="The same kernels run.",
    costs="Static buffers: gigabytes, more than 10 with pipeline stages.",
    limits="Not with shapes that vary, `.item()` inside, experts whose tokens the host counts, packed "
    "inputs or CPU offloading.",
    seen="`cudaGraphLaunch` is called, and launches per step fall to a tenth.",
    recipe="launch_latency",
    edit="cuda-graph",
    of_graphs=True,
    note="With expandable segments, graphs of Transformer Engine need `NCCL_GRAPH_REGISTER=0`.",
    on="graphs",
)
