"""Pipeline stages of one cost."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python, shell

REMEDY = Remedy(
    name="stage-balance",
    does="Layers move from the slowest stage to the others.",
    changes={
        "pytorch": Change(
            "Move layers off that stage: other split points, fewer layers beside the embedding and the loss.",
            snippets=(
                python(
                    '-splits = ["layers.8", "layers.16", "layers.24"]',
                    '+splits = ["layers.9", "layers.17", "layers.25"]',
                ),
            ),
            note="Those are the split points of your model, where `torch.distributed.pipelining` cuts it.",
        ),
        "accelerate": Change(
            "Move layers off that stage: `--megatron_lm_decoder_last_pipeline_num_layers`.",
            snippets=(
                shell("accelerate launch \\", "  --megatron_lm_decoder_last_pipeline_num_layers 7 train.py"),
            ),
        ),
        "megatron": Change(
            "Move layers off that stage: `--pipeline-model-parallel-layout`, "
            "`--decoder-first-pipeline-num-layers`, `--decoder-last-pipeline-num-layers`, or "
            "`--account-for-embedding-in-pipeline-split` and "
            "`--account-for-loss-in-pipeline-split`.",
            snippets=(
                shell("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split"),
                shell(
                    "--decoder-first-pipeline-num-layers 7",
                    "--decoder-last-pipeline-num-layers 7",
                    title="or",
                ),
            ),
        ),
        "bridge": Change(
            "Move layers off that stage: `pipeline_model_parallel_layout`, "
            "`num_layers_in_first_pipeline_stage`, `num_layers_in_last_pipeline_stage`.",
            snippets=(
                python(
                    "cfg.model.num_layers_in_first_pipeline_stage = 7",
                    "cfg.model.num_layers_in_last_pipeline_stage = 7",
                ),
            ),
        ),
        "deepspeed": Change(
            'Move layers off that stage: `PipelineModule(partition_method="parameters")` or `"type:regex"`.',
            snippets=(python('model = PipelineModule(layers, num_stages=4, partition_method="parameters")'),),
        ),
        "torchtitan": Change(
            "Move layers off that stage: `pipeline_parallel_first_stage_less_layers`, "
            "`pipeline_parallel_last_stage_less_layers`.",
            snippets=(
                python(
                    "config.parallelism.pipeline_parallel_first_stage_less_layers = 2",
                    "config.parallelism.pipeline_parallel_last_stage_less_layers = 2",
                ),
            ),
        ),
    },
    safety="bit-identical",
    when="One stage computes longer than the others in every step.",
    limits="In Megatron-LM the options exclude each other.",
    seen="The stages compute for as long as each other, within 3 %.",
    recipe="pipeline_bubble",
    edit="even-stages",
)
