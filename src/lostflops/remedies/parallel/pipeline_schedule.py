"""A schedule with a smaller bubble."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python, shell

REMEDY = Remedy(
    name="pipeline-schedule",
    does="Interleaved or zero-bubble schedules let stages work where others let them wait.",
    changes={
        "pytorch": Change(
            "Or take another schedule of `torch.distributed.pipelining` (`Interleaved1F1B`, "
            "`InterleavedZeroBubble`, `ZBVZeroBubble`), with stages of one cost.",
            snippets=(
                python(
                    "-schedule = Schedule1F1B(stage, n_microbatches=8)",
                    "+schedule = ScheduleInterleaved1F1B([first, second], n_microbatches=8)",
                ),
            ),
        ),
        "accelerate": Change(
            instead="Accelerate passes no schedule on to Megatron-LM.",
        ),
        "deepspeed": Change(
            "DeepSpeed has 1F1B only; even out the stages with `PipelineModule(partition_method=…)`.",
            instead="DeepSpeed has 1F1B only: even out the stages with `PipelineModule(partition_method=…)`.",
        ),
        "megatron": Change(
            "Or interleave: `--num-virtual-stages-per-pipeline-rank 2`. Megatron has no "
            "zero-bubble schedule; `--defer-embedding-wgrad-compute` and `--delay-wgrad-compute` "
            "fill part of it.",
            snippets=(shell("--num-virtual-stages-per-pipeline-rank 2"),),
        ),
        "bridge": Change(
            "Or interleave: `virtual_pipeline_model_parallel_size`; "
            "`defer_embedding_wgrad_compute` fills part of the bubble.",
            snippets=(python("cfg.model.virtual_pipeline_model_parallel_size = 2"),),
        ),
        "torchtitan": Change(
            'Or `parallelism.pipeline_parallel_schedule="Interleaved1F1B"`; even out the first '
            "and the last stage (`pipeline_parallel_first_stage_less_layers`, "
            "`…_last_stage_less_layers`).",
            snippets=(python('config.parallelism.pipeline_parallel_schedule = "Interleaved1F1B"'),),
        ),
    },
    safety="numerically close",
    when="The number of microbatches cannot grow.",
    safe="Gradients are summed in another order.",
    costs="As many more messages between stages as there are virtual ones; zero-bubble schedules need "
    "memory.",
    limits="Layers have to divide by stages times virtual stages.",
    seen="Stages idle less between microbatches.",
    recipe="pipeline_schedules",
)
