"""In which of the steps a rank is late."""

from __future__ import annotations

from collections.abc import Sequence

from lostflops.causes.names import listed

# Late since a step, or up to one: in how many at least, what of its mean lateness it has in each of them, and
# at most in a mean one of the others.
IN_A_ROW, STEADY, BEFORE = 3, 0.5, 0.1
ALL_OF_IT = 0.995  # of the difference; a rank's share may be more than all
MOST_NAMED = 8  # ranks


def in_some(steps: Sequence[int], each: Sequence[int]) -> str:
    """The steps, no more than half of all, in which a rank is late that is not so in the others."""
    mean = sum(each) / max(1, len(each))
    late = [(step, ns) for step, ns in zip(steps, each, strict=True) if ns > mean]
    rest = sum(each) - sum(ns for _, ns in late)
    if not 2 <= len(late) <= min(MOST_NAMED, len(each) // 2):
        return ""
    own = sum(ns for _, ns in late) / len(late)
    if min(ns for _, ns in late) < STEADY * own or rest > BEFORE * own * (len(each) - len(late)):
        return ""
    whole = rest <= (1 - ALL_OF_IT) * sum(each)
    return f"{'all' if whole else 'nearly all'} of it in steps {listed([str(step) for step, _ in late])}"
