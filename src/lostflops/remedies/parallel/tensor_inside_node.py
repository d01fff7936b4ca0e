"""Tensor parallelism within a node."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import config, python, shell

REMEDY = Remedy(
    name="tensor-inside-node",
    does="The ranks that share each layer sit on one node, whose links are 5 to 20 times as fast as "
    "the network.",
    changes={
        "pytorch": Change(
            "Keep the tensor-parallel group on the GPUs of one node, or make it smaller: its "
            "operations are in every layer, and accumulating gradients does not save any.",
            snippets=(
                python(
                    "mesh = init_device_mesh(",
                    '    "cuda", (nodes, gpus_per_node), mesh_dim_names=("data", "tensor")',
                    ")",
                    'model = parallelize_module(model, mesh["tensor"], plan)',
                ),
            ),
        ),
        "hf": Change(
            "Keep `tp_size` of `parallelism_config` at the GPUs of one node or below: its "
            "operations are in every layer, and accumulating gradients does not save any.",
            snippets=(python("TrainingArguments(parallelism_config=ParallelismConfig(tp_size=8))"),),
        ),
        "accelerate": Change(
            "Keep `--parallelism_config_tp_size` at the GPUs of one node or below: its "
            "operations are in every layer, and accumulating gradients does not save any.",
            snippets=(shell("accelerate launch --parallelism_config_tp_size 8 train.py"),),
        ),
        "lightning": Change(
            "Keep `ModelParallelStrategy(tensor_parallel_size=…)` at the GPUs of one node or "
            "below: its operations are in every layer.",
            snippets=(python("trainer = Trainer(strategy=ModelParallelStrategy(tensor_parallel_size=8))"),),
        ),
        "deepspeed": Change(
            'Keep `"tensor_parallel": {"autotp_size": n}` at the GPUs of one node or below: its '
            "operations are in every layer.",
            snippets=(config('{"tensor_parallel": {"autotp_size": 8}}'),),
        ),
        "megatron": Change(
            "Keep `--tensor-model-parallel-size` at the GPUs of one node or below.",
            snippets=(shell("--tensor-model-parallel-size 8"),),
        ),
        "bridge": Change(
            "Keep `tensor_model_parallel_size` at the GPUs of one node or below.",
            snippets=(python("cfg.model.tensor_model_parallel_size = 8"),),
        ),
        "torchtitan": Change(
            "Keep `parallelism.tensor_parallel_degree` at the GPUs of one node or below.",
            snippets=(python("config.parallelism.tensor_parallel_degree = 8"),),
        ),
    },
    safety="numerically close",
    when="The group has ranks on several nodes, and its collectives are exposed.",
    safe="Sums are formed in another order.",
    limits="Heads have to divide by it; data or pipeline parallelism takes what is left.",
    seen="The collectives of the tensor-parallel group reach the rate of the links within a node.",
    recipe="communication_summary",
    edit="faster-links=4",
    is_in_deepspeed_json=True,
)
