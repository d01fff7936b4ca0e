"""The loss over a large vocabulary: the GPU goes through all logits several times."""

from __future__ import annotations

from lostflops.causes.declared import LOSS
from lostflops.causes.page_findings import PageFindings
from lostflops.finding import Finding, milliseconds
from lostflops.recipes.operators.loss_work import FP32

FROM = 0.05  # of a step
WORDS = 8_192  # from which on a vocabulary is large; classes of images are fewer
THEN = "Compute the loss in one fused kernel, or in chunks of tokens."


def loss_takes_long(page: PageFindings) -> None:
    """Tell what the loss takes, where it takes much of the step and the vocabulary is large."""
    given, rows = page.given, page.given.losses
    steps = max(1, given.num_steps)
    loss, beside, host = (int(rows[c].sum()) // steps for c in ("loss", "beside", "host"))
    words = rows["vocabulary"].max()
    if given.on_host or not page.reaches(loss + beside, FROM) or not isinstance(words, int) or words < WORDS:
        return
    alone = len(given.steps) == 1
    in_fp32 = ", in fp32" if rows["dtype"][0] == FP32 else ""
    evidence = [f"log-softmax and cross-entropy, forward and backward: {milliseconds(loss)} per step"]
    if beside:
        evidence.append(f"casts and other work that goes through all logits: {milliseconds(beside)} per step")
    page.put(
        Finding(
            name=LOSS.name,
            claim=f"The loss over {words:,} words takes {page.share(loss + beside)} of GPU time{in_fp32}.",
            gain="at most" if alone else "unknown",
            # The products of the head stay; of the rest a fused kernel saves no more than all.
            ns_per_step=loss + beside + host if alone else 0,
            cost_per_step=loss + beside,
            evidence=tuple(evidence),
            next=THEN,
            recipe="kernel_families",
        )
    )
