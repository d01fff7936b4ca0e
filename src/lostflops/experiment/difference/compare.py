"""Compares two runs: what changed in the step, how sure that is, and what else differs between them."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import hypot
from typing import Any, Literal

import polars as pl
from rich.console import Console

from lostflops.causes.names import bytes_of, called
from lostflops.finding import milliseconds, percent
from lostflops.report.first_page.budget import words
from lostflops.report.words.amounts import apportion
from lostflops.store.trace import Trace

from .links_apart import LinkApart, link_apart
from .noise import FEWEST, STARTS, band
from .ranks_apart import RanksApart, ranks_apart
from .setup import Mismatch, mismatches, obstacles, setup
from .shown.outline import signed
from .side import STEP, Side, same_recording, side
from .waterfall import Moved, Waterfall, waterfall

Judged = Literal["faster", "slower", "no difference", "cannot tell"]
WIDTH = 110  # columns of the text
SMALL = 0.02  # of the step: with more noise, a change within it may still be one that matters
MATTERS = 0.005  # of the step: an account that changed by less is not named


@dataclass(frozen=True)
class ChangeOfRank:
    """The mean step of one rank, ns; None where a run does not have it. `account` is what changed most."""

    rank: int
    before_ns: int | None
    after_ns: int | None
    account: str = ""
    account_ns: int = 0

    @property
    def ns(self) -> int | None:
        return None if self.before_ns is None or self.after_ns is None else self.after_ns - self.before_ns


@dataclass(frozen=True)
class ChangeOfStep:
    """A step that both runs recorded under one number, mean of its ranks, ns."""

    step: int
    before_ns: int
    after_ns: int


@dataclass(frozen=True, repr=False)
class Difference:
    """Why two runs differ. `obstacles` say why their steps cannot be compared; then no verdict is given."""

    before: Side
    after: Side
    mismatches: tuple[Mismatch, ...]
    obstacles: tuple[str, ...]
    waterfall: Waterfall

    @property
    def comparable(self) -> bool:
        return not self.obstacles

    @property
    def is_accounted(self) -> bool:
        """Whether both runs have steps that are accounted for."""
        return not (self.before.missing or self.after.missing)

    @property
    def is_same(self) -> bool:
        """Whether both are the same files."""
        return same_recording(self.before, self.after)

    @property
    def is_unchanged(self) -> bool:
        """Whether every account takes exactly as long as before."""
        return not any(change.ns for change in self.waterfall.accounts)

    @property
    def verdict(self) -> Judged:
        """Within the noise it is 'no difference' only where the noise is small."""
        step = self.waterfall.step
        if not self.comparable:
            return "cannot tell"
        if self.is_unchanged:
            return "no difference"
        if step.noise_ns is None:
            return "cannot tell"
        if not step.is_beyond_noise:
            return "no difference" if step.noise_ns <= SMALL * step.before_ns else "cannot tell"
        if self.is_like_another_start:
            return "cannot tell"
        return "slower" if step.ns > 0 else "faster"

    @property
    def is_like_another_start(self) -> bool:
        """Whether a second start of the first job may have changed the step as much. Replay has no starts."""
        if self.is_same or self.before.run.replayed or self.after.run.replayed:
            return False
        step = self.waterfall.step
        return abs(step.ns) <= hypot(step.noise_ns or 0, STARTS * step.before_ns)

    @property
    def sentence(self) -> str:
        """The verdict with its numbers."""
        if not self.is_accounted:
            return "These runs cannot be compared."
        said = self._said
        if not self.comparable:
            return f"These runs cannot be compared; shown anyway: {said}."
        noise = milliseconds(self.waterfall.step.noise_ns or 0)
        match self.verdict:
            case "faster" | "slower":
                return f"The step is {self.verdict}: {said}; the noise is ±{noise}."
            case "no difference" if self.is_unchanged:
                return f"{said[:1].upper()}{said[1:]}: no difference."
            case "no difference":
                return f"There is no difference beyond noise: {said}; the noise is ±{noise}."
            case _ if self.waterfall.step.noise_ns is None:
                return f"Whether this is noise is not known: {said}. {self._few} only one step."
            case _ if self.waterfall.step.is_beyond_noise:
                return f"Two starts of one job may differ as much: {said}; the steps scatter by ±{noise}."
            case _:
                return f"The steps scatter too much to tell: {said}; the noise is ±{noise}."

    @property
    def _said(self) -> str:
        step = self.waterfall.step
        if not step.ns:
            return f"both take {milliseconds(step.before_ns)}{self.per}"
        much = f"{milliseconds(abs(step.ns))} {'more' if step.ns > 0 else 'less'}"
        share = percent(abs(step.ns), step.before_ns)
        return (
            f"{milliseconds(step.before_ns)}{self.per} before, {milliseconds(step.after_ns)} after, "
            f"{much} ({share})"
        )

    @property
    def per(self) -> str:
        return "" if self.before.run.is_whole and self.after.run.is_whole else " per step"

    @property
    def _few(self) -> str:
        first, second = (len(side.lengths) < FEWEST for side in (self.before, self.after))
        return "Both runs have" if first and second else f"The run {'before' if first else 'after'} has"

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know before believing the numbers."""
        return tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        for why in self.obstacles:
            yield f"{why[:1].upper()}{why[1:]}."
        for label, one in (("before", self.before), ("after", self.after)):
            if one.run.replayed:
                yield (
                    f"The run {label} is predicted: replayed with {one.run.replayed}, its times were not "
                    "measured."
                )
        if self.is_same:
            yield "Both are the same recording."
        if not self.is_accounted:
            return
        if self.apart is not None:
            yield self._apart(self.apart, self.link)
        elif self.link is not None:
            yield f"What changed is {self._over(self.link)}. {self._elsewhere(self.link).capitalize()}."
        yield from self._other_ranks()
        if self.waterfall.step.noise_ns is not None:
            yield (
                f"± is what the spread of the steps themselves ({len(self.before.lengths)} before, "
                f"{len(self.after.lengths)} after) causes by chance in 95 % of cases. Two starts of one job "
                "differ by more, 2 % is assumed: `lostflops prove` measures it."
            )
            yield from self._certain()
        told = [set(side.ledger["account"].unique()) for side in (self.before, self.after)]
        unsplit = ["communication.exposed" in accounts for accounts in told]
        split = [bool(accounts & {"communication.wait", "communication.transfer"}) for accounts in told]
        if (unsplit[0] and split[1] and not unsplit[1]) or (unsplit[1] and split[0] and not unsplit[0]):
            yield (
                "Only one of the runs tells waiting for other ranks from the transfer: compare the sum of "
                "exposed communication."
            )

    def _apart(self, apart: RanksApart, link: LinkApart | None) -> str:
        """What changed on some ranks and over a link, what changed most first."""
        waited = f"{milliseconds(abs(apart.waited_ns))} {'more' if apart.waited_ns >= 0 else 'less'}"
        waited = waited if apart.waited_ns else "as long as before"
        changed = "; and ".join(self._changed(one) for one in (apart, *apart.also))
        if apart.transfer_ns:
            changed += f"; and the transfer on every rank: {signed(apart.transfer_ns)} on average"
        if link is not None:
            over = f"{self._over(link)} ({self._elsewhere(link)})"
            first = abs(link.cost_ns) > abs(apart.ns - apart.others_ns)
            changed = f"{over}; and {changed}" if first else f"{changed}; and {over}"
        do = "wait" if apart.transfer_ns else "communicate and wait"
        return f"What changed is {changed}. The others {do} {waited}."

    def _changed(self, apart: RanksApart) -> str:
        label = words(apart.account, self.after.run.on_host).label
        too = f"{signed(apart.against_ns)} on {called(apart.against)}, " if apart.against else ""
        return (
            f"{called(apart.ranks)}: {signed(apart.ns)} of {label} per step, {too}"
            f"{signed(apart.others_ns)} on the rank in the middle"
        )

    def _over(self, link: LinkApart) -> str:
        more = f" (and over {link.more} other link{'s' * (link.more > 1)})" if link.more else ""
        one, now, then = f"{link.kind} of {bytes_of(link.bytes)}", link.after_ns, link.before_ns
        return (
            f"transfer among ranks {link.among}{more}: one {one} takes {milliseconds(now)}, before "
            f"{milliseconds(then)}"
        )

    def _elsewhere(self, link: LinkApart) -> str:
        now, then = map(milliseconds, (link.others_after_ns, link.others_before_ns))
        return f"among other ranks it takes {now}, before {then}"

    def _other_ranks(self) -> Iterator[str]:
        """That the accounts are means over other numbers of ranks, so that what one does weighs otherwise."""
        first, second = (side.ledger["rank"].n_unique() for side in (self.before, self.after))
        if first != second:
            yield (
                f"Each account is the mean over {first} rank{'s' * (first != 1)} before and {second} after: "
                "what one rank alone does weighs less where there are more."
            )

    @cached_property
    def apart(self) -> RanksApart | None:
        """The ranks whose own work changed unlike that of the others, if there are any."""
        step = self.waterfall.step
        if not self.comparable:
            return None
        return ranks_apart(*self._accounts, step.before_ns, step.ns, self._scatter)

    def _scatter(self, account: str) -> Mapping[int, int | None]:
        """What an account's mean may change by on each rank by chance, ns; None where that is not known."""
        first, second = (side.spent_of_ranks(account) for side in (self.before, self.after))
        both = {*first} & {*second}
        return {rank: band(first[rank], second[rank], len(both)) for rank in both}

    @cached_property
    def link(self) -> LinkApart | None:
        """The link whose transfers changed unlike the same among other ranks, if there is one."""
        first, second, step = self.before.links, self.after.links, self.waterfall.step
        if not self.comparable or first is None or second is None:
            return None
        return link_apart(first, second, step.before_ns, step.ns)

    @cached_property
    def _accounts(self) -> tuple[Mapping[int, Mapping[str, int]], Mapping[int, Mapping[str, int]]]:
        """The mean time of each account on each rank, ns, before and after."""
        return _accounts_by_rank(self.before), _accounts_by_rank(self.after)

    def _certain(self) -> Iterator[str]:
        """The account that changed most beyond its own noise, where the step did not."""
        if self.verdict != "cannot tell" or not self.comparable:
            return
        least = MATTERS * self.waterfall.step.before_ns
        beyond = [c for c in self.waterfall.accounts if c.is_beyond_noise and abs(c.ns) >= least]
        if beyond:
            most = max(beyond, key=lambda change: abs(change.ns))
            label = words(most.path[0], self.after.run.on_host).label
            yield (
                f"By itself {label} changed by more than its noise: {signed(most.ns)} "
                f"(±{milliseconds(most.noise_ns or 0)})."
            )

    @cached_property
    def ranks(self) -> tuple[ChangeOfRank, ...]:
        """The mean step of every rank, those that changed most first."""
        first, second = (_by_rank(side) for side in (self.before, self.after))
        found: list[ChangeOfRank] = []
        for rank in sorted({*first, *second}):
            mine, theirs = (of.get(rank, {}) for of in self._accounts)
            changes = {name: theirs.get(name, 0) - mine.get(name, 0) for name in (*mine, *theirs)}
            most = max(changes, key=lambda name: (abs(changes[name]), name), default="")
            both = rank in first and rank in second
            found.append(
                ChangeOfRank(
                    rank, first.get(rank), second.get(rank), most if both else "", changes.get(most, 0)
                )
            )
        return tuple(sorted(found, key=lambda r: (r.ns is None, -abs(r.ns or 0), r.rank)))

    @cached_property
    def steps(self) -> tuple[ChangeOfStep, ...]:
        """The steps that have the same number in both runs."""
        first, second = self.before.lengths, self.after.lengths
        return tuple(
            ChangeOfStep(step, round(first[step]), round(second[step])) for step in first if step in second
        )

    @cached_property
    def modules(self) -> tuple[Moved, ...]:
        """Compute by the module whose forward pass launched it, the largest change first.

        Empty where the runs do not both hold modules. What belongs to none, as the backward pass, has none.
        """
        first, second = (_by_module(side) for side in (self.before, self.after))
        if not ({*first} - {""}) or not ({*second} - {""}):
            return ()
        found = [
            Moved((name,), first.get(name, 0), second.get(name, 0))
            for name in dict.fromkeys((*first, *second))
        ]
        return tuple(sorted(found, key=lambda c: (-abs(c.ns), c.path)))

    def to_json(self) -> dict[str, Any]:
        """All of it; times are ns per step."""
        from .shown.document import document

        return document(self)

    def show(self, console: Console, everything: bool = False) -> None:
        """Print the page; with `everything` all rows and mismatches."""
        from .shown.terminal import show

        show(self, console, everything)

    def html(self) -> str:
        """The page as one HTML file."""
        from .shown.html import html

        return html(self)

    def _repr_html_(self) -> str:
        from lostflops.report import notebook

        from .shown.html import html

        return notebook.framed(html(self, framed=True), self.sentence, str(self))["text/html"]

    def __str__(self) -> str:
        text = io.StringIO()
        self.show(Console(file=text, width=WIDTH, force_terminal=False, force_jupyter=False))
        return text.getvalue()

    __repr__ = __str__


def difference(before: Trace, after: Trace, names: tuple[str, str] = ("before", "after")) -> Difference:
    """What changed from one run to another; `names` is what the page calls them by."""
    first, second = side(before, names[0]), side(after, names[1])
    with before.reading():
        mine = setup(first)
    with after.reading():
        theirs = setup(second)
    return Difference(
        first,
        second,
        mismatches(mine, theirs),
        obstacles(first, second, mine, theirs),
        _waterfall(first, second),
    )


def _waterfall(before: Side, after: Side) -> Waterfall:
    if before.missing or after.missing:
        return Waterfall({(): Moved((), 0, 0)}, {(): ()})
    for one in (before, after):
        with one.trace.reading():
            _ = one.calls
    return waterfall(before, after)


def _by_rank(side: Side) -> dict[int, int]:
    """The mean step of each rank, ns."""
    length = (pl.col("end") - pl.col("start")).mean().round().cast(pl.Int64)
    return dict(side.steps.group_by("rank").agg(length).sort("rank").iter_rows())


def _accounts_by_rank(side: Side) -> dict[int, dict[str, int]]:
    """The mean time of each account on each rank, ns."""
    many = side.steps.group_by("rank").agg(many=pl.len())
    mean = (
        side.ledger.join(side.steps.select(STEP), on=STEP, how="semi")
        .group_by("rank", "account")
        .agg(pl.col("ns").sum())
        .join(many, on="rank")
        .select("rank", "account", pl.col("ns") // pl.col("many"))
        .sort("rank", "account")
    )
    found: dict[int, dict[str, int]] = {}
    for rank, account, ns in mean.iter_rows():
        found.setdefault(rank, {})[account] = ns
    return found


def _by_module(side: Side) -> dict[str, int]:
    """The compute of each module per step, ns; they add up to the account."""
    sums = (
        side.pieces.filter(pl.col("account") == "compute")
        .group_by(pl.col("module").fill_null(""))
        .agg(pl.col("ns").sum())
        .sort("module")
    )
    amounts = apportion(sums["ns"].to_list(), max(side.num_windows, 1))
    return dict(zip(sums["module"].to_list(), amounts, strict=True))
