"""That another process works on a rank's GPU: idle is then time without this job's work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lostflops.store.trace import GPU_SHARED, Quality


def shared(quality: Sequence[Quality], ranks: int) -> Iterator[str]:
    for fact in quality:
        if fact.name == GPU_SHARED:
            whose = "this GPU" if ranks < 2 else f"the GPU of rank {fact.rank}"
            yield f"Another process works on {whose}: {fact.text}."
