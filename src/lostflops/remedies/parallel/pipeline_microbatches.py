"""More microbatches per step."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import config, python, shell

REMEDY = Remedy(
    name="pipeline-microbatches",
    does="More microbatches per step keep pipeline stages busy for a larger part of it.",
    changes={
        "pytorch": Change(
            "Use more microbatches per step.",
            snippets=(
                python(
                    "-schedule = Schedule1F1B(stage, n_microbatches=8)",
                    "+schedule = Schedule1F1B(stage, n_microbatches=16)",
                ),
            ),
        ),
        "accelerate": Change(
            "Use more microbatches per step: `--megatron_lm_num_micro_batches`.",
            snippets=(shell("accelerate launch --megatron_lm_num_micro_batches 16 train.py"),),
        ),
        "megatron": Change(
            "Use more microbatches: a larger `--global-batch-size` or a smaller `--micro-batch-size`.",
            snippets=(shell("--micro-batch-size 1 --global-batch-size 256"),),
        ),
        "bridge": Change(
            "Use more microbatches: a larger global batch or a smaller micro-batch.",
            snippets=(python("cfg.train.micro_batch_size = 1", "cfg.train.global_batch_size = 256"),),
        ),
        "deepspeed": Change(
            'Use more microbatches: `"gradient_accumulation_steps"` is their number.',
            snippets=(config('{"gradient_accumulation_steps": 16, "train_micro_batch_size_per_gpu": 1}'),),
        ),
        "torchtitan": Change(
            "Use more microbatches: a smaller `parallelism.pipeline_parallel_microbatch_size`.",
            snippets=(python("config.parallelism.pipeline_parallel_microbatch_size = 1"),),
            note="torchtitan's main branch counts them instead: `num_pp_microbatches`.",
        ),
    },
    safety="changes convergence",
    when="Stages wait for the schedule: with p stages and m microbatches the bubble is (p−1)/(m+p−1) "
    "of the step.",
    safe="The global batch grows with them. Numerically close where microbatches get smaller instead.",
    costs="Smaller microbatches make smaller matrix products.",
    limits="Interleaving wants a multiple of the number of stages.",
    seen="More passes per stage and step, and a smaller share of the step in the bubble.",
    recipe="pipeline_schedules",
)
