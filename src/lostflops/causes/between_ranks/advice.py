"""What to do on ranks that are late, each by an account, whatever else they are late by."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from lostflops.causes.given import OTHER_HOST, Given, has_stages
from lostflops.causes.lateness import names_beyond, spoken_parts
from lostflops.causes.longer_compute import ADVICE as EXPERTS_EVEN
from lostflops.causes.longer_compute import (
    IF_EXPERTS,
    device_is_slow,
    has_experts,
    later_part,
    launches_as_many,
    no_more_to_do,
    of_experts,
    outside_alone,
)
from lostflops.causes.names import LOGGED, on_ranks, saved_or_logged
from lostflops.causes.one_rank.advised import advised, cheaper_there
from lostflops.causes.one_rank.held_up import away, held_up
from lostflops.causes.one_rank.late import Excess
from lostflops.causes.page_findings import PageFindings
from lostflops.finding import milliseconds

SAVING, LAUNCHING = "idle.checkpoint_logging", "idle.launch_bound"
OF_STAGES = "uneven-stages"  # what remedies know it by that a stage of a pipeline has more layers
SLOW_HOST = (
    "Find out why its CPU is slower, for it launches no more than the others: other processes on its cores "
    "(`top`), a core per process (`torchrun --numa-binding=node`), the clock (`cpupower frequency-info`)."
)
SLOW_HOSTS = (
    "Find out why their CPUs are slower, for they launch no more than the others: other processes on "
    "their cores (`top`), a core per process (`torchrun --numa-binding=node`), the clock (`cpupower "
    "frequency-info`)."
)
OUTSIDE_ALONE = (
    "Share what it alone runs outside of passes that train, such as an evaluation ({} per step), among all "
    "ranks, do it less often, or in a job of its own."
)
ZIGZAG = (
    "Give each rank a part from the beginning of a sequence and one from its end (zigzag ring attention, as "
    "PyTorch's `context_parallel`, Megatron-LM and Transformer Engine do by themselves), or strips of it."
)
AS_MANY = (
    "Give the ranks like amounts of work: as many micro-batches and sequences on each. Where they have parts "
    "of their own, such as actors and learners, give the slower part more GPUs."
)


@dataclass(frozen=True)
class Advice:
    """What to do on a rank that is late by an account, and the remedies by name; `evened` where that is for
    all ranks, as they share their work."""

    text: str
    remedies: tuple[str, ...]
    evened: bool = False

    def on(self, rank: str) -> str:
        """The advice for 'rank 3', or for all."""
        return self.text if self.evened else on_ranks(rank, self.text)


def for_one(page: PageFindings, rank: int, account: str, excess: Excess | None = None) -> Advice:
    """What to do on one rank that is late by an account, whatever else it is late by.

    `excess` is what is known of that rank, where it has been looked at as a whole.
    """
    given = page.given
    more = beyond_others(rank, account, given)
    if account == "compute" and (outside := outside_alone(rank, given)):
        return Advice(OUTSIDE_ALONE.format(milliseconds(outside)), ())
    slow = account == "compute" and (
        device_is_slow(rank, given) or (given.on_host and no_more_to_do(given, more))
    )
    names = names_beyond(given, rank, account, refills=bool(excess and excess.waits))
    parts = spoken_parts(names)
    logged = account == SAVING and saved_or_logged(names) == LOGGED
    thread = excess.thread if excess else held_up(given, [rank])
    if account == OTHER_HOST and thread:
        return Advice(away(thread.name), ())
    if account == OTHER_HOST and not given.own_remedy(account) and parts:
        most = excess.by_account[account] if excess else more
        if 2 * parts[0][1] >= most:
            return Advice(cheaper_there(parts[0][0]), advised(page, account, slow, logged)[1])
    if account == LAUNCHING and launches_as_many(rank, given):
        return Advice(SLOW_HOST, ())
    evened = account == "compute" and not slow and not given.on_host
    if evened and not has_stages(given) and (told := evener(page, rank)):
        return told
    text, named = advised(page, account, slow, logged)
    if evened and has_stages(given) and not launches_as_many(rank, given):
        # Longer sequences make kernels longer; more of them are those of more layers.
        return Advice(given.advice(OF_STAGES, text), given.named(OF_STAGES))
    if account == "compute" and given.on_host and not slow and has_experts(given):
        text = f"{text} {IF_EXPERTS}"
    return Advice(text, named, evened)


def evener(page: PageFindings, rank: int) -> Advice | None:
    """What evens out the work of ranks of which this one has more to do, where sequence lengths would not."""
    given = page.given
    if later_part(rank, given):
        return Advice(ZIGZAG, (), evened=True)
    if of_experts(rank, given):
        return Advice(EXPERTS_EVEN, (), evened=True)
    if not given.work.is_empty() and not launches_as_many(rank, given):
        return Advice(AS_MANY, (), evened=True)
    if has_experts(given):
        text, named = advised(page, "compute", False, False)
        return Advice(f"{text} {IF_EXPERTS}", named, evened=True)
    return None


def beyond_others(rank: int, account: str, given: Given) -> int:
    """What a mean step of the rank holds of an account beyond the median of the others, ns."""
    spent = given.by_rank(account)
    others = [spent.get(at, 0) for at in given.meet(rank) if at != rank]
    return spent.get(rank, 0) - int(median(others)) if others else 0
