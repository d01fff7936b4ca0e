"""Findings that only the joining of others makes, and which remedies every finding asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lostflops.accounts import ACCOUNTS
from lostflops.finding import Verdict
from lostflops.recipes import declared


@dataclass(frozen=True)
class Made:
    """A finding of no recipe; `claim` is an example of how it reads."""

    name: str
    claim: str
    remedies: tuple[str, ...]
    verdict: Verdict


LOGGING = Made(
    "logging-inside-step",
    "The GPU idles 3.00 ms per step (30.0 %) while the CPU logs.",
    ("log-less",),
    Verdict("Held up by logging", "idle time while the CPU logs"),
)
MADE: Mapping[str, Made] = {made.name: made for made in (LOGGING,)}
# What findings become when it is known what lies behind them: a case, with remedies of its own.
CASES: Mapping[str, tuple[str, ...]] = {
    "uneven-work": ("even-lengths",),
    "uneven-stages": ("stage-balance",),
    "communication-exposed-gradients": ("accumulate", "overlap"),
    "communication-exposed-shards": ("overlap", "accumulate"),
    "communication-exposed-tensor": ("tensor-overlap", "tensor-inside-node"),
    "communication-exposed-experts": ("expert-overlap",),
    "communication-exposed-exchange": ("exchange",),
    "communication-exposed-stages": ("bubble",),
    "communication-exposed-barriers": ("fewer-barriers",),
    "communication-exposed-broadcasts": ("fewer-broadcasts",),
}


def verdicts() -> Mapping[str, Verdict]:
    """What the page's first sentence says of findings that no account is named after."""
    of_recipes = {name: finding.verdict for name, (_, finding) in declared().items()}
    losses = {account: account.loss for account in ACCOUNTS.values()}
    return {
        **{name: verdict for name, verdict in of_recipes.items() if verdict},
        **{name: made.verdict for name, made in MADE.items()},
        **{
            loss.finding: Verdict(account.verdict, loss.takes)
            for account, loss in losses.items()
            if loss and loss.takes
        },
    }


# Edits that take something from the device: on a CPU there is nothing to take.
OF_DEVICES = ("cuda-graph", "no-sync", "overlap", "pinned")


def edits() -> Mapping[str, str]:
    """What to ask `lostflops whatif` about each finding for which there is an edit."""
    losses = [account.loss for account in ACCOUNTS.values() if account.loss]
    return {
        **{name: finding.edit for name, (_, finding) in declared().items() if finding.edit},
        **{loss.finding: loss.edit for loss in losses if loss.edit},
    }


def remedies() -> Mapping[str, tuple[str, ...]]:
    """Which remedies each finding or case asks for, the best first."""
    return {
        **{name: finding.remedies for name, (_, finding) in declared().items()},
        **{name: made.remedies for name, made in MADE.items()},
        **CASES,
    }
