"""The one sentence at the top of the page: what bounds the step, with its numbers."""

from __future__ import annotations

from collections.abc import Mapping

from lostflops.finding import milliseconds

from .amounts import percent
from .budget import Budget, Line

# From this share of the step on, a loss gives the verdict its name. XProf's rule engine calls collectives,
# launches and device idle 'high' from 15 % on.
BOUND_PER_MILLE = 150
COMPUTE_BOUND_PER_MILLE = 900

NAMES: Mapping[str, str] = {
    "communication": "Communication-bound",
    "copy": "Copy-bound",
    "idle.data_loading": "Input-bound",
    "idle.host_synchronisation": "Synchronisation-bound",
    "idle.memory_allocator": "Allocator-bound",
    "idle.garbage_collection": "Held up by garbage collection",
    "idle.compilation": "Held up by compilation",
    "idle.graph_capture": "Held up by graph capture",
    "idle.checkpoint_logging": "Held up by checkpoints or logging",
    "idle.long_call": "Held up inside API calls",
    "idle.launch_bound": "Launch-bound",
    "idle.dependency": "Dependency-bound",
    "idle.pipeline_bubble": "Bubble-bound",
    "idle.other_host_work": "Host-bound",
    "idle.unrecorded": "Incompletely recorded",
}


def verdict(budget: Budget, on_host: bool = False, span: str = "step", culprit: str = "") -> str:
    """What bounds the mean step. `culprit` is a clause on who arrives last, for when that matters."""
    length = f"{milliseconds(budget.mean)} {span}"
    losses = sorted((g for g in budget.groups if g.account != "compute"), key=lambda g: -g.ns)
    large = [loss for loss in losses if loss.per_mille >= BOUND_PER_MILLE]
    if large:
        said = f"{_name(large[0], budget)}: {_loss(large[0], budget, on_host, length)}"
        if large[1:]:
            said += f"; another {large[1].share} is {large[1].label}"
    else:
        compute = budget.per_mille("compute")
        head = "Compute-bound" if compute >= COMPUTE_BOUND_PER_MILLE else "Mostly compute"
        who = "operators run" if on_host else "kernels run"
        said = f"{head}: {who} for {percent(compute)} of the {length}"
        if losses and losses[0].per_mille:
            said += f"; the largest loss is {_noun(losses[0])}, {losses[0].share}"
    if culprit and "communication" in {loss.account for loss in [*large, *losses[:1]]}:
        said += f"; {culprit}"
    return said + "."


def _noun(loss: Line) -> str:
    return "idle time" if loss.account == "idle" else loss.label


def _name(worst: Line, budget: Budget) -> str:
    """A loss is called after its main cause when that is most of it."""
    main = max(budget.parts(worst.account), key=lambda part: part.ns, default=worst)
    if 2 * main.ns >= worst.ns and main.account in NAMES:
        return NAMES[main.account]
    if worst.account == "idle":
        return "Mostly idle" if 2 * worst.ns >= budget.ns else "Partly idle"
    return NAMES.get(worst.account) or worst.label.capitalize()


def _loss(worst: Line, budget: Budget, on_host: bool, length: str) -> str:
    if worst.account == "idle":
        said = f"{'no operator runs' if on_host else 'the GPU is idle'} for {worst.share} of the {length}"
    else:
        what = "copies that nothing hides" if worst.account == "copy" else worst.label
        said = f"{worst.share} of the {length} is {what}"
    parts = tuple(part for part in budget.parts(worst.account) if part.per_mille)
    return f"{said} ({_parts(parts, worst.per_mille)})" if len(parts) > 1 else said


def _parts(parts: tuple[Line, ...], whole: int) -> str:
    """The largest parts by name and the rest in one, so that the shares named add up to the whole."""
    largest = sorted(parts, key=lambda part: -part.ns)
    named = largest[:2]
    while (rest := whole - sum(part.per_mille for part in named)) > named[-1].per_mille and len(named) < 3:
        named = largest[: len(named) + 1]
    words = [f"{part.share} {part.label}" for part in named]
    if rest:
        words.append(f"{percent(rest)} the rest")
    return ", ".join(words)
