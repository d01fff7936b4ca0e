"""A loop of equal steps, for `proofs.py`: `step` ends one. Each computes for a while, then waits for a while.

python benchmarks/proof_steps.py STEPS WORK MILLISECONDS
"""

from __future__ import annotations

import hashlib
import sys
import time

BLOCK = b"\0" * 4096


def step(work: int, wait: float) -> None:
    """About 2 ms for 1,000 of work, and so many seconds of waiting."""
    digest = hashlib.sha1()
    for _ in range(work):
        digest.update(BLOCK)
    if wait:
        time.sleep(wait)


if __name__ == "__main__":
    import proof_steps  # the function is seen when its module is imported

    for _ in range(int(sys.argv[1])):
        proof_steps.step(int(sys.argv[2]), float(sys.argv[3]) / 1000)
