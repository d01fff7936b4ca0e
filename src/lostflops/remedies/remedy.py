"""What a remedy is: a change to a training job, spelled for each framework, with what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .snippet import Snippet

Safety = Literal["bit-identical", "numerically close", "changes convergence"]

# Training frameworks by the name that their changes are kept under.
FRAMEWORKS: Mapping[str, str] = {
    "torchtitan": "torchtitan",
    "bridge": "NeMo and Megatron-Bridge",
    "megatron": "Megatron-LM",
    "hf": "Hugging Face Trainer",
    "lightning": "Lightning",
    "accelerate": "Accelerate",
    "deepspeed": "DeepSpeed",
    "pytorch": "PyTorch",
}
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Change:
    """How the jobs of one framework make a change.

    `says` is what a finding on the page tells them, as a sentence; empty where it tells nothing. `snippets`
    are what to type, the newest spelling first. `instead` says why there is nothing to type: the framework
    has it on, or cannot have it. `note` is what else is to be known there.
    """

    says: str = ""
    snippets: tuple[Snippet, ...] = ()
    instead: str = ""
    note: str = ""

    @property
    def is_there(self) -> bool:
        """Whether there is something to change."""
        return not self.instead


@dataclass(frozen=True)
class Remedy:
    """A change to make.

    `changes` has it by framework; 'pytorch' is what all others fall back to, and 'pytorch/fsdp' what a job
    that shards does. `when` says what else must hold beside a finding that asks for it. `on` names the effect
    by which a recording shows that the change was made; `more` says what to do then, and without it the page
    is silent. `needs` is a precision that the GPU's matrix units must take, `lacks` one that they must be
    known not to take; `unsure` is said where the GPU is not known. `of_training` says that a job which
    computes no gradients cannot make it.
    """

    name: str
    does: str  # one sentence
    changes: Mapping[str, Change]
    safety: Safety
    seen: str  # how a recording shows that it took effect
    recipe: str  # and the recipe that shows it
    when: str = ""
    safe: str = ""  # why it is as safe as that, and where it is not
    costs: str = ""
    limits: str = ""  # where it cannot be had, and what it does not go together with
    undo: str = "Take the change back."
    edit: str = ""  # what to ask `lostflops whatif`
    helper: str = ""  # the name in `lostflops.optimize` that does it
    note: str = ""
    on: str = ""
    more: Mapping[str, str] = field(default_factory=dict[str, str])
    needs: str = ""
    lacks: str = ""
    unsure: str = ""
    of_training: bool = False
    of_graphs: bool = False  # only where PyTorch replays graphs: on NVIDIA's and AMD's GPUs
    is_in_deepspeed_json: bool = False  # what 'deepspeed' does, other frameworks pass on as JSON
