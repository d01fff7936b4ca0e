"""Ranks placed as the network is."""

from lostflops.remedies.remedy import Change, Remedy
from lostflops.remedies.snippet import shell

REMEDY = Remedy(
    name="node-placement",
    does="Ranks that talk most sit on one node or under one switch, so that fewer bytes cross slow links.",
    changes={
        "pytorch": Change(
            snippets=(
                shell(
                    "# Slurm: neighbouring ranks share a node",
                    "srun --distribution=block:block python train.py",
                ),
            ),
        ),
        "megatron": Change(
            snippets=(shell("--use-tp-pp-dp-mapping"),),
            note="It puts the ranks of a pipeline beside each other instead of the data-parallel ones.",
        ),
    },
    safety="bit-identical",
    when="One group's collectives take longer than those of others of the same size.",
    costs="The scheduler may wait longer for neighbouring nodes.",
    seen="The groups that were slow reach the bandwidth of the others.",
    recipe="communication_slow_links",
    edit="even-links",
)
