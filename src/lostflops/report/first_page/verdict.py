"""The one sentence at the top of the page: what bounds the step, with its numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from lostflops.accounts import ACCOUNTS
from lostflops.causes import verdicts
from lostflops.finding import Finding, milliseconds, percent
from lostflops.recipes.accounting import DEPENDENCY, UNRECORDED

from .budget import Budget, Line

# From this share of the step on, a loss gives the verdict its name. XProf's rule engine calls collectives,
# launches and device idle 'high' from 15 % on.
BOUND_PER_MILLE = 150
COMPUTE_BOUND_PER_MILLE = 900

NAMES: Mapping[str, str] = {
    "communication": "Communication-bound",
    **{account.name: account.verdict for account in ACCOUNTS.values() if account.verdict},
}

BARELY = 0.5  # of what the first finding costs: a group of accounts that holds less is not what it is about
SAVES = re.compile(r" while the CPU saves a checkpoint\.$|^Checkpoints hold ")  # and does not log
UNSPLIT = "communication.exposed"  # waiting or transfer
# A loss that is so many times as large as the first finding, and not about it, leads the verdict.
FAR_LARGER = 2


def verdict(
    budget: Budget,
    on_host: bool = False,
    span: str = "step",
    first: Finding | None = None,
    unseen: str = "",
    in_graphs: float = 0.0,
    is_doubtful: bool = False,
    own_functions: bool = False,
) -> str:
    """What bounds the mean step, in one sentence.

    The only cause that it names is that of `first`, the finding that leads the page or costs most: a loss
    that has no finding is told by its size alone. `unseen` is a clause on work that was not recorded, and
    then only the host's side can be told. `in_graphs` is the share of kernel time in CUDA graphs of which
    nobody knows whether they compute. `is_doubtful`: some of the GPU's work, or how long it took, was lost,
    so that what seems idle may be that work. With `own_functions`, what counts as compute holds autograd
    functions of the job's own, of which nobody knows whether they compute.
    """
    length = f"{milliseconds(budget.mean)} {span}"
    compute = budget.of("compute")
    if first is not None and SAVES.search(first.claim):
        # The account is of logs as well.
        plain = replace(first, claim="")
        said = verdict(budget, on_host, span, plain, unseen, in_graphs, is_doubtful, own_functions)
        return said.replace("checkpoints or logging", "checkpoints").replace(
            "checkpoints and logging", "checkpoints"
        )
    if unseen:
        return (
            f"What bounds this job is not in the recording: {unseen}. On the CPU, operators compute for "
            f"{percent(compute, budget.ns)} of the {length}."
        )
    first = first if first is not None and first.size and _noun(first) else None
    losses = sorted((g for g in budget.groups if g.account != "compute"), key=lambda g: -g.ns)
    large = [loss for loss in losses if 1000 * loss.ns >= BOUND_PER_MILLE * budget.ns]
    if first is not None and bounds(first, budget) and not _is_dwarfed(first, large, budget):
        return _bound_by(first, budget, on_host, length, is_doubtful)
    cause = f"; the largest cause is {_noun(first)}, {_share(first, budget)}" if first is not None else ""
    if large and first is not None and first.name in verdicts() and _is_main(large[0], budget, first):
        own = verdicts()[first.name]
        if not own.outside:
            return f"{own.job}: {_share(first, budget)} of the {length} is {_time(first)}."
    if large:
        name, named = _sized(large[0], budget, first, is_doubtful)
        named = named or (first is not None and _noun(first) == large[0].label)  # it is no cause of itself
        return f"{name}: {_loss(large[0], on_host, length, budget, is_doubtful)}{'' if named else cause}."
    listless = f"{percent(in_graphs, 1)} of kernel time is in CUDA graphs that list no kernels"
    if 2 * in_graphs >= 1:
        return f"What bounds this job is not in the recording: {listless}."
    known = compute if 1000 * in_graphs < 1000 - COMPUTE_BOUND_PER_MILLE else 0
    bound = 1000 * known >= COMPUTE_BOUND_PER_MILLE * budget.ns
    who = "operators run" if on_host else "kernels run"
    who = f"{'Compute-bound' if bound else 'Mostly compute'}: {who}"
    who = "Operators and autograd functions of the job's own run" if own_functions else who
    said = f"{who} for {percent(compute, budget.ns)} of the {length}{cause}"
    if compute and not known:
        return f"{said}; {listless}."
    if not cause and losses and losses[0].visible:
        said += f"; the largest loss is {_loss_noun(losses[0])}, {losses[0].share}"
    return said + "."


def bounds(first: Finding, budget: Budget) -> bool:
    """Whether a finding is large enough to give the verdict its name."""
    return 1000 * first.size >= BOUND_PER_MILLE * budget.mean


def _is_dwarfed(first: Finding, large: Sequence[Line], budget: Budget) -> bool:
    """Whether most of what the step loses is elsewhere."""
    mine = {account.partition(".")[0] for account in first.accounts}
    others = max((loss.ns for loss in large if loss.account not in mine), default=0)
    return others > FAR_LARGER * first.size * budget.num_windows


def _bound_by(first: Finding, budget: Budget, on_host: bool, length: str, is_doubtful: bool) -> str:
    """The verdict where the first finding is large enough to name it."""
    late = _late(first, budget, length)
    if late:
        return late
    group = first.accounts[0].partition(".")[0] if first.accounts else ""
    own = verdicts().get(first.name)
    if own is not None and own.outside:
        return f"{own.job}: {own.time} add {milliseconds(first.size)} per step to the {length}."
    if own is not None:
        return f"{own.job}: {_share(first, budget)} of the {length} is {_time(first)}."
    loss = next((g for g in budget.groups if g.account == group and group != "compute"), None)
    name = _called(first.accounts[0])
    copies = "copy" in first.accounts[1:] and group != "copy"
    if loss is None or (name and copies and loss.ns < BARELY * first.size * budget.num_windows):
        # Most of what it costs are copies, as of a checkpoint.
        return f"{name}: {_share(first, budget)} of the {length} is {_noun(first)}."
    if group == "copy" and loss.ns < BARELY * first.size * budget.num_windows:
        return f"{name}: {_share(first, budget)} of the {length} is copies and the calls that make them."
    if is_doubtful and first.accounts[0] == DEPENDENCY:  # for as long as what was lost may have run
        name = NAMES[UNRECORDED]
    name = name or _loss_name(loss, budget, is_doubtful)
    return f"{name}: {_loss(loss, on_host, length, budget, is_doubtful)}."


def _called(account: str) -> str:
    """What a job is called whose first cause is an account."""
    return NAMES.get(account) or NAMES.get(account.partition(".")[0], "")


def _sized(loss: Line, budget: Budget, first: Finding | None, is_doubtful: bool) -> tuple[str, bool]:
    """What a loss is called that the first finding is too small to name, and whether that names its cause."""
    main = _main(loss, budget)
    mine = first is not None and main and first.accounts[:1] == (main,)
    # That ranks wait is measured; why the GPU idles is a finding's to say.
    if mine or (first is None and loss.account != "idle"):
        return _called(main) or _loss_name(loss, budget, is_doubtful), bool(mine)
    return _loss_name(loss, budget, is_doubtful), False


def _is_main(loss: Line, budget: Budget, first: Finding) -> bool:
    """Whether a finding is about what is most of a loss."""
    main = _main(loss, budget)
    return bool(main) and first.accounts[:1] == (main,)


def _loss_name(loss: Line, budget: Budget, is_doubtful: bool) -> str:
    if loss.account == "idle" and is_doubtful:
        return NAMES[UNRECORDED]
    if loss.account == "idle":
        return "Mostly idle" if 2 * loss.ns >= budget.ns else "Partly idle"
    return NAMES.get(loss.account) or loss.label.capitalize()


def _share(first: Finding, budget: Budget) -> str:
    own = verdicts().get(first.name)
    if own is not None and own.outside:
        return f"{milliseconds(first.size)} per step"
    return percent(first.size, budget.mean)


def _time(first: Finding) -> str:
    """What takes the time of a finding that has words of its own; where nobody knows how much of it is
    transfer, both."""
    told = verdicts()[first.name].time
    return told.replace("waiting", "waiting or transfer") if first.accounts[:1] == (UNSPLIT,) else told


def _noun(first: Finding) -> str:
    """What a finding is about; empty where it has neither an account nor words of its own."""
    if first.rank is not None and first.accounts[1:2] == ("communication.wait",):
        return f"waiting for rank {first.rank}"
    if first.name in verdicts():
        return _time(first)
    account = first.accounts[0] if first.accounts else ""
    return (ACCOUNTS[account].noun or ACCOUNTS[account].label) if account in ACCOUNTS else ""


def _late(first: Finding, budget: Budget, length: str) -> str:
    """The verdict where one rank holds the job up; empty where the finding is of another kind."""
    if first.rank is None or "communication.wait" not in first.accounts[1:]:
        return ""
    if first.recipe == "idle_summary" or first.name in verdicts():  # it idles, and others may be as late
        return ""
    cause = first.accounts[0]
    what = ACCOUNTS[cause].makes_late if cause in ACCOUNTS else ""
    one = re.search(r"\bof (checkpoints|logging)\b(?! or)", first.claim)
    if one:
        what = "its checkpoints make" if one[1] == "checkpoints" else "its logging makes"
    if len(first.accounts) > 2:  # another account makes it late as well
        what = f"mostly {what or 'its own work makes'}"
    said = re.search(r" is ([\d.,]+ \S+) late (?:per step|once)", first.claim)
    longer = " makes a step " in first.claim  # which is not by how much it is late
    # It may be late in a part of the job, or in one step.
    if longer or (said and said[1] != milliseconds(first.size)):
        costs = re.sub(r"\bmake(s?)$", r"cost\1", what or "its own work makes")
        cost = f"{milliseconds(first.size)} of the {length} ({percent(first.size, budget.mean)})"
        return f"Waiting for rank {first.rank}: {costs} {cost}."
    return (
        f"Waiting for rank {first.rank}: {what or 'its own work makes'} it {milliseconds(first.size)} late "
        f"in the {length} ({percent(first.size, budget.mean)})."
    )


def _loss_noun(loss: Line) -> str:
    return "idle time" if loss.account == "idle" else loss.label


def _main(worst: Line, budget: Budget) -> str:
    """The account that is most of a loss; empty where none is."""
    main = max(budget.parts(worst.account), key=lambda part: part.ns, default=worst)
    return main.account if 2 * main.ns >= worst.ns else ""


def _loss(worst: Line, on_host: bool, length: str, budget: Budget, is_doubtful: bool) -> str:
    if worst.account == "idle":
        # What was not recorded may be work.
        is_or_seems = "seems" if is_doubtful or _main(worst, budget) == UNRECORDED else "is"
        nothing = "nothing computes" if on_host else f"the GPU {is_or_seems} idle"
        return f"{nothing} for {worst.share} of the {length}"
    what = "copies that nothing hides" if worst.account == "copy" else worst.label
    return f"{worst.share} of the {length} is {what}"
