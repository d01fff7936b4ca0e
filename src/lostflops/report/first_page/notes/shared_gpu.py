"""That another process works on a rank's GPU: idle is then time without this job's work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from lostflops.accounts import ACCOUNTS
from lostflops.finding import Finding
from lostflops.store.trace import GPU_MAY_BE_SHARED, GPU_SHARED, Quality


def shared(quality: Sequence[Quality], ranks: int) -> Iterator[str]:
    for fact in quality:
        if fact.name == GPU_SHARED:
            whose = "this GPU" if ranks < 2 else f"the GPU of rank {fact.rank}"
            yield f"Another process works on {whose}: {fact.text}."
    if any(fact.name == GPU_MAY_BE_SHARED for fact in quality):
        yield (
            "Several processes call their GPU by the same number, and nothing says whether they have one "
            "each: if they share it, it may work for another where it is called idle."
        )


UNRECORDED, ON_ITS_WAY = ACCOUNTS["idle.unrecorded"], ACCOUNTS["idle.dependency"]
SHARES = "Not alone on its GPU"
OR_OTHERS = "or does other work, as of the process that shares it"
ALONE = "Give each process a GPU of its own, or a slice of one (MIG), and record again."
MAY_TAKE = "Another process works on this GPU, and may take what is gained."


def is_shared(quality: Sequence[Quality]) -> bool:
    return any(fact.name == GPU_SHARED for fact in quality)


def beside_others(finding: Finding) -> Finding:
    """The finding where another process works on the GPU: that may be what runs in idle time that nothing
    explains, and what a remedy gains may be its."""
    if finding.accounts[:1] == (UNRECORDED.name,) and UNRECORDED.loss:
        return replace(finding, claim=finding.claim.replace(UNRECORDED.loss.claim, OR_OTHERS), next=ALONE)
    if finding.accounts[:1] == (ON_ITS_WAY.name,) and ON_ITS_WAY.loss:
        waits = ON_ITS_WAY.loss.claim
        said = finding.claim.replace(waits, f"{OR_OTHERS}, {waits}")
        return replace(finding, claim=said, next=ALONE, remedies=())
    if finding.predicted is None or finding.predicted.refused:
        return finding
    return finding.with_doubt(MAY_TAKE)


def verdict_beside_others(verdict: str) -> str:
    waits = f"{ON_ITS_WAY.verdict}: the GPU "
    if verdict.startswith(waits):
        return verdict.replace(f"{waits}is", f"{SHARES}: the GPU seems", 1)
    return verdict.replace(UNRECORDED.verdict, SHARES, 1)
