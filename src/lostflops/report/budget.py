"""Where the time of a mean step went: the ledger of all ranks and steps as one table whose parts add up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import polars as pl

from lostflops.accounts import ACCOUNTS

from .amounts import Unit, apportion, per_mille, percent, unit_for


@dataclass(frozen=True)
class Words:
    """How a line of the budget is called and what it means."""

    label: str
    meaning: str


GROUPS: Mapping[str, Words] = {
    "compute": Words("compute", "At least one kernel that is not communication runs."),
    "communication": Words("exposed communication", "Only communication runs: nothing hides it."),
    "copy": Words("exposed copies", "Only copies, memsets or migrations run: nothing hides them."),
    "idle": Words("idle", "Nothing runs on the device."),
}
ON_HOST: Mapping[str, Words] = {
    "compute": Words("compute", "At least one operator that is not communication runs."),
    "idle": Words("idle", "No operator runs."),
}
# A line inside a group need not repeat what its group says.
SAID_BY_GROUP = re.compile(r"^(Nothing runs on the device|Only communication runs), and ")
ORDER = {name: i for i, name in enumerate(dict.fromkeys((*GROUPS, *ACCOUNTS)))}


def words(name: str, on_host: bool = False) -> Words:
    """An account's or a group's words; a name that is not known speaks for itself."""
    if name in GROUPS:
        return (ON_HOST.get(name) if on_host else None) or GROUPS[name]
    if name in ACCOUNTS:
        meaning = SAID_BY_GROUP.sub("", ACCOUNTS[name].meaning)
        return Words(ACCOUNTS[name].label, meaning[:1].upper() + meaning[1:])
    return Words(name.partition(".")[2].replace("_", " ") or name, "")


def in_order(names: Iterable[str]) -> list[str]:
    """Accounts or groups in the order of the page: those that are not known come last."""
    last = len(ORDER)
    return sorted(names, key=lambda n: (ORDER.get(n.partition(".")[0], last), ORDER.get(n, last), n))


@dataclass(frozen=True)
class Line:
    """One line of the budget: a group of accounts (depth 0) or an account inside one (depth 1).

    `ns` is the exact sum over all windows; `shown` and `per_mille` are rounded so that they add up.
    """

    account: str
    label: str
    meaning: str
    depth: int
    ns: int
    shown: str
    per_mille: int

    @property
    def share(self) -> str:
        return percent(self.per_mille)


@dataclass(frozen=True)
class Budget:
    """A mean step: the sum over all (rank, step) windows divided by their number."""

    ns: int  # sum over all windows
    num_windows: int
    unit: Unit
    shown: str
    lines: tuple[Line, ...]

    @property
    def mean(self) -> float:
        """Mean step, ns."""
        return self.ns / self.num_windows

    @property
    def groups(self) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if line.depth == 0)

    def parts(self, group: str) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if line.depth and line.account.partition(".")[0] == group)

    def per_mille(self, name: str) -> int:
        return next((line.per_mille for line in self.lines if line.account == name), 0)


def budget(ledger: pl.DataFrame, on_host: bool = False) -> Budget | None:
    """The mean step of a step ledger, or None when it holds no time."""
    if not ledger.height:
        return None
    sums = dict(ledger.group_by("account").agg(pl.col("ns").sum()).iter_rows())
    return mean(sums, ledger.select("rank", "step", "start", "end").n_unique(), on_host)


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
    shares = per_mille(group_ns)
    lines: list[Line] = []
    for (group, names), ns, amount, share in zip(groups.items(), group_ns, quanta, shares, strict=True):
        known = words(group, on_host)
        lines.append(Line(group, known.label, known.meaning, 0, ns, unit.show(amount), share))
        if names == [group]:
            continue
        part_ns = [sums[name] for name in names]
        amounts = apportion(part_ns, size, amount)
        part_shares = apportion([n * 1000 for n in part_ns], whole, share)
        for name, n, a, s in zip(names, part_ns, amounts, part_shares, strict=True):
            known = words(name, on_host)
            lines.append(Line(name, known.label, known.meaning, 1, n, unit.show(a), s))
    return Budget(whole, num_windows, unit, unit.show(sum(quanta)), tuple(lines))


def _groups(sums: Mapping[str, int]) -> dict[str, list[str]]:
    """The accounts that hold time under their groups, both in the order of the page."""
    groups: dict[str, list[str]] = {}
    for name in in_order(name for name in sums if sums[name]):
        groups.setdefault(name.partition(".")[0], []).append(name)
    return {group: groups[group] for group in in_order(groups)}
