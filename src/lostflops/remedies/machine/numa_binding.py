"""Processes on the cores beside their GPU."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import shell

REMEDY = Remedy(
    name="numa-binding",
    does="Each process runs on the cores, and takes the memory, that are nearest to its GPU.",
    changes={
        "pytorch": Change(
            snippets=(
                shell("torchrun --numa-binding=node --nproc-per-node=8 train.py"),
                shell("srun --cpu-bind=cores python train.py", title="or with Slurm"),
                shell(
                    "numactl --cpunodebind=0 --membind=0 python train.py", title="or by hand, for one process"
                ),
            ),
        ),
        "accelerate": Change(
            snippets=(shell("accelerate launch --enable_cpu_affinity train.py"),),
        ),
        "hf": Change(
            snippets=(
                shell(
                    "# or torchrun, as for plain PyTorch",
                    "accelerate launch --enable_cpu_affinity train.py",
                ),
            ),
        ),
    },
    safety="bit-identical",
    when="A process runs on cores of another socket than its GPU's.",
    costs="`exclusive` leaves loader workers few cores.",
    limits="`--membind` fails where the node's memory does not suffice; torchrun needs `numactl` installed.",
    undo="Leave the binding out.",
    seen="No process is listed as far from its GPU, copies from the host are faster, and gaps of the "
    "host vary less.",
    recipe="topology_faults",
)
