"""What removing the causes on a page would gain: a replay of the job without each of the costliest."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from lostflops.errors import LostflopsError
from lostflops.finding import Finding, PredictedGain, milliseconds, percent
from lostflops.session import Session

from .names import BUBBLE

MOST_EDITS = 3
MOST_EVENTS = 2_000_000  # of a recording: replaying one takes a second for each million
DISAPPOINTS = 0.5  # of what a finding costs, that a replay without its cause has to gain to keep its place
SURELY = 1.1  # times what a late rank is seen to cost, from which on a replay's least is surely more
SOME_OF_IT = 0.25  # of that, which it costs at least that is not late alone
PASSED_ON = (
    "that is more than is waited for it: who waits for it comes late to others, which a replay with it like "
    "the others adds up"
)
SOME_ANYWAY = (
    "it comes {} late, but the others wait for each other too: with it like them, a replay gains less"
)
WAITS_FOR_IT = re.compile(r"; the others(?: here)? wait [\d.,]+ \S+ for it")
LATE = re.compile(r"(Rank \d+) is ([\d.,]+ \S+) late per step (\([\d.]+ %\))")
NOT_ALONE = "with {} like the others a step is as long, as a replay shows: others are as late"
LEAST = 0.01  # of the step, from which on what a finding costs is worth a replay


def predicted(findings: tuple[Finding, ...], session: Session, mean_step: float) -> tuple[Finding, ...]:
    """The findings, the costliest with the gain that a replay without their cause predicts.

    A cause that two findings are about is told at the first. A bound that the replay finds too low yields to
    it, and a finding that gains less than half of what it costs to those that are worth more. A recording
    that is too large or cannot be replayed leaves all as they are.
    """
    worth = [f.edit for f in findings if f.edit and f.size >= LEAST * mean_step]
    asked = list(dict.fromkeys(worth))[:MOST_EDITS]
    if not asked or session.trace.manifest.num_events > MOST_EVENTS:
        return findings
    try:
        gains = session.predicted(asked)
    except LostflopsError:  # what cannot be replayed must not cost the reader the page
        return findings
    first = {f.edit: f for f in reversed(findings)}
    staged = any(f.name == BUBBLE for f in findings)
    told = [
        _with(f, gains[f.edit], mean_step, staged) if f.edit in gains and first[f.edit] is f else f
        for f in findings
    ]
    cheaper = {after.name for before, after in zip(findings, told, strict=True) if after.size < before.size}
    return tuple(_by_worth(told, cheaper))


def gained(session: Session, edit: str) -> int:
    """What a mean step gains by an edit, as a replay has it, ns; 0 where none tells, or it gains nothing.

    Raises LostflopsError where the recording has no replay.
    """
    if session.trace.manifest.num_events > MOST_EVENTS:
        return 0
    gain = session.predicted([edit])[edit]
    return 0 if gain.refused else max(0, gain.ns)


def _by_worth(findings: Sequence[Finding], cheaper: Collection[str] = ()) -> list[Finding]:
    """The findings in their order, but what gains far less than it costs, or costs less than it was thought
    to (`cheaper`), after what is worth more."""
    placed = list(findings)
    for at in reversed(range(len(placed))):
        finding = placed[at]
        moves = finding.name in cheaper or _disappoints(finding)
        while moves and at + 1 < len(placed) and _worth(placed[at + 1]) > _worth(finding):
            placed[at], placed[at + 1] = placed[at + 1], finding
            at += 1
    return placed


def _disappoints(finding: Finding) -> bool:
    """Whether it gains far less than it costs; where stages wait for a slow one, the schedule makes them wait
    too, and only the replay tells the two apart."""
    share = 1.0 if finding.name == BUBBLE and finding.rank is not None else DISAPPOINTS
    return _worth(finding) < share * finding.size


def _worth(finding: Finding) -> int:
    """What a replay gains without its cause, ns; what it costs, where none knows or it gains more.

    One that may gain all of it or lose does not know.
    """
    gain = finding.predicted
    if gain is None or gain.refused or (gain.low_ns < 0 and gain.high_ns >= finding.size):
        return finding.size
    return min(finding.size, max(0, gain.ns))


def _with(finding: Finding, gain: PredictedGain, mean_step: float, staged: bool) -> Finding:
    bound = finding.ns_per_step
    if finding.gain == "at most" and not gain.refused:
        bound = min(max(bound, gain.ns), round(mean_step))
        gain = replace(gain, high_ns=min(gain.high_ns, bound))
    told = replace(finding, predicted=gain, ns_per_step=bound)
    return _not_alone(_with_passed_on(told, gain, mean_step, staged), gain, mean_step)


def _not_alone(finding: Finding, gain: PredictedGain, mean_step: float) -> Finding:
    """A rank that comes last, where a replay gains nothing with it like the others: it is not alone in that,
    as where ranks that keep in step with it have the same to do."""
    late = LATE.match(finding.claim) if finding.rank is not None and not gain.refused else None
    if late is None or gain.high_ns >= LEAST * mean_step:
        return finding
    rank = late[1].lower()
    return replace(
        finding,
        claim=f"Ranks wait {late[2]} per step {late[3]}, most of it for {rank}{finding.claim[late.end() :]}",
        evidence=(NOT_ALONE.format(rank), *finding.evidence),
    )


def _with_passed_on(finding: Finding, gain: PredictedGain, mean_step: float, staged: bool) -> Finding:
    """A late rank at what it costs where that is surely more than what is seen to wait for it, or less.

    Who waits for it comes late to other groups, and what runs after that hides less; stages of a pipeline
    wait for some of its lateness anyway: only a replay adds that up.
    """
    late = LATE.match(finding.claim) if finding.rank is not None and not gain.refused else None
    if late is None:
        return finding
    size, beside = finding.size, LEAST * mean_step
    rest = finding.claim[late.end() :]
    if gain.low_ns >= max(SURELY * size, size + beside):
        why = PASSED_ON
    elif staged and SOME_OF_IT * size <= gain.ns and gain.high_ns <= min(size / SURELY, size - beside):
        why, rest = SOME_ANYWAY.format(late[2]), WAITS_FOR_IT.sub("", rest)
    else:
        return finding
    cost = f"{milliseconds(gain.ns)} longer ({percent(gain.ns, mean_step)})"
    return replace(
        finding,
        claim=f"{late[1]} makes a step {cost}{rest}",
        cost_per_step=gain.ns,
        evidence=(why, *finding.evidence),
    )
