"""That the clocks of host and GPU disagree: what the CPU did in a pause of the GPU's is then less sure."""

from __future__ import annotations

from collections.abc import Sequence

from lostflops.finding import Finding, milliseconds

BEFORE_LAUNCH = "kernels-before-launch"
FROM = 0.05  # of what a finding costs in a step


def with_clocks(findings: Sequence[Finding], worst: int | None) -> tuple[Finding, ...]:
    """The findings, those about idle time doubted that are not much longer than clocks are apart.

    Clocks that disagree are a finding themselves. `worst` is by how much a kernel begins before its launch at
    most, ns.
    """
    if not worst or all(finding.name != BEFORE_LAUNCH for finding in findings):
        return tuple(findings)
    doubt = (
        f"The clocks of host and GPU disagree by up to {milliseconds(worst)}: so much of each pause may have "
        "another cause."
    )
    return tuple(
        one.with_doubt(doubt) if one.is_of_idle_time and worst >= FROM * one.size else one for one in findings
    )
