"""Where the time of a mean step went: the ledger of all ranks and steps as one table whose parts add up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import polars as pl

from lostflops.accounts import ACCOUNTS
from lostflops.finding import percent
from lostflops.report.words.amounts import Unit, apportion, unit_for


@dataclass(frozen=True)
class Words:
    """How a line of the budget is called and what it means."""

    label: str
    meaning: str


GROUPS: Mapping[str, Words] = {
    "compute": Words("compute", "At least one kernel runs that is not communication."),
    "communication": Words("exposed communication", "Only communication runs."),
    "copy": Words("exposed copies", "Only copies, memsets or page migrations run."),
    "idle": Words("idle", "Nothing runs on the GPU."),
}
ON_HOST: Mapping[str, Words] = {
    "compute": Words("compute", "At least one operator runs that is not communication."),
    "idle": Words("idle", "Nothing computes, communicates or copies."),
}
ORDER = {name: i for i, name in enumerate(dict.fromkeys((*GROUPS, *ACCOUNTS)))}


def words(name: str, on_host: bool = False) -> Words:
    """An account's or a group's words; a name that is not known speaks for itself."""
    if name in GROUPS:
        return (ON_HOST.get(name) if on_host else None) or GROUPS[name]
    if name in ACCOUNTS:
        account = ACCOUNTS[name]
        meaning = account.meaning.removeprefix(account.said_by_group)
        return Words(account.label, meaning[:1].upper() + meaning[1:])
    return Words(name.partition(".")[2].replace("_", " ") or name, "")


def in_order(names: Iterable[str]) -> list[str]:
    """Accounts or groups in the order of the page: those that are not known come last."""
    last = len(ORDER)
    return sorted(names, key=lambda n: (ORDER.get(n.partition(".")[0], last), ORDER.get(n, last), n))


def color(account: str) -> str:
    """The classes that give an account its colour, the same wherever it is drawn."""
    group, _, part = account.partition(".")
    known = f"c-{group}" if group in GROUPS else "c-other"
    return f"{known} p-{part.replace('_', '-')}" if part.replace("_", "").isalpha() else known


@dataclass(frozen=True)
class Line:
    """One line of the budget: a group of accounts (depth 0) or an account inside one (depth 1).

    `ns` is the exact sum over all windows, `whole` that of the budget. What is `shown` is rounded so that it
    adds up; each `share` is rounded on its own.
    """

    account: str
    label: str
    meaning: str
    depth: int
    ns: int
    whole: int
    shown: str

    @property
    def share(self) -> str:
        return percent(self.ns, self.whole)

    @property
    def visible(self) -> bool:
        """Whether its share is shown as more than 0.0 %."""
        return 2000 * self.ns >= self.whole


@dataclass(frozen=True)
class Budget:
    """A mean step: the sum over all (rank, step) windows divided by their number."""

    ns: int  # sum over all windows
    num_windows: int
    unit: Unit
    shown: str
    lines: tuple[Line, ...]
    median: float | None = None  # step, ns; None where the steps are not known one by one

    @property
    def mean(self) -> float:
        """Mean step, ns."""
        return self.ns / self.num_windows

    @property
    def visible(self) -> tuple[Line, ...]:
        """The lines that a page shows: without those whose displayed amount is zero."""
        return tuple(line for line in self.lines if line.shown.strip("0."))

    @property
    def groups(self) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if line.depth == 0)

    def parts(self, group: str) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if line.depth and line.account.partition(".")[0] == group)

    def of(self, name: str) -> int:
        """The time of an account or group, ns."""
        return next((line.ns for line in self.lines if line.account == name), 0)


def budget(ledger: pl.DataFrame, on_host: bool = False) -> Budget | None:
    """The mean step of a step ledger, or None when it holds no time."""
    if not ledger.height:
        return None
    sums = dict(ledger.group_by("account").agg(pl.col("ns").sum()).iter_rows())
    steps = ledger.select("rank", "step", "start", "end").unique()
    found = mean(sums, steps.height, on_host)
    lengths = steps["end"] - steps["start"]
    return None if found is None else replace(found, median=lengths.median())  # pyright: ignore[reportArgumentType]


def mean(sums: Mapping[str, int], num_windows: int, on_host: bool = False) -> Budget | None:
    """The mean of `num_windows` steps whose accounts hold these sums, ns; None when they hold nothing."""
    whole = sum(sums.values())
    if whole <= 0:
        return None
    unit = unit_for(whole // num_windows)
    size = unit.quantum * num_windows
    groups = _groups(sums)
    group_ns = [sum(sums[name] for name in names) for names in groups.values()]
    quanta = apportion(group_ns, size)
    lines: list[Line] = []
    for (group, names), ns, amount in zip(groups.items(), group_ns, quanta, strict=True):
        known = words(group, on_host)
        lines.append(Line(group, known.label, known.meaning, 0, ns, whole, unit.show(amount)))
        if names == [group]:
            continue
        amounts = apportion([sums[name] for name in names], size, amount)
        for name, a in zip(names, amounts, strict=True):
            known = words(name, on_host)
            lines.append(Line(name, known.label, known.meaning, 1, sums[name], whole, unit.show(a)))
    return Budget(whole, num_windows, unit, unit.show(sum(quanta)), tuple(lines))


def _groups(sums: Mapping[str, int]) -> dict[str, list[str]]:
    """The accounts that hold time under their groups, both in the order of the page."""
    groups: dict[str, list[str]] = {}
    for name in in_order(name for name in sums if sums[name]):
        groups.setdefault(name.partition(".")[0], []).append(name)
    return {group: groups[group] for group in in_order(groups)}
