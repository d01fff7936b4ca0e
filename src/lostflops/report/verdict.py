"""The one sentence at the top of the page: what bounds the step, with its numbers."""

from __future__ import annotations

from collections.abc import Mapping

from lostflops.finding import milliseconds, percent

from .budget import Budget, Line

# From this share of the step on, a loss gives the verdict its name. XProf's rule engine calls collectives,
# launches and device idle 'high' from 15 % on.
BOUND_PER_MILLE = 150
COMPUTE_BOUND_PER_MILLE = 900

NAMES: Mapping[str, str] = {
    "communication": "Communication-bound",
    "communication.wait": "Waiting for late ranks",
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


def verdict(
    budget: Budget, on_host: bool = False, span: str = "step", culprit: str = "", unseen: str = ""
) -> str:
    """What bounds the mean step. `culprit` is a clause on who arrives last, for when that matters; `unseen`
    one on work that was not recorded, and then only the host's side can be told."""
    length = f"{milliseconds(budget.mean)} {span}"
    compute = budget.of("compute")
    if unseen:
        return (
            f"What bounds this job cannot be told: {unseen}. On the host, operators that compute run for "
            f"{percent(compute, budget.ns)} of the {length}."
        )
    losses = sorted((g for g in budget.groups if g.account != "compute"), key=lambda g: -g.ns)
    large = [loss for loss in losses if 1000 * loss.ns >= BOUND_PER_MILLE * budget.ns]
    if large:
        said = f"{_name(large[0], budget)}: {_loss(large[0], budget, on_host, length)}"
        if large[1:]:
            said += f"; another {large[1].share} is {large[1].label}"
    else:
        bound = 1000 * compute >= COMPUTE_BOUND_PER_MILLE * budget.ns
        who = "operators run" if on_host else "kernels run"
        said = (
            f"{'Compute-bound' if bound else 'Mostly compute'}: {who} for {percent(compute, budget.ns)} of "
        )
        said += f"the {length}"
        if losses and losses[0].visible:
            said += f"; the largest loss is {_noun(losses[0])}, {losses[0].share}"
    if culprit and "communication" in {loss.account for loss in [*large, *losses[:1]]}:
        said += f"; {culprit}"
    return said + "."


def _noun(loss: Line) -> str:
    return "idle time" if loss.account == "idle" else loss.label


def _main(worst: Line, budget: Budget) -> str:
    """The account that is most of a loss; empty where none is."""
    main = max(budget.parts(worst.account), key=lambda part: part.ns, default=worst)
    return main.account if 2 * main.ns >= worst.ns else ""


def _name(worst: Line, budget: Budget) -> str:
    """A loss is called after its main cause when that is most of it."""
    main = _main(worst, budget)
    if main in NAMES:
        return NAMES[main]
    if worst.account == "idle":
        return "Mostly idle" if 2 * worst.ns >= budget.ns else "Partly idle"
    return NAMES.get(worst.account) or worst.label.capitalize()


def _loss(worst: Line, budget: Budget, on_host: bool, length: str) -> str:
    if worst.account == "idle":
        nothing = "no operator that computes runs" if on_host else "the GPU is idle"
        if _main(worst, budget) == "idle.unrecorded":  # idle, or busy with what the recording lacks
            nothing = "nothing that was recorded runs"
        said = f"{nothing} for {worst.share} of the {length}"
    else:
        what = "copies that nothing hides" if worst.account == "copy" else worst.label
        said = f"{worst.share} of the {length} is {what}"
    parts = tuple(part for part in budget.parts(worst.account) if part.visible)
    return f"{said} ({_parts(parts, worst.ns)})" if len(parts) > 1 else said


def _parts(parts: tuple[Line, ...], ns: int) -> str:
    """The largest parts by name and the rest of `ns` in one."""
    largest = sorted(parts, key=lambda part: -part.ns)
    named = largest[:2]
    while (rest := ns - sum(part.ns for part in named)) > named[-1].ns and len(named) < 3:
        named = largest[: len(named) + 1]
    words = [f"{part.share} {part.label}" for part in named]
    if len(largest) > len(named):
        words.append(f"{percent(rest, parts[0].whole)} the rest")
    return ", ".join(words)
