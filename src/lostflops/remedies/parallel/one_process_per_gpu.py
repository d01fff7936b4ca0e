"""A process for each GPU, in place of `DataParallel`."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python, shell

REMEDY = Remedy(
    name="one-process-per-gpu",
    does="Each GPU has a process of its own: weights stay on it, and gradients travel during the "
    "backward pass.",
    changes={
        "pytorch": Change(
            "Give each GPU a process: `DistributedDataParallel`, started by `torchrun`, in place of "
            "`DataParallel`, which sends all weights to every GPU in every step.",
            snippets=(
                python(
                    "-model = torch.nn.DataParallel(model.cuda())",
                    '+torch.distributed.init_process_group("nccl")',
                    "+torch.cuda.set_device(local_rank)",
                    "+model = DistributedDataParallel(model.cuda(), device_ids=[local_rank])",
                ),
                shell("torchrun --nproc-per-node=8 train.py", title="and start it by"),
            ),
            note="Each process loads its own part of the data: `DistributedSampler`.",
        ),
        "hf": Change(
            "Start the job by `torchrun`, with a process for each GPU: the Trainer then uses "
            "`DistributedDataParallel`, and no longer `DataParallel`.",
            snippets=(shell("torchrun --nproc-per-node=8 train.py"),),
        ),
    },
    safety="numerically close",
    when="One process drives several GPUs with `DataParallel`.",
    safe="Gradients are averaged instead of added up from one batch: the same where the loss is a mean, but "
    "for the order of sums. Batch norms see a GPU's samples in both.",
    costs="The model, the optimizer and its states lie on every GPU, not on the first alone.",
    undo="Start one process, and wrap the model in `DataParallel`.",
    seen="The recording has a rank for each process, and no broadcasts of weights in the steps.",
    recipe="communication_summary",
)
