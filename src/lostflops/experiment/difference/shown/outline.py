"""What of a difference is worth a line: the parts that changed most, down to kernels, by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lostflops.report.first_page.budget import words
from lostflops.report.words.safe import one_line
from lostflops.units import milliseconds

from ..waterfall import Moved, Path, Waterfall

NAMELESS = "launch or name not recorded"
LEAST = 0.005  # of the step: a change of less is not listed
KERNELS = 3  # names above those of kernels
MOST = (6, 4, 3, 2)  # parts of each level that are listed


@dataclass(frozen=True)
class OutlineRow:
    """A part that changed, how deep it stands, and what it is called: by two names where one took over from
    the other."""

    change: Moved
    depth: int
    names: tuple[str, ...]
    calls: str

    def label(self, room: int) -> str:
        """The names in at most `room` columns."""
        if len(self.names) == 1:
            return one_line(self.names[0], room)
        return " → ".join(one_line(name, (room - 3) // 2) for name in self.names)


def outline(found: Waterfall, on_host: bool) -> Iterator[OutlineRow]:
    """The accounts that changed most and what changed most in them, each part before its own."""
    step = found.step
    least = LEAST * max(step.before_ns, step.after_ns)
    yield from _outlined(found, (), 0, least, on_host)


def _outlined(found: Waterfall, above: Path, depth: int, least: float, on_host: bool) -> Iterator[OutlineRow]:
    inside = found.of(above)
    if len(inside) == 1 and not called(inside[0].path, on_host):
        yield from _outlined(found, inside[0].path, depth, least, on_host)
        return
    if len(above) == KERNELS and (other := _replaced(inside)):
        yield OutlineRow(other, depth, tuple(map(_plain, other.path[-2:])), _calls(other))
        inside = [change for change in inside if change.before_ns and change.after_ns]
    shown = [change for change in inside if abs(change.ns) >= max(least, 1)]
    for change in shown[: MOST[min(len(above), len(MOST) - 1)]]:
        label = called(change.path, on_host) or NAMELESS
        # A part that consists of one other, as an operator of one kernel, shares its line.
        path, inner = change.path, found.of(change.path)
        while len(inner) == 1 and (name := called(inner[0].path, on_host)):
            path = inner[0].path
            label = label if name == path[-2] else f"{label}: {name}"
            inner = found.of(path)
        yield OutlineRow(change, depth, (label,), _calls(change))
        yield from _outlined(found, path, depth + 1, least, on_host)


def _replaced(kernels: list[Moved]) -> Moved | None:
    """The kernels of an operator that only one of the runs has, taken together and named by the largest."""
    gone = [change for change in kernels if not change.after_ns and change.before_ns]
    new = [change for change in kernels if not change.before_ns and change.after_ns]
    if not gone or not new:
        return None
    return Moved(
        (*gone[0].path, new[0].path[-1]),
        sum(change.before_ns for change in gone),
        sum(change.after_ns for change in new),
        None,
        sum(change.before_calls or 0 for change in gone),
        sum(change.after_calls or 0 for change in new),
    )


def called(path: Path, on_host: bool) -> str:
    """A part's name for readers; empty where the recording does not tell."""
    if len(path) == 1:
        return words(path[0], on_host).label
    return _plain(path[-1]) if len(path) > KERNELS else path[-1]


def _plain(kernel: str) -> str:
    """A kernel's name without what nearly all of PyTorch's begin with."""
    return kernel.removeprefix("void ").replace("at::native::", "").replace("(anonymous namespace)::", "")


def _calls(change: Moved) -> str:
    """How often its kernels begin per step, where that changed."""
    first, second = change.before_calls, change.after_calls
    if first is None or second is None or abs(second - first) < 0.05:
        return ""
    return f"{first:,.4g} → {second:,.4g} calls"


def signed(ns: int) -> str:
    """A change as people write it, with its sign."""
    return f"{'+' if ns > 0 else '−' if ns < 0 else ''}{milliseconds(abs(ns))}"
