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
    "idle": "Idle",
    "idle.data_loading": "Input-bound",
    "idle.host_synchronisation": "Synchronisation-bound",
    "idle.memory_allocator": "Allocator-bound",
    "idle.garbage_collection": "Held up by garbage collection",
    "idle.compilation": "Held up by compilation",
    "idle.checkpoint_logging": "Held up by checkpoints or logging",
    "idle.launch_bound": "Launch-bound",
    "idle.dependency": "Dependency-bound",
    "idle.pipeline_bubble": "Bubble-bound",
    "idle.other_host_work": "Host-bound",
}


def verdict(budget: Budget, on_host: bool = False, span: str = "step", culprit: str = "") -> str:
    """What bounds the mean step. `culprit` is a clause on who arrives last, for when communication does."""
    length = f"{milliseconds(budget.mean)} {span}"
    losses = sorted((g for g in budget.groups if g.account != "compute"), key=lambda g: -g.ns)
    compute = budget.per_mille("compute")
    if losses and losses[0].per_mille >= BOUND_PER_MILLE:
        worst = losses[0]
        said = f"{_name(worst, budget)}: {_loss(worst, budget, on_host, f'of the {length}')}"
    else:
        head = "Compute-bound" if compute >= COMPUTE_BOUND_PER_MILLE else "Mostly compute"
        who = "operators run" if on_host else "kernels run"
        said = f"{head}: {who} for {percent(compute)} of the {length}"
        if losses and losses[0].per_mille:
            said += f"; the largest loss is {_loss(losses[0], budget, on_host, '')}"
    if culprit and losses and losses[0].account == "communication":
        said += f"; {culprit}"
    return said + "."


def _name(worst: Line, budget: Budget) -> str:
    """A loss is called after its main cause when that is most of it."""
    main = max(budget.parts(worst.account), key=lambda part: part.ns, default=worst)
    return NAMES.get(main.account if 2 * main.ns >= worst.ns else worst.account) or NAMES.get(
        worst.account, worst.label.capitalize()
    )


def _loss(worst: Line, budget: Budget, on_host: bool, of: str) -> str:
    share = f"{worst.share} {of}".strip()
    match worst.account:
        case "communication":
            said = f"{share} is exposed communication" if of else f"exposed communication, {share}"
        case "copy":
            said = f"{share} is copies that nothing hides" if of else f"copies that nothing hides, {share}"
        case _:
            device = "no operator runs" if on_host else "the GPU is idle"
            said = f"{device} for {share}" if of else f"time in which {device}, {share}"
    parts = budget.parts(worst.account)
    if len(parts) > 1:
        said += f" ({_parts(parts, worst.per_mille)})"
    return said


def _parts(parts: tuple[Line, ...], whole: int) -> str:
    """The largest parts by name and the rest in one, so that the shares named add up to the whole."""
    named = sorted(parts, key=lambda part: -part.ns)[: 3 if len(parts) == 3 else 2]
    words = [f"{part.share} {part.label}" for part in named]
    rest = whole - sum(part.per_mille for part in named)
    if rest:
        words.append(f"{percent(rest)} other causes")
    return ", ".join(words)
