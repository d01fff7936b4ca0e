"""The findings that are being joined."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

import polars as pl

from lostflops.finding import Finding, milliseconds, percent

from .given import Given

MOST_EVIDENCE = 6
# What `share` makes of an amount.
PER_STEP = re.compile(r"([\d.,]+ (?:ns|µs|ms|s) per step) \(([\d.]+ %)\)")


class PageFindings:
    """The findings of a run, from which causes take those that are about the same time."""

    def __init__(self, given: Given) -> None:
        self.given = given
        self._findings = list(given.findings)

    def replace_given(self, names: pl.DataFrame) -> None:
        """From now on idle time is called so: what a finding of its own tells is not told again."""
        self.given = replace(self.given, names=names)

    def all(self) -> Iterator[Finding]:
        yield from self._findings

    def of(self, name: str) -> Finding | None:
        """The first finding of a name, which stays."""
        return next((f for f in self._findings if f.name == name), None)

    def about(self, account: str) -> Finding | None:
        """The finding about the idle time of an account."""
        idle = (f for f in self._findings if f.recipe == "idle_summary")
        return next((f for f in idle if account in f.accounts), None)

    def about_any(self, accounts: Iterable[str]) -> list[Finding]:
        """The findings about idle time of these accounts; one about several of them is there once."""
        found: list[Finding] = []
        for account in accounts:
            one = self.about(account)
            if one is not None and not any(one is other for other in found):
                found.append(one)
        return found

    def take(self, *names: str) -> list[Finding]:
        """The findings of these names, which are then no findings any more."""
        taken = [f for f in self._findings if f.name in names]
        self._findings = [f for f in self._findings if f.name not in names]
        return taken

    def put(self, finding: Finding) -> None:
        self._findings.append(finding)

    def replace(self, old: Finding, new: Finding) -> None:
        self._findings = [new if f is old else f for f in self._findings]

    def drop(self, finding: Finding) -> None:
        self._findings = [f for f in self._findings if f is not finding]

    def absorb(self, cause: Finding, members: Iterable[Finding], more: int = 0) -> Finding:
        """`cause` with the claims of `members`, which go, as evidence, and costing `more` ns."""
        taken = list(members)
        for member in taken:
            self.drop(member)
        joined = joining(cause, taken, more)
        self.replace(cause, joined)
        return joined

    def share(self, ns: float) -> str:
        """An amount per step with its share of the step: '47.6 ms per step (36.1 %)'."""
        return f"{milliseconds(ns)} per step ({percent(ns, self.given.mean_step)})"

    def reaches(self, ns: float, share: float) -> bool:
        return ns > 0 and ns >= share * self.given.mean_step


def joining(cause: Finding, members: Iterable[Finding], more: int = 0) -> Finding:
    """`cause` with what `members` say as evidence. It can save what any of them can."""
    taken = list(members)
    most = max((cause, *taken), key=lambda f: f.ns_per_step)
    return replace(
        cause,
        cost_per_step=cause.size + more,
        ns_per_step=most.ns_per_step,
        gain=most.gain if most.ns_per_step else cause.gain,
        evidence=tuple(dict.fromkeys((*cause.evidence, *(m.claim.rstrip(".") for m in taken if m.claim))))[
            :MOST_EVIDENCE
        ],
        accounts=tuple(dict.fromkeys((*cause.accounts, *(a for m in taken for a in m.accounts)))),
    )
