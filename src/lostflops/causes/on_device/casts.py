"""Weights in fp32 that autocast casts again in each pass."""

from __future__ import annotations

from lostflops.causes.declared import CASTS
from lostflops.causes.page_findings import PageFindings
from lostflops.finding import Finding, milliseconds

FROM = 0.05  # of a step
KEEP = (
    "Keep the parameters in bf16 and only the optimizer's copies in fp32: FSDP2 "
    "`MixedPrecisionPolicy(param_dtype=torch.bfloat16)`, or `model.to(torch.bfloat16)` with an optimizer "
    "that has fp32 masters."
)
ONCE = (
    " Or enter `torch.autocast` once for all micro-batches of a step: its cache then casts each weight once."
)


def casts_weights(page: PageFindings) -> None:
    """Tell what casting weights takes of the GPU, where it is much of the step."""
    given, rows = page.given, page.given.casts
    steps = max(1, given.num_steps)
    forward, back, host, calls = (int(rows[c].sum()) // steps for c in ("ns", "back", "host", "calls"))
    if given.on_host or not page.reaches(forward + back, FROM):
        return
    alone = len(given.steps) == 1
    facts = [f"{calls:,} casts of weights per step, inside the operators that use them"]
    if back:
        facts.append(f"{milliseconds(back)} of it casts their gradients back")
    again = given.micro_batches > 1
    if again:
        facts.append(f"a step runs {given.micro_batches:,} micro-batches")
    page.put(
        Finding(
            name=CASTS.name,
            claim=f"Autocast casts the same fp32 weights in each step, for {page.share(forward + back)} of "
            "GPU time.",
            gain="at most" if alone else "unknown",
            ns_per_step=forward + back + host if alone else 0,
            cost_per_step=forward + back,
            evidence=tuple(facts),
            next=f"{KEEP}{ONCE if again else ''}",
            remedies=(),
            recipe="kernel_families",
        )
    )
