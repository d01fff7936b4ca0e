"""What PyTorch's allocator keeps beyond what is in use, at the loss of a checkpointed job.

A block that was freed is reused by what fits into it. A forward's temporaries lie among what it saves, and
logits are larger than all of them: what temporaries took stays reserved beside the logits. Freed gradients
are counted elsewhere. Not counted: what a full GPU gives back, and pieces below a megabyte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .job import Training


def bytes_of(training: Training, moment: str, tokens: int) -> int:
    """Bytes of a layer's forward that nothing keeps, at its widest moment: around the feed-forward."""
    t = training
    if moment != "loss" or t.checkpointing == "none":
        return 0
    width = 2 * tokens * t.shape.feed_forward // t.layout.tensor
    together = 2 + t.shape.gated + (t.shape.gated and t.kernels == "eager")
    inside = together * width
    if t.layout.whole_inputs and not t.async_tensor:
        # A gather along the sequence is a copy more than what arrives, and its reduction likewise.
        hidden = 2 * tokens * t.shape.hidden
        inside = max(inside, width + hidden) + hidden
    return inside - (width if t.checkpointing == "alternate" else 0)
