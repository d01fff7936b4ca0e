"""What a remedy's words depend on: how a job trains, as far as its recording shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from .remedy import UNKNOWN, Change, Remedy
from .snippet import Version, version


@dataclass(frozen=True)
class Spelling:
    """How a piece of a sentence is written from a version of a package on, and before."""

    package: str
    since: str
    new: str
    old: str

    def text(self, versions: Mapping[str, Version]) -> str:
        """The spelling of the version in use; both, the newer first, where that is not known."""
        known = versions.get(self.package)
        if known is not None:
            return self.new if known >= version(self.since) else self.old
        return f"{self.new} (before {self.package} {self.since}: {self.old})"


# What is spelled otherwise in other versions stands in sentences by the name that it has here.
SPELLINGS: Mapping[str, Spelling] = {
    "<expandable segments>": Spelling(
        "torch",
        "2.9",
        "`PYTORCH_ALLOC_CONF=expandable_segments:True`",
        "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`",
    ),
    "<tf32>": Spelling(
        "torch",
        "2.9",
        '`torch.backends.cuda.matmul.fp32_precision = "tf32"`',
        '`torch.set_float32_matmul_precision("high")`',
    ),
    "<group by length>": Spelling(
        "transformers",
        "5.10",
        '`train_sampling_strategy="group_by_length"`',
        "`group_by_length=True`",
    ),
    "<no gc>": Spelling(
        "deepspeed",
        "0.18.10",
        '`"disable_python_gc": true`',
        "`gc.freeze()` after the start and `gc.collect(1)` every few hundred steps, on all ranks in the same "
        "one",
    ),
}


TRAIN, COMPUTE = "Train in ", "Compute in "  # as advice to a job that trains begins, and to one that does not
# A part of a sentence for jobs in which an effect does not show yet: '<unless EFFECT: part>'.
UNLESS = re.compile(r"<unless ([^:>]+): ([^>]*)>")


@dataclass(frozen=True)
class Setting:
    """How a job trains: by which framework, sharded or not, with what on.

    `told_by` says what the framework was recognised by, or what keeps it from being known.
    """

    framework: str = UNKNOWN
    deepspeed: bool = False  # below another framework
    sharding: str = ""  # 'fsdp' or 'ddp'; empty when nothing tells
    on: frozenset[str] = frozenset()
    units: frozenset[str] | None = None  # precisions of the GPU's matrix units; None where not known
    # What is said, with the functions and tools that there are for the maker's accelerators.
    fitting: Callable[[str], str] = str
    replays_graphs: bool = True  # whether PyTorch can on these accelerators, as far as that is known
    versions: Mapping[str, Version] = field(default_factory=dict[str, Version])
    told_by: str = ""
    trains: bool = True  # False where all that it computes was recorded, and no gradient is among it

    def allows(self, remedy: Remedy) -> bool:
        """Whether the GPU and the job can do what the remedy asks for, as far as that is known."""
        if remedy.of_training and not self.trains:
            return False
        if remedy.of_graphs and not self.replays_graphs:
            return False
        if self.units is None:
            return not remedy.lacks
        return remedy.needs in {"", *self.units} and (not remedy.lacks or remedy.lacks not in self.units)

    def change(self, remedy: Remedy) -> Change:
        """The remedy for this job's framework: its own, or that of plain PyTorch."""
        return next(remedy.changes[key] for key in self._keys() if key in remedy.changes)

    def is_own(self, remedy: Remedy) -> bool:
        """Whether the framework has words of its own for it, rather than those of plain PyTorch."""
        return any(key in remedy.changes for key in (f"{self.framework}/{self.sharding}", self.framework))

    def is_left(self, remedy: Remedy) -> bool:
        """Whether this job could still be changed so, as far as is known."""
        can = self.allows(remedy) and self.change(remedy).is_there
        return can and (remedy.on not in self.on or bool(remedy.more))

    def says(self, remedy: Remedy) -> str:
        """What the page tells this job, empty where its framework needs none."""
        if not self.allows(remedy):
            return ""
        if remedy.on in self.on:
            return self.spelled(next((remedy.more[key] for key in self._keys() if key in remedy.more), ""))
        said = self.spelled(self.change(remedy).says)
        if not self.trains and said.startswith(TRAIN):
            said = COMPUTE + said.removeprefix(TRAIN)
        unsure = remedy.unsure if self.units is None else ""
        return self.fitting(" ".join(filter(None, (said, remedy.note, unsure)))) if said else ""

    def spelled(self, said: str) -> str:
        for name, spelling in SPELLINGS.items():
            said = said.replace(name, spelling.text(self.versions)) if name in said else said
        return self.fitting(UNLESS.sub(lambda part: "" if part[1] in self.on else part[2], said))

    def _keys(self) -> Iterator[str]:
        for framework in (self.framework, "pytorch"):
            yield f"{framework}/{self.sharding}"
            yield framework
