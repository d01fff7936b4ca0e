"""What the offload engine did: bytes, how much copying was hidden, what waited, and whether it was right."""

from __future__ import annotations

from dataclasses import dataclass, field

from lostflops.optimize.amounts import written
from lostflops.optimize.remedy import Report


@dataclass(frozen=True)
class OneWay(Report):
    """The copies of one direction. A stream copies one thing at a time, so `copy_ns` is the union of their
    intervals; `link_bytes_per_second` is the link card's, if one was given."""

    document = "copies one way"
    derived = ("hidden", "bytes_per_second", "share_of_link")

    bytes: int
    copies: int
    copy_ns: int
    stalled_ns: int
    link_bytes_per_second: float | None = None

    @property
    def hidden(self) -> float | None:
        """The share of the copying during which compute did not wait for it; None when nothing was copied."""
        return min(1.0, max(0.0, 1 - self.stalled_ns / self.copy_ns)) if self.copy_ns else None

    @property
    def bytes_per_second(self) -> float | None:
        return 1e9 * self.bytes / self.copy_ns if self.copy_ns else None

    @property
    def share_of_link(self) -> float | None:
        rate = self.bytes_per_second
        return rate / self.link_bytes_per_second if rate and self.link_bytes_per_second else None


@dataclass(frozen=True)
class OffloadReport(Report):
    """Totals since the engine was made. A microbatch is one forward with its backward."""

    document = "offload report"

    state: str  # what the engine does now, in words
    microbatches: int
    budget_bytes: int | None
    threshold_bytes: int
    out: OneWay
    into: OneWay
    stalls_ns: dict[str, int]  # by cause
    order_missed: int  # storages asked for before they were fetched
    shared_bytes: int  # saved more than once, moved once
    moved: int  # storages sent
    kept_bytes: dict[str, int]  # by reason
    bypassed_bytes: int  # held by selective checkpointing, which hooks never see; of one microbatch
    host_used_bytes: int  # at most at once
    host_held_bytes: int
    host_allocations: int
    host_allocations_after_warm_up: int  # after the second microbatch: 0, or the engine had to grow
    pack_ns: float | None  # of the host, per saved tensor that moves
    keep_ns: float | None  # per saved tensor that stays
    unpack_ns: float | None
    disk_bytes: int = 0  # at most at once
    disk_written_bytes: int = 0
    disk_read_bytes: int = 0
    disk_waited_ns: int = 0  # of the host
    disk_buffer_bytes: int = 0  # host memory beside `host_held_bytes`
    predicted: dict[str, int] = field(default_factory=dict[str, int])
    measured: dict[str, int] = field(default_factory=dict[str, int])
    verified: str | None = None  # what was checked, in words
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows = [("state", self.state), ("microbatches", f"{self.microbatches}")]
        if self.budget_bytes is not None:
            rows.append(("budget", written(self.budget_bytes)))
        for name, way in (("to the host", self.out), ("and back", self.into)):
            if way.bytes:
                rows.append((name, _travel(way)))
        if self.out.bytes and self.microbatches > 1:
            rows.append(("a microbatch", f"{written(self.out.bytes / self.microbatches)} out, on average"))
        if self.shared_bytes:
            rows.append(("saved twice, moved once", written(self.shared_bytes)))
        for cause, nanoseconds in self.stalls_ns.items():
            rows.append((f"waited: {cause}", _milliseconds(nanoseconds)))
        if self.order_missed:
            rows.append(("not fetched ahead", f"{self.order_missed} storages"))
        for reason, nbytes in sorted(self.kept_bytes.items(), key=lambda item: -item[1]):
            rows.append((f"stayed: {reason}", written(nbytes)))
        if self.bypassed_bytes:
            rows.append(("out of reach", f"{written(self.bypassed_bytes)} held by selective checkpointing"))
        held, used = written(self.host_held_bytes), written(self.host_used_bytes)
        later = self.host_allocations_after_warm_up
        rows.append(
            ("host memory", f"{held} for at most {used}; {later} allocations after the second microbatch")
        )
        if self.disk_bytes:
            moved = f"{written(self.disk_written_bytes)} written, {written(self.disk_read_bytes)} read"
            text = f"{written(self.disk_bytes)} at most; {moved}, {_milliseconds(self.disk_waited_ns)} waited"
            rows.append(("on the disk", f"{text}; {written(self.disk_buffer_bytes)} of buffers"))
        for name, nanoseconds in (("pack", self.pack_ns), ("keep", self.keep_ns), ("unpack", self.unpack_ns)):
            if nanoseconds is not None:
                rows.append((f"host time per {name}", f"{nanoseconds / 1000:.1f} us"))
        for name in sorted({*self.predicted, *self.measured}):
            both = (("predicted", self.predicted), ("measured", self.measured))
            told = [f"{_amount(name, found[name])} {word}" for word, found in both if name in found]
            rows.append((name.removesuffix("_bytes").removesuffix("_ns").replace("_", " "), ", ".join(told)))
        if self.verified:
            rows.append(("checked", self.verified))
        rows += [("note", note) for note in self.notes]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


def _travel(way: OneWay) -> str:
    text = f"{written(way.bytes)} in {way.copies} copies"
    if way.bytes_per_second is not None:
        text += f", {way.bytes_per_second / 1e9:.3g} GB/s while copying"
    if way.share_of_link is not None:
        text += f" ({way.share_of_link:.0%} of the link)"
    return text if way.hidden is None else f"{text}, {way.hidden:.1%} hidden"


def _amount(name: str, value: int) -> str:
    return written(value) if name.endswith("_bytes") else _milliseconds(value)


def _milliseconds(nanoseconds: int) -> str:
    value = nanoseconds / 1e6
    return f"{value:,.0f} ms" if value >= 99.95 else f"{value:.3g} ms"
