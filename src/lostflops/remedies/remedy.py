"""What a remedy is: a change, spelled for each framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
    made; `more` says what to do then, and without it the remedy is silent, too.
    """

    name: str
    change: Mapping[str, str]
    note: str = ""
    on: str = ""
    more: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Setting:
    """How a job trains, as far as its recording shows: by which framework, sharded or not, with what on."""

    framework: str = "pytorch"
    deepspeed: bool = False  # below another framework
    sharding: str = ""  # 'fsdp' or 'ddp'; empty when nothing tells
    on: frozenset[str] = frozenset()

    def text(self, texts: Mapping[str, str]) -> str:
        """The text for this job, empty where its framework needs none."""
        for key in (
            f"{self.framework}/{self.sharding}",
            self.framework,
            f"pytorch/{self.sharding}",
            "pytorch",
        ):
            if key in texts:
                return texts[key]
        return ""
