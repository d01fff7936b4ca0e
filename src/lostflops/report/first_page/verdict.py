"""The one sentence at the top of the page: what bounds the step, with its numbers."""

from __future__ import annotations

from collections.abc import Mapping

from lostflops.finding import Finding, milliseconds, percent

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
    "idle.initialisation": "Held up by first-call initialisation",
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
    budget: Budget,
    on_host: bool = False,
    span: str = "step",
    first: Finding | None = None,
    unseen: str = "",
) -> str:
    """What bounds the mean step, in one sentence. `first` is the finding that costs most: where it costs
    enough to name the verdict, both name one cause. `unseen` is a clause on work that was not recorded, and
    then only the host's side can be told."""
    length = f"{milliseconds(budget.mean)} {span}"
    compute = budget.of("compute")
    if unseen:
        return (
            f"What bounds this job is not in the recording: {unseen}. On the CPU, operators compute for "
            f"{percent(compute, budget.ns)} of the {length}."
        )
    if first is not None and _names_it(first, budget):
        late = _late(first, budget, length) if first.rank is not None else ""
        if late:
            return late
    losses = sorted((g for g in budget.groups if g.account != "compute"), key=lambda g: -g.ns)
    large = [loss for loss in losses if 1000 * loss.ns >= BOUND_PER_MILLE * budget.ns]
    if large:
        return (
            f"{_name(_chosen(large, first), budget, first)}: {_loss(_chosen(large, first), on_host, length)}."
        )
    bound = 1000 * compute >= COMPUTE_BOUND_PER_MILLE * budget.ns
    who = "operators run" if on_host else "kernels run"
    said = f"{'Compute-bound' if bound else 'Mostly compute'}: {who} for {percent(compute, budget.ns)} of "
    said += f"the {length}"
    if losses and losses[0].visible:
        said += f"; the largest loss is {_noun(losses[0])}, {losses[0].share}"
    return said + "."


def _names_it(first: Finding, budget: Budget) -> bool:
    return 1000 * first.size >= BOUND_PER_MILLE * budget.mean


def _late(first: Finding, budget: Budget, length: str) -> str:
    """The verdict where one rank holds the job up; empty where the finding is of another kind."""
    if "communication.wait" not in first.accounts:
        return ""
    cause = first.accounts[0]
    what = HELD_UP_BY.get(cause, "")
    return (
        f"Waiting for rank {first.rank}: {what or 'its own work makes'} it {milliseconds(first.size)} late "
        f"in the {length} ({percent(first.size, budget.mean)})."
    )


HELD_UP_BY: Mapping[str, str] = {
    "compute": "its longer compute makes",
    "copy": "its copies make",
    "idle.data_loading": "its data loader makes",
    "idle.host_synchronisation": "its synchronising makes",
    "idle.memory_allocator": "its memory allocator makes",
    "idle.garbage_collection": "its garbage collection makes",
    "idle.compilation": "compilation on it makes",
    "idle.graph_capture": "graph capture on it makes",
    "idle.checkpoint_logging": "its checkpoints or logging make",
    "idle.long_call": "long API calls on it make",
    "idle.launch_bound": "its launching makes",
    "idle.other_host_work": "CPU work on it makes",
    "idle.unexplained": "something that was not recorded makes",
    "idle.unrecorded": "something that was not recorded makes",
}


def _chosen(large: list[Line], first: Finding | None) -> Line:
    """The loss that the first finding is about, where it is among the large ones; else the largest."""
    of = {loss.account: loss for loss in large}
    about = (account.partition(".")[0] for account in (first.accounts if first else ()))
    return next((of[group] for group in about if group in of), large[0])


def _noun(loss: Line) -> str:
    return "idle time" if loss.account == "idle" else loss.label


def _main(worst: Line, budget: Budget) -> str:
    """The account that is most of a loss; empty where none is."""
    main = max(budget.parts(worst.account), key=lambda part: part.ns, default=worst)
    return main.account if 2 * main.ns >= worst.ns else ""


def _name(worst: Line, budget: Budget, first: Finding | None) -> str:
    """A loss is called after the first finding's account where that is in it, else after its main cause."""
    about = next((a for a in first.accounts if a.partition(".")[0] == worst.account), "") if first else ""
    main = about if first and _names_it(first, budget) and about in NAMES else _main(worst, budget)
    if main in NAMES:
        return NAMES[main]
    if worst.account == "idle":
        return "Mostly idle" if 2 * worst.ns >= budget.ns else "Partly idle"
    return NAMES.get(worst.account) or worst.label.capitalize()


def _loss(worst: Line, on_host: bool, length: str) -> str:
    if worst.account == "idle":
        nothing = "nothing computes" if on_host else "the GPU is idle"
        return f"{nothing} for {worst.share} of the {length}"
    what = "copies that nothing hides" if worst.account == "copy" else worst.label
    return f"{worst.share} of the {length} is {what}"
