"""What a remedy is: a change, spelled for each framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Version = tuple[int, ...]

# Training frameworks by the name that their remedies are kept under.
FRAMEWORKS: Mapping[str, str] = {
    "torchtitan": "torchtitan",
    "bridge": "Megatron-Bridge or NeMo",
    "megatron": "Megatron-LM",
    "hf": "Hugging Face Trainer",
    "lightning": "Lightning",
    "accelerate": "Accelerate",
    "deepspeed": "DeepSpeed",
    "pytorch": "PyTorch",
}


@dataclass(frozen=True)
class Remedy:
    """A change to make.

    `change` says it as a sentence, by framework; 'pytorch' is what all others fall back to, and
    'pytorch/fsdp' what a job that shards does. An empty text means that the framework has it on, or cannot
    have it: then the remedy is silent. `on` names the effect by which a recording shows that the change was
    made; `more` says what to do then, and without it the remedy is silent, too. `needs` is a precision that
    the GPU's matrix units must take, `lacks` one that they must be known not to take; `unsure` is said where
    the GPU is not known. What is spelled otherwise in other versions stands in texts by its `SPELLINGS` name.
    """

    name: str
    change: Mapping[str, str]
    note: str = ""
    on: str = ""
    more: Mapping[str, str] = field(default_factory=dict[str, str])
    needs: str = ""
    lacks: str = ""
    unsure: str = ""
    is_in_deepspeed_json: bool = False  # what `change` says for 'deepspeed', other frameworks pass on as JSON


@dataclass(frozen=True)
class Spelling:
    """How a change is written from a version of a package on, and before."""

    package: str
    since: Version
    new: str
    old: str

    def text(self, versions: Mapping[str, Version]) -> str:
        """The spelling of the version in use; both, the newer first, where that is not known."""
        known = versions.get(self.package)
        if known is not None:
            return self.new if known >= self.since else self.old
        since = ".".join(map(str, self.since))
        return f"{self.new} (before {self.package} {since}: {self.old})"


SPELLINGS: Mapping[str, Spelling] = {
    "<expandable segments>": Spelling(
        "torch",
        (2, 9),
        "`PYTORCH_ALLOC_CONF=expandable_segments:True`",
        "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`",
    ),
    "<tf32>": Spelling(
        "torch",
        (2, 9),
        '`torch.backends.cuda.matmul.fp32_precision = "tf32"`',
        '`torch.set_float32_matmul_precision("high")`',
    ),
    "<group by length>": Spelling(
        "transformers",
        (5, 10),
        '`train_sampling_strategy="group_by_length"`',
        "`group_by_length=True`",
    ),
    "<no gc>": Spelling(
        "deepspeed",
        (0, 18, 10),
        '`"disable_python_gc": true`',
        "`gc.freeze()` after the start and `gc.collect(1)` every few hundred steps, on all ranks in the same "
        "one",
    ),
}


@dataclass(frozen=True)
class Setting:
    """How a job trains, as far as its recording shows: by which framework, sharded or not, with what on."""

    framework: str = "pytorch"
    deepspeed: bool = False  # below another framework
    sharding: str = ""  # 'fsdp' or 'ddp'; empty when nothing tells
    on: frozenset[str] = frozenset()
    units: frozenset[str] | None = None  # precisions of the GPU's matrix units; None where not known
    versions: Mapping[str, Version] = field(default_factory=dict[str, Version])

    def allows(self, remedy: Remedy) -> bool:
        """Whether the GPU can do what the remedy asks for, as far as that is known."""
        if self.units is None:
            return not remedy.lacks
        return remedy.needs in {"", *self.units} and (not remedy.lacks or remedy.lacks not in self.units)

    def text(self, texts: Mapping[str, str]) -> str:
        """The text for this job, empty where its framework needs none."""
        said = self._of_framework(texts)
        for name, spelling in SPELLINGS.items():
            said = said.replace(name, spelling.text(self.versions)) if name in said else said
        return said

    def _of_framework(self, texts: Mapping[str, str]) -> str:
        for key in (
            f"{self.framework}/{self.sharding}",
            self.framework,
            f"pytorch/{self.sharding}",
            "pytorch",
        ):
            if key in texts:
                return texts[key]
        return ""
