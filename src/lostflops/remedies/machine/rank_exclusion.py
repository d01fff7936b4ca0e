"""A job without the slow GPU."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import python, shell

REMEDY = Remedy(
    name="rank-exclusion",
    does="The job runs on other GPUs than the one that is slower than its neighbours at the same kernels.",
    changes={
        "pytorch": Change(
            snippets=(shell("sbatch --exclude=NODE job.sh", title="with Slurm"),),
        ),
        "megatron": Change(
            snippets=(
                shell("--log-straggler", title="to find it"),
                shell("sbatch --exclude=NODE job.sh", title="with Slurm"),
            ),
        ),
        "bridge": Change(
            snippets=(
                python("cfg.nvrx_straggler = NVRxStragglerDetectionConfig(enabled=True)", title="to find it"),
                shell("sbatch --exclude=NODE job.sh", title="with Slurm"),
            ),
        ),
    },
    safety="bit-identical",
    when="The same kernels take 5 % longer on one GPU, or it reports errors or heat. Swap it with "
    "another first: the slowness has to stay with the node.",
    costs="The capacity of the node.",
    undo="Leave `--exclude` out again.",
    seen="No rank is late by slower compute.",
    recipe="stragglers",
    edit="even-ranks",
)
