"""Whether a change stays, by its proof: faster, and the loss as the safety asked for has it."""

from __future__ import annotations

from lostflops.experiment.proof.proven import Proven
from lostflops.remedies.remedy import Safety

# What may have become of the losses where a change of this safety stays.
FINE: dict[Safety, frozenset[str]] = {
    "bit-identical": frozenset({"bit-identical", "unknown"}),
    "numerically close": frozenset({"bit-identical", "rounding", "close", "unknown"}),
    "changes convergence": frozenset(
        {"bit-identical", "rounding", "close", "apart", "not comparable", "unknown"}
    ),
}
SAID = {
    "rounding": "equal up to rounding only",
    "close": "close only",
    "apart": "apart",
    "diverged": "not finite any more",
    "not finite": "not finite before the change already",
    "not comparable": "not comparable: starts of one command differ",
}


def decided(found: Proven, safety: Safety) -> tuple[bool, str]:
    """Whether the change stays, and the reason in a sentence without its full stop."""
    parity = found.loss.parity
    if parity in ("diverged", "not finite"):
        return False, f"taken back: the loss is {SAID[parity]}, from step {found.loss.first} on"
    if parity == "untold":
        return False, "taken back: the job tells a loss, and with it tells none"
    if found.verdict == "slower":
        return False, f"taken back: steps take {_share(found)} more time"
    if found.verdict == "no difference":
        return False, "taken back: no difference is shown"
    if not found.finished:
        return False, "taken back: no pair of starts was finished"
    if found.verdict != "faster":
        pairs = f"{found.finished} pair{'s' * (found.finished != 1)}"
        return False, f"taken back: {pairs} cannot tell whether it gains"
    if parity not in FINE[safety] and not _differs_anyway(found):
        return False, f"taken back: the loss is {SAID[parity]}, and {safety} was asked for"
    kept = f"kept: {_share(found)} less time per step"
    if parity == "unknown":
        return True, f"{kept}; the job tells no loss, so that nothing checked it"
    if parity not in FINE[safety]:
        return True, f"{kept}; starts of the same command differ in their loss, so that it was not checked"
    return True, kept


def _differs_anyway(found: Proven) -> bool:
    """Whether equal starts differ in their loss, so that no change can leave it as it was to the bit."""
    return found.loss.parity in ("rounding", "not comparable") and bool(found.loss.noise)


def _share(found: Proven) -> str:
    return f"{100 * abs(1 - (found.ratio or 1)):.1f} %"
