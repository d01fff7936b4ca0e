"""What was asked of the offload engine, read and checked once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from lostflops.copies import link_card
from lostflops.copies.link import Link
from lostflops.optimize.activations.checkpoint_choice import DECISIONS
from lostflops.optimize.activations.offload.choice import EVERYTHING, Plan
from lostflops.optimize.activations.offload.tally import ASSUMED_RATE, LAUNCH_NS
from lostflops.optimize.amounts import bytes_of
from lostflops.optimize.device import host_share
from lostflops.optimize.refused import Refused


@dataclass(frozen=True)
class Asked:
    """See `offload` for what each means. Amounts are in bytes."""

    budget: int | None
    plan: Plan | str | None
    link: Link | None
    threshold: int
    verify: bool
    host_limit: int
    disk: Path | None = None

    @property
    def classes(self) -> Mapping[str, str] | None:
        """What a plan record decides per tensor class."""
        return self.plan["classes"] if isinstance(self.plan, Mapping) else None

    @property
    def everything(self) -> bool:
        return self.plan == EVERYTHING

    @property
    def moves(self) -> bool:
        """Something has to move."""
        return self.everything or "offload" in (self.classes or {}).values()

    @property
    def recomputes(self) -> bool:
        return "recompute" in (self.classes or {}).values()


def asked(
    budget: int | str | None,
    plan: Plan | Literal["everything"] | None,
    link: Mapping[str, Any] | None,
    threshold: int | str | None,
    verify: Literal["first step"] | None,
    host_limit: int | str | None,
    disk: str | os.PathLike[str] | None = None,
) -> Asked:
    """Refuses what cannot be meant, or not be done."""
    if budget is not None and plan is not None:
        raise Refused("a budget and a plan were given", "a plan has its budget: leave out one of the two")
    if isinstance(plan, Mapping):
        _check(plan)
    elif plan not in (None, EVERYTHING):
        raise Refused(f"{plan!r} is no plan", 'give a plan record, or "everything"')
    card = None if link is None else link_card.link(link)
    if threshold is not None:
        least = bytes_of(threshold)
    else:
        least = 1 if isinstance(plan, Mapping) else _threshold(card)
    return Asked(
        None if budget is None else bytes_of(budget),
        cast("Plan | str | None", plan),
        card,
        least,
        verify is not None,
        host_share.memory() if host_limit is None else bytes_of(host_limit),
        None if disk is None else Path(disk),
    )


def _check(plan: Plan) -> None:
    if plan.get("kind") != "offload plan" or plan.get("schema") != 1:
        raise Refused("this is no offload plan of schema 1", "make it with `lostflops plan`")
    if plan.get("refused"):
        raise Refused(
            f"the plan is a refusal: {plan['refused']}", "plan with another budget or another method"
        )
    wrong = [f"{name}: {what}" for name, what in plan["classes"].items() if what not in DECISIONS]
    if wrong:
        raise Refused(
            f"the engine keeps, offloads and recomputes, the plan wants more ({wrong[0]})",
            "make it with `lostflops plan offload`",
        )


def _threshold(link: Link | None) -> int:
    """Below this a copy takes mostly its launch."""
    return (link or Link(ASSUMED_RATE, ASSUMED_RATE, LAUNCH_NS)).least_bytes
