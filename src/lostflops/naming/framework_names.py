"""What people call the training frameworks."""

from __future__ import annotations

from collections.abc import Mapping

# By the names that a user types: the keys that changes are kept under.
NAMES: Mapping[str, str] = {
    "pytorch": "pytorch",
    "hf": "hf",
    "accelerate": "accelerate",
    "lightning": "lightning",
    "deepspeed": "deepspeed",
    "megatron-lm": "megatron",
    "nemo": "bridge",
    "torchtitan": "torchtitan",
}
ALSO: Mapping[str, str] = {
    "torch": "pytorch",
    "trainer": "hf",
    "transformers": "hf",
    "huggingface": "hf",
    "hugging-face-trainer": "hf",
    "pytorch-lightning": "lightning",
    "megatron": "megatron-lm",
    "bridge": "nemo",
    "megatron-bridge": "nemo",
}


def called(word: str) -> str:
    """The name among `NAMES` for what somebody typed; the word itself where nobody calls a framework so."""
    plain = word.strip().lower().replace("_", "-").replace(" ", "-")
    return ALSO.get(plain, plain)
