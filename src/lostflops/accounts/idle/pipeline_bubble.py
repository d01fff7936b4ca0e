"""The CPU waits for another pipeline stage."""

from lostflops.accounts.account import LATE, WHILE, Account, CausePattern, Loss

PIPELINE_BUBBLE = Account(
    "idle.pipeline_bubble",
    label="pipeline bubble",
    said_by_group=WHILE,
    meaning=LATE + "waits for another pipeline stage.",
    found="Ranges on that thread that name a receive of the pipeline schedule. Often the bubble shows as "
    "`communication.wait` instead, because a receive kernel runs from its launch on.",
    remedy="More microbatches, an interleaved schedule (zero-bubble ones are in PyTorch and torchtitan "
    "only), stages of equal cost.",
    order=80,
    verdict="Bubble-bound",
    loss=Loss(
        "pipeline-bubble",
        "waiting for another pipeline stage",
        0.03,
        remedies=("pipeline-microbatches", "pipeline-schedule"),
        also=("stage-balance",),
        takes="waiting between pipeline stages",
    ),
    proven=True,
    patterns=(
        CausePattern(
            ("range",),
            (
                "recv_forward",
                "recv_backward",
                "forward-recv",
                "backward-recv",
                "pipe_recv_input",
                "pipe_recv_grad",
            ),
            "Megatron and DeepSpeed: the host waits for the neighbouring stage",
            "forward-recv",
        ),
        CausePattern(
            ("operator",),
            ("c10d::recv_",),
            "PyTorch, receive from another rank",
            "c10d::recv_",
            also=r"^c10d::recv_(?:any_source_)?$",
        ),
        CausePattern(
            ("frame",),
            ("recv",),
            "Megatron, DeepSpeed and PyTorch pipelining, receive from the neighbouring stage",
            "megatron/core/pipeline_parallel/p2p_communication.py(395): recv_forward",
            also=r"(?:megatron/core/pipeline_parallel|deepspeed/runtime/pipe|torch/distributed/pipelining)/"
            r"\S*: \w*recv\w*$"
            r"|torch/distributed/distributed_c10d\.py\(\d+\): recv$",
        ),
    ),
)
