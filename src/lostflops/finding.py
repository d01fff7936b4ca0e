"""What a finding is: a claim with its size, its evidence, and the next thing to do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import floor
from typing import Literal

from lostflops.units import milliseconds as milliseconds

Gain = Literal["at most", "predicted", "measured", "unknown"]


NOTHING = 500  # ns: a gain that rounds to no microsecond


@dataclass(frozen=True)
class PredictedGain:
    """What a replay without a finding's cause says that removing it gains in a mean step of a mean rank, ns.

    It lies between `low_ns` and `high_ns`. `error` is the share by which a replay of the unchanged job misses
    its recording at most. Where `refused` says why nothing is predicted, the numbers are 0; if that holds
    `of_edit` alone, others may be answered.
    """

    ns: int = 0
    low_ns: int = 0
    high_ns: int = 0
    error: float = 0.0
    refused: str = ""
    of_edit: bool = False

    @property
    def either_way(self) -> bool:
        """Whether it may be a gain as well as a loss, neither of which is nothing."""
        return not self.refused and self.low_ns < -NOTHING and self.high_ns > NOTHING


@dataclass(frozen=True)
class Finding:
    """One thing that is true about a run and worth acting on.

    `ns_per_step` is what acting on it could save in a mean step of a mean rank. A recipe gives either that or
    `ns_in_steps`, added up over all ranks and steps, which the runner then spreads; where it is `shared`,
    what shortens one rank's step also ends others' waiting, and the runner adds that. It is to be read with
    `gain`: *at most* is an upper bound, *predicted* comes from replay, *measured* from interleaved
    repetition; *unknown* says that the trace cannot tell, and then it is 0. Gains of several
    findings do not add up.

    Findings are listed by `cost_per_step`, the time of a mean step of a mean rank that the claim is about:
    where a bound is wide it says little. A recipe leaves it out where that is the gain itself.
    """

    name: str  # stable, in kebab-case: 'data-loading-starves-gpu'
    claim: str  # one sentence with the numbers in it
    gain: Gain
    evidence: tuple[str, ...]  # short facts, each with its number
    next: str  # the next thing to do
    ns_per_step: int = 0
    ns_in_steps: int = 0
    cost_per_step: int | None = None
    shared: bool = False
    recipe: str = ""  # filled in by the runner
    doubt: str = ""  # why this may be wrong, when it may
    contributors: tuple[str, ...] = ()  # what it is made of, by name and with its time, the largest first
    contributed: int | None = None  # what those take of a mean step, ns; None: all of it
    accounts: tuple[str, ...] = ()  # accounts of the ledger whose time it is about
    rank: int | None = None  # the rank that it blames, where it blames one
    # Remedies by name, the best first; None: those that its declaration names.
    remedies: tuple[str, ...] | None = None
    edit: str = ""  # what to ask `lostflops whatif` for what removing it would gain
    predicted: PredictedGain | None = None  # what that answers, where the page asked

    @property
    def size(self) -> int:
        """What findings are listed by, the largest first."""
        return self.ns_per_step if self.cost_per_step is None else self.cost_per_step

    @property
    def is_of_idle_time(self) -> bool:
        """Whether idle time is the first account that it is about."""
        return any(account.startswith("idle.") for account in self.accounts[:1])

    def with_doubt(self, doubt: str) -> Finding:
        """The same with this doubt before its own."""
        return replace(self, doubt=" ".join(filter(None, (doubt, self.doubt))))

    def without_bound(self) -> Finding:
        """The same with what it costs now, and no bound: what is advised saves more than that."""
        return replace(self, gain="unknown", ns_per_step=0, cost_per_step=self.size)

    @property
    def is_mostly_these(self) -> bool:
        """Whether its contributors are more than half of what it costs."""
        return self.contributed is None or 2 * self.contributed > self.size


@dataclass(frozen=True)
class Verdict:
    """What the page's first sentence says where a finding is the cause and no account is named after it."""

    job: str  # what the job is called: 'Bound by fp32 compute'
    time: str  # what takes the time that the finding is about
    outside: bool = False  # that time is in none of the steps that the page divides


OTHERS_GAIN_TOO = "the bound counts the time in which ranks that wait for others could gain too"


def percent(part: float, whole: float) -> str:
    """A share in words, rounded half up on its own, so that one amount has one share wherever it is told.

    'no share' of an empty whole is never printed as a number.
    """
    if whole == 0:
        return "–"
    if isinstance(part, int) and isinstance(whole, int):
        per_mille = (2000 * part + whole) // (2 * whole)
    else:
        per_mille = floor(1000 * part / whole + 0.5)
    return f"{per_mille / 10:.1f} %"
