"""What streaming weights moved, how much of it ran beside compute, and what was waited for."""

from __future__ import annotations

from dataclasses import dataclass

from lostflops.optimize.amounts import written
from lostflops.optimize.remedy import Report


@dataclass(frozen=True)
class StreamingReport(Report):
    """Since the streaming began. Bytes are of weights that are not trained; times are of the device's clock.

    A stall is a wait of the compute stream for a copy: *late* when the copy was asked for ahead and was not
    done, *order missed* when another layer was expected, *first use* before anything could be known.
    `copying_ns`, `stalled_ns` and `copied_bytes` are of the copies that were waited for by now; `bytes_in`
    also counts those under way, and those that turned out not to be needed.
    """

    document = "streaming report"
    derived = ("hidden_share", "predicted_hidden_share", "bytes_per_second", "link_share")

    technique: str
    budget_bytes: int
    layers_streamed: int
    layers_resident: int
    layers_never_used: list[str]
    streamed_bytes: int
    resident_bytes: int
    slots: int
    slot_bytes: int
    device_bytes_max: int
    pinned_requested_bytes: int
    pinned_held_bytes: int
    bytes_in: int
    copies: int
    copied_bytes: int
    copying_ns: int
    stalls: dict[str, int]
    stalled_ns: dict[str, int]
    link_bytes_per_second: float | None
    predicted_copying_ns: int | None
    predicted_stalled_ns: int | None
    layers_in_files: int = 0  # of those that travel: read anew each time
    read_bytes: int = 0
    read_waited_ns: int = 0  # by the host, for reads that were not done when they were needed
    bytes_out: int = 0  # of layers that wrote to their own weights: nothing else copies weights back

    @property
    def hidden_share(self) -> float | None:
        """Of the copies' time, what the compute stream did not wait for. None before the first copy."""
        return _hidden(sum(self.stalled_ns.values()), self.copying_ns)

    @property
    def predicted_hidden_share(self) -> float | None:
        """From the link's rate and the measured compute between uses. None without a link card."""
        return _hidden(self.predicted_stalled_ns, self.predicted_copying_ns)

    @property
    def bytes_per_second(self) -> float | None:
        """While a copy ran."""
        return 1e9 * self.copied_bytes / self.copying_ns if self.copying_ns else None

    @property
    def link_share(self) -> float | None:
        """Of the link card's rate."""
        if self.bytes_per_second is None or self.link_bytes_per_second is None:
            return None
        return self.bytes_per_second / self.link_bytes_per_second

    def __str__(self) -> str:
        layers = self.layers_streamed + self.layers_resident
        slot, padding = (
            written(self.slot_bytes),
            written(self.pinned_held_bytes - self.pinned_requested_bytes),
        )
        lines = [
            f"{self.technique}: {self.layers_streamed} of {layers} layers streamed",
            f"  on the device   {written(self.device_bytes_max)} of a budget of {written(self.budget_bytes)}",
            f"                  {written(self.resident_bytes)} resident, {self.slots} slots of {slot}",
            f"  in host memory  {written(self.pinned_held_bytes)} pinned, {padding} of it to align",
            f"  moved           {written(self.bytes_in)} in, {written(self.bytes_out)} out",
        ]
        if not self.layers_streamed:
            return f"{self.technique}: everything fits in {written(self.budget_bytes)}, nothing is streamed"
        if self.bytes_per_second is not None and self.hidden_share is not None:
            rate = f"{self.bytes_per_second / 1e9:.3g} GB/s"
            if self.link_share is not None:
                rate += f", {self.link_share:.0%} of the link"
            lines.append(f"  copies          {self.copies} in {self.copying_ns / 1e6:,.1f} ms, {rate}")
            lines.append(f"  hidden          {self.hidden_share:.1%} of the copies' time, measured")
            if self.predicted_hidden_share is not None:
                lines[-1] += f"; {self.predicted_hidden_share:.1%} predicted"
            causes = (
                f"{self.stalls[cause]} {cause} ({self.stalled_ns[cause] / 1e6:,.1f} ms)"
                for cause in self.stalls
            )
            lines.append(f"  stalls          {', '.join(causes)}")
        if self.layers_in_files:
            waited = f"{self.read_waited_ns / 1e6:,.1f} ms waited for"
            files = f"{self.layers_in_files} layers, {written(self.read_bytes)} read, {waited}"
            lines.append(f"  from files      {files}")
        if self.layers_never_used:
            lines.append(f"  never used      {', '.join(self.layers_never_used)}")
        return "\n".join(lines)


def _hidden(stalled: float | None, copying: float | None) -> float | None:
    if stalled is None or not copying:
        return None
    return max(0.0, 1 - stalled / copying)
