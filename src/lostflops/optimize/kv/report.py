"""What a DialogueCache moved, what that saved, and whether it was worth it: counts, rates and reasons against
it.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from lostflops.optimize.amounts import written
from lostflops.optimize.device.devices import Device, Event, over
from lostflops.optimize.kv.blocks import Blocks
from lostflops.optimize.kv.rows import BlockLayout
from lostflops.optimize.remedy import Report

SMALL = 64 << 10  # bytes: a copy below this is mostly launch cost
RECENT = 10_000  # copies whose sizes are remembered
HALF = 0.5  # of the blocks' room
ENOUGH = 5  # resumes before a share of hits says anything
FEW_HITS = 0.1


@dataclass
class Direction:
    """Copies one way: bytes, and the time in which they ran."""

    bytes: int = 0
    timed_bytes: int = 0
    ns: int = 0
    pending: list[tuple[Event, Event, Event, int]] = field(
        default_factory=list[tuple[Event, Event, Event, int]]
    )

    def add(self, ready: Event, previous: Event, done: Event, nbytes: int) -> None:
        """Copies that ran from `ready`, or from the end of the previous ones if that was later, until
        `done`.
        """
        self.bytes += nbytes
        self.pending.append((ready, previous, done, nbytes))

    def settle(self, device: Device) -> None:
        copied, self.pending = over(device, self.pending, lambda copies: copies[2])
        for ready, previous, done, nbytes in copied:
            took = device.elapsed(ready, done)
            self.ns += min(took, device.elapsed(previous, done)) if previous is not None else took
            self.timed_bytes += nbytes

    @property
    def per_second(self) -> float | None:
        return 1e9 * self.timed_bytes / self.ns if self.ns > 0 else None


@dataclass
class CacheTally:
    """Counts as they grow."""

    suspends: int = 0
    hits: int = 0
    misses: int = 0
    asked_tokens: int = 0
    hit_tokens: int = 0
    stored_tokens: int = 0
    evicted_tokens: int = 0
    left_out_tokens: int = 0
    kept_bytes: int = 0
    shared_bytes: int = 0
    verified_bytes: int = 0
    host_allocations: int = 0
    copies: int = 0
    small_copies: int = 0
    out: Direction = field(default_factory=Direction)
    into: Direction = field(default_factory=Direction)
    sizes: deque[int] = field(default_factory=lambda: deque[int](maxlen=RECENT))
    stalls: dict[str, int] = field(default_factory=dict[str, int])
    stalled_ns: dict[str, int] = field(default_factory=dict[str, int])
    _waits: list[tuple[str, Event, Event]] = field(default_factory=list[tuple[str, Event, Event]])

    def copy(self, nbytes: int) -> None:
        self.copies += 1
        self.small_copies += nbytes < SMALL
        self.sizes.append(nbytes)

    def stall(self, cause: str, before: Event, after: Event) -> None:
        self.stalls[cause] = self.stalls.get(cause, 0) + 1
        self._waits.append((cause, before, after))

    def settle(self, device: Device) -> None:
        self.out.settle(device)
        self.into.settle(device)
        waits, self._waits = over(device, self._waits, lambda wait: wait[2])
        for cause, before, after in waits:
            self.stalled_ns[cause] = self.stalled_ns.get(cause, 0) + device.elapsed(before, after)

    def report(
        self, budget: int, layout: BlockLayout | None = None, blocks: Blocks | None = None, held: int = 0
    ) -> KvReport:
        return KvReport(
            suspends=self.suspends,
            hits=self.hits,
            misses=self.misses,
            asked_tokens=self.asked_tokens,
            hit_tokens=self.hit_tokens,
            stored_tokens=self.stored_tokens,
            evicted_tokens=self.evicted_tokens,
            left_out_tokens=self.left_out_tokens,
            stored_bytes=self.out.bytes,
            restored_bytes=self.into.bytes,
            kept_bytes=self.kept_bytes,
            shared_bytes=self.shared_bytes,
            evicted_bytes=self.evicted_tokens * (layout.token_bytes if layout else 0),
            verified_bytes=self.verified_bytes,
            out_bytes_per_second=self.out.per_second,
            in_bytes_per_second=self.into.per_second,
            copies=self.copies,
            small_copies=self.small_copies,
            median_copy_bytes=round(statistics.median(self.sizes)) if self.sizes else 0,
            stalls=dict(self.stalls),
            stalled_ms={cause: ns / 1e6 for cause, ns in self.stalled_ns.items()},
            dialogues=len(blocks.dialogues) if blocks else 0,
            held_tokens=blocks.tokens if blocks else 0,
            block_tokens=layout.block_tokens if layout else 0,
            bytes_per_token=layout.token_bytes if layout else 0,
            budget_bytes=budget,
            host_bytes=held,
            occupied_bytes=len(blocks.held) * layout.offsets[-1] if layout and blocks else 0,
            filled_bytes=blocks.tokens * layout.token_bytes if layout and blocks else 0,
            host_allocations=self.host_allocations,
        )


@dataclass(frozen=True)
class KvReport(Report):
    """Everything since the DialogueCache was made. Bytes per second are of the time in which copies ran."""

    document = "kv cache report"
    derived = ("hit_share",)

    suspends: int
    hits: int  # resumes that found something
    misses: int
    asked_tokens: int  # in all resumes
    hit_tokens: int
    stored_tokens: int
    evicted_tokens: int
    left_out_tokens: int  # of dialogues that grew beyond the budget
    stored_bytes: int  # copied out
    restored_bytes: int  # copied in
    kept_bytes: int  # not copied again: stored at an earlier turn
    shared_bytes: int  # not copied: stored by another dialogue
    evicted_bytes: int
    verified_bytes: int
    out_bytes_per_second: float | None
    in_bytes_per_second: float | None
    copies: int
    small_copies: int
    median_copy_bytes: int
    stalls: dict[str, int]  # waits of the compute stream, by cause
    stalled_ms: dict[str, float]
    dialogues: int
    held_tokens: int  # each once
    block_tokens: int
    bytes_per_token: int
    budget_bytes: int
    host_bytes: int  # taken from the host
    occupied_bytes: int  # of those, in blocks that are held
    filled_bytes: int  # of those, with rows in them
    host_allocations: int

    @property
    def hit_share(self) -> float | None:
        """Of all tokens asked for."""
        return self.hit_tokens / self.asked_tokens if self.asked_tokens else None

    def __str__(self) -> str:
        share = "" if self.hit_share is None else f", {self.hit_share:.1%} of those asked for"
        kept, shared, evicted = map(written, (self.kept_bytes, self.shared_bytes, self.evicted_bytes))
        memory = f"{written(self.occupied_bytes)} of {written(self.host_bytes)} host memory"
        out = f"stored {written(self.stored_bytes)} {_rate(self.out_bytes_per_second)}"
        into = f"restored {written(self.restored_bytes)} {_rate(self.in_bytes_per_second)}"
        small = f"{self.small_copies:,} below {written(SMALL)}"
        times = f"{self.host_allocations} time" + ("" if self.host_allocations == 1 else "s")
        plural = "" if self.dialogues == 1 else "s"
        lines = [
            f"{self.dialogues} dialogue{plural}, {self.held_tokens:,} tokens in {memory}, allocated {times}",
            f"resumed {self.hit_tokens:,} tokens{share}; {self.hits} hits, {self.misses} misses",
            f"{out}, {into}",
            f"not copied: {kept} of earlier turns, {shared} that other dialogues had stored",
            f"evicted {evicted}; {self.copies:,} copies, median {written(self.median_copy_bytes)}, {small}",
        ]
        if self.left_out_tokens:
            lines.append(f"{self.left_out_tokens:,} tokens did not fit into the budget and are not held")
        if self.verified_bytes:
            lines.append(f"{written(self.verified_bytes)} came back as they had left (checksums)")
        lines += [
            f"stalls, {cause}: {count}, {self.stalled_ms.get(cause, 0):.3g} ms"
            for cause, count in self.stalls.items()
        ]
        return "\n".join(lines)


def advice(report: KvReport, gpu_spare: int | None, coherent: bool) -> list[str]:
    """Reasons not to keep keys and values in host memory, as this was used so far."""
    found: list[str] = []
    if coherent:
        found.append("this device shares the host's memory: suspending frees nothing; keep past_key_values")
    if (
        gpu_spare is not None
        and report.dialogues
        and report.filled_bytes <= gpu_spare
        and not report.evicted_tokens
    ):
        found.append(
            f"all {report.dialogues} dialogues, {written(report.filled_bytes)}, fit into the "
            f"{written(gpu_spare)} that the GPU has left: keep their past_key_values there"
        )
    if report.copies and report.median_copy_bytes < SMALL:
        found.append(
            f"half of the copies are of {written(report.median_copy_bytes)} or less, which is mostly launch "
            "cost: suspend less often, or keep this model's small cache on the GPU"
        )
    asked = report.hits + report.misses
    if asked >= ENOUGH and (report.hit_share or 0) < FEW_HITS:
        found.append(
            f"{report.hit_share or 0:.0%} of the tokens asked for were held: nothing is shared, so storing "
            "is all cost; check that the history is sent back token for token as it was generated"
        )
    if report.evicted_tokens and report.filled_bytes < HALF * report.occupied_bytes:
        full = report.filled_bytes / report.occupied_bytes
        found.append(
            f"the blocks that are held are {full:.0%} full, and others were evicted: these dialogues are "
            f"short, give fewer block_tokens than {report.block_tokens}"
        )
    if report.hits and report.evicted_tokens > report.hit_tokens:
        found.append(
            f"{report.evicted_tokens:,} tokens were evicted and {report.hit_tokens:,} resumed: the "
            f"budget of {written(report.budget_bytes)} is too small for these dialogues"
        )
    return found


def _rate(per_second: float | None) -> str:
    return "(not timed)" if per_second is None else f"at {per_second / 1e9:.3g} GB/s"
