"""What a recording gives reason to try, the most promising first, and why the rest is left alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lostflops.finding import Finding, PredictedGain, percent
from lostflops.remedies import REMEDIES
from lostflops.remedies.remedy import Safety

from .changes import CHANGES, SAFETIES, AppliedChange, JobFacts, allowed, own_among

LEAST = 0.02  # of the step: a smaller predicted gain is not worth its proof
LEAST_BOUND = 0.05  # the same of a gain that is only known to be at most so large
OWN_CODE = "it takes an edit of the job's own code or configuration"
OPTION = {safety: option for option, safety in SAFETIES.items()}


@dataclass(frozen=True)
class SeenRun:
    """What a recording says: its findings, costliest first, and what changes need to know of the job.

    `reasons` are those that the first page has no finding for: work that is needless, and not idle.
    """

    findings: Sequence[Finding]
    step_ns: int
    verdict: str
    facts: JobFacts
    typed: Mapping[str, str]  # by remedy, what its user would type in the job's framework
    # By edit, what changes gain with the numbers that they are made with.
    predicted: Mapping[str, PredictedGain] = field(default_factory=dict[str, PredictedGain])
    reasons: Sequence[Finding] = ()

    @property
    def asks_stacks(self) -> bool:
        """Whether a finding of some size asks for call stacks to name its cause."""
        return any(
            "Record call stacks" in finding.next and finding.size >= LEAST_BOUND * self.step_ns
            for finding in self.findings
        )


@dataclass(frozen=True)
class TuneCandidate:
    """A change with the finding that gives reason for it. Shares are of the step."""

    change: AppliedChange
    finding: Finding
    gain: float | None  # predicted; None where nothing is
    low: float | None
    high: float | None
    at_most: float
    edit: str  # what was replayed for it
    cost: float = 1.0  # the time that the finding is about
    beside: bool = False  # whether the first page has no finding for it

    @property
    def promise(self) -> float:
        """What it may gain: predicted, or half the time that is at stake or that the finding is about."""
        return min(self.at_most, self.cost) / 2 if self.gain is None else self.gain


@dataclass(frozen=True)
class LeftAlone:
    """A remedy that a finding names and that is not tried, and why. Shares are of the step.

    Of a finding that names no remedy `remedy` is empty, and `then` says what to do.
    """

    remedy: str
    finding: str
    claim: str
    why: str
    is_for_user: bool = False  # it takes an edit of the job's files
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    at_most: float | None = 0.0  # None: not known
    edit: str = ""
    then: str = ""

    @property
    def name(self) -> str:
        """What `--try` calls it."""
        return self.remedy or self.finding


Found = TuneCandidate | LeftAlone


def candidates(
    seen: SeenRun,
    applied: Sequence[AppliedChange],
    tried: Sequence[AppliedChange],
    safety: Safety,
    own: Collection[str] = (),
) -> list[Found]:
    """Each remedy once, for the costliest finding that names it.

    Of the names in `own`, remedies' or findings', the user gave a command that has the change.
    """
    found: dict[str, Found] = {}
    for finding in (*seen.findings, *seen.reasons):
        names = [*([finding.name] if finding.name in own else []), *(finding.remedies or ())]
        if not names and finding.size >= LEAST_BOUND * seen.step_ns:
            names = [finding.name]
        for name in names:
            if name not in found:
                found[name] = _judged(seen, finding, name, applied, tried, safety, own)
    return list(found.values())


def to_try(found: Sequence[Found]) -> Iterator[TuneCandidate]:
    """Those that are tried: the user's own, then the largest promise; what the page does not find is last.

    Work that is needless takes longer where something else slows it down, such as too many threads.
    """
    chosen = [one for one in found if isinstance(one, TuneCandidate)]
    yield from sorted(chosen, key=lambda one: (not one.change.own, one.beside, -one.promise))


def _judged(
    seen: SeenRun,
    finding: Finding,
    remedy: str,
    applied: Sequence[AppliedChange],
    tried: Sequence[AppliedChange],
    safety: Safety,
    own: Collection[str],
) -> Found:
    beside = finding in seen.reasons
    known = remedy if remedy in REMEDIES else ""
    gain, low, high, bound = _gains(finding, seen.step_ns)
    cost = min(1.0, finding.size / max(1, seen.step_ns))
    edit = finding.edit
    if gain is None and known and (asked := REMEDIES[known].edit) in seen.predicted:
        gain, low, high = _shares(seen.predicted[asked], seen.step_ns)
        edit = asked

    def left(why: str, is_for_user: bool = False) -> LeftAlone:
        then = "" if known else finding.next
        most = None if finding.gain == "unknown" else bound
        return LeftAlone(
            known, finding.name, finding.claim, why, is_for_user, gain, low, high, most, edit, then
        )

    if finding.gain == "unknown" and remedy not in own:
        return left("what it would gain is not known", is_for_user=True)
    if gain is None and bound < LEAST_BOUND:
        return left("replay predicts no gain for it, and the time at stake is small")
    if gain is not None and gain < LEAST:
        return left(f"replay predicts {percent(gain, 1)} less time, which is not worth a proof")
    if remedy in own:
        one = AppliedChange(remedy, own=True)
        if one in tried:
            return left("your command was tried")
        if own_among(applied) is not None:
            return left("your other command stayed: give one command that has both changes")
        return TuneCandidate(one, finding, gain, low, high, bound, edit, cost, beside)
    change = CHANGES.get(remedy)
    if change is None:
        return left(OWN_CODE, is_for_user=True)
    if not allowed(change.safety, safety):
        return left(f"it is {change.safety}: `--safety {OPTION[change.safety]}` allows it")
    before = next((one.options for one in applied if one.remedy == remedy), None)
    if before == {}:
        return left("it is made already")
    options = change.options(seen.facts, before or {})
    if options is None:
        return left(change.otherwise)
    one = AppliedChange(remedy, options)
    if one in tried:
        return left("it was tried with these numbers")
    edit = change.edit.format(**options)
    told = seen.predicted.get(edit)
    if told is None or told.refused:
        return TuneCandidate(one, finding, gain, low, high, bound, finding.edit, cost, beside)
    gain, low, high = _shares(told, seen.step_ns)
    if gain is not None and gain < LEAST:
        return left(f"replay predicts {percent(gain, 1)} less time, which is not worth a proof")
    return TuneCandidate(one, finding, gain, low, high, bound, edit, cost, beside)


Shares = tuple[float | None, float | None, float | None]


def _gains(finding: Finding, step: int) -> tuple[float | None, float | None, float | None, float]:
    """Predicted with its ends, and at most; as shares of the step."""
    bound = min(1.0, finding.ns_per_step / step) if step else 0.0
    return *_shares(finding.predicted, step), bound


def _shares(told: PredictedGain | None, step: int) -> Shares:
    if told is None or told.refused or not step:
        return None, None, None
    return told.ns / step, told.low_ns / step, told.high_ns / step


def known(remedy: str) -> str:
    """What a remedy does, in a sentence."""
    return REMEDIES[remedy].does
