"""The accounts of two runs in one unit, rounded so that what a page shows adds up down and across."""

from __future__ import annotations

from dataclasses import dataclass

from lostflops.report.words.amounts import Unit, apportion, unit_for

from ..waterfall import Moved, Waterfall


@dataclass(frozen=True)
class Shared:
    """A group of accounts (depth 0) or an account inside one (depth 1), in multiples of what is shown."""

    account: str
    depth: int
    before: int
    after: int
    is_leaf: bool
    noise_ns: int | None = None

    @property
    def change(self) -> int:
        return self.after - self.before


@dataclass(frozen=True)
class SharedTable:
    """All of them, and the step."""

    unit: Unit
    rows: tuple[Shared, ...]
    step: Shared

    def signed(self, change: int) -> str:
        return f"{'+' if change > 0 else '−' if change < 0 else ''}{self.unit.show(abs(change))}"


def shared(found: Waterfall) -> SharedTable:
    """The groups in the order of the ledger, each followed by its accounts."""
    step = found.step
    unit = unit_for(max(step.before_ns, step.after_ns))
    groups: dict[str, list[Moved]] = {}
    for change in found.accounts:
        groups.setdefault(change.path[0].partition(".")[0], []).append(change)
    columns: list[tuple[list[int], list[list[int]], int]] = []
    for amount in ("before_ns", "after_ns"):
        parts = [[int(getattr(change, amount)) for change in inside] for inside in groups.values()]
        wholes = apportion([sum(part) for part in parts], unit.quantum)
        inner = [apportion(part, unit.quantum, of) for part, of in zip(parts, wholes, strict=True)]
        columns.append((wholes, inner, sum(wholes)))
    (before, first, all_before), (after, second, all_after) = columns
    rows: list[Shared] = []
    for i, (group, inside) in enumerate(groups.items()):
        alone = [change.path[0] for change in inside] == [group]
        rows.append(Shared(group, 0, before[i], after[i], alone, found.noise_of.get(group)))
        if not alone:
            rows += [
                Shared(change.path[0], 1, first[i][j], second[i][j], True, change.noise_ns)
                for j, change in enumerate(inside)
            ]
    return SharedTable(unit, tuple(rows), Shared("", 0, all_before, all_after, False, step.noise_ns))
