"""What PyTorch's allocator keeps beyond what is in use, at the loss of a checkpointed job.

A block that was freed is reused by what fits into it. A forward's temporaries lie among what it saves, and
logits are larger than all of them: what temporaries took stays reserved beside the logits. Freed gradients
are counted elsewhere. Not counted: what a full GPU gives back, and pieces below a megabyte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import layout

if TYPE_CHECKING:
    from .job import Training


def logits(training: Training, tokens: int) -> int:
    """Of all microbatches, in 16 bits."""
    t = training
    return 2 * tokens * t.microbatches * t.shape.vocabulary // t.layout.tensor


def joined(training: Training, stage: int, tokens: int) -> int:
    """What `Schedule.step` returns on the last stage: the logits of all microbatches in one piece.

    They are joined when all backwards have ended. No hole that is left then is taken to be as large.
    """
    return logits(training, tokens) if stage == training.layout.pipeline - 1 else 0


def received(training: Training, stage: int, tokens: int, alive: int) -> int:
    """Buffers that PyTorch's pipeline has for what comes of every microbatch, forward and backward.

    Those of microbatches that are `alive`, in layers, are the inputs of their first layers and counted there.
    """
    t, here = training, training.layout
    pieces = here.chunks if here.schedule == "interleaved" else 1
    layers = len(layout.stage_layers(t.shape, here, stage))
    forward = t.microbatches * (pieces - (stage == 0)) - alive * pieces // layers
    backward = t.microbatches * (pieces - (stage == here.pipeline - 1))
    state = 2 * tokens * t.shape.hidden // (here.tensor if here.sequence_parallel else 1)
    return (max(forward, 0) + backward) * state


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
