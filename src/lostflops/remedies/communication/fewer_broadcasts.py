"""No broadcasts in every step."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python

REMEDY = Remedy(
    name="fewer-broadcasts",
    does="What never changes is broadcast once, before training.",
    changes={
        "pytorch": Change(
            "Broadcast less often: settings and flags once, before training.",
            snippets=(
                python(
                    "-for batch in loader:",
                    "-    torch.distributed.broadcast(flag, src=0)",
                    "+torch.distributed.broadcast(flag, src=0)",
                    "+for batch in loader:",
                    "     train_step(batch, flag)",
                ),
            ),
        ),
        "pytorch/ddp": Change(
            "Broadcast less often: `DistributedDataParallel(broadcast_buffers=False)` where the "
            "buffers need not be alike on all ranks, as those of batch norms need not.",
            snippets=(
                python(
                    "model = DistributedDataParallel(model, forward_sync_buffers=False)",
                    since="torch 2.13",
                ),
                python("model = DistributedDataParallel(model, broadcast_buffers=False)", until="torch 2.13"),
            ),
        ),
        "hf": Change(
            "Broadcast less often: `ddp_broadcast_buffers=False` where the buffers need not be "
            "alike on all ranks, as those of batch norms need not.",
            snippets=(python("TrainingArguments(ddp_broadcast_buffers=False)"),),
        ),
    },
    safety="bit-identical",
    safe="Except for buffers that forward changes, such as those of batch norms: they then differ "
    "between ranks.",
    seen="Broadcasts are gone from steps.",
    recipe="communication_summary",
)
