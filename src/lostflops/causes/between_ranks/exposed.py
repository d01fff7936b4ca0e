"""What communication costs that no computation hides, apart from waiting that has a cause of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

import polars as pl

from lostflops.accounts import ACCOUNTS
from lostflops.causes.declared import NO_EDIT
from lostflops.causes.given import Given, exposed_for, exposed_operations
from lostflops.causes.names import BUBBLE, bytes_of, called, listed, made_of
from lostflops.causes.page_findings import PageFindings, joining
from lostflops.causes.purposes import (
    AVERAGED,
    CONTEXT,
    EXPERTS,
    GRADIENTS,
    LARGE,
    OTHER,
    SHARDS,
    SIZED,
    STAGES,
    TENSOR,
    VALUES,
    main_purpose,
)
from lostflops.causes.stages import of_slow_stage, slowest_stage
from lostflops.finding import Finding, milliseconds
from lostflops.intervals.matching import CONTRADICT, IN_ONE_LAUNCH, NO_GROUP
from lostflops.recipes.transfers import SLOWER
from lostflops.replay.edits.between_ranks.overlap import NONE_EARLIER

EXPOSED = "communication-exposed"
NOT_HERE = (
    "ranks that are not here, or not whole, may be late. Record all before making communication faster."
)
SEND_LESS = "Send less: over more micro-batches of each step, or among the GPUs of a node (hybrid sharding)."
# What all-reduces ask for of which nothing tells whether they are of gradients or of layers.
OF_EITHER = (
    "If they are of gradients, send them less often: over more micro-batches of each step. If they are of "
    "layers (tensor parallelism), keep the ranks that share a layer in one node."
)
AVERAGE_LESS = (
    "If these average weights, as local SGD does, do it after more steps (the `period` of PyTorch's "
    "`PeriodicModelAverager`), which changes what is learned; and all weights in one operation, not one each."
)
SMALL = "collectives-small"
NETWORK = (SMALL, "communication-slower-than-measured")
# The next operation needs what each of them brings, so no two can be sent as one; or no bucket holds them.
NEVER_JOINED = (TENSOR, CONTEXT, EXPERTS, STAGES, VALUES, AVERAGED)
MOSTLY_ONE, LED = 0.8, 0.05  # of what ranks wait, hidden or not, that is one's; of the step: its lead
WAITING_TOLD = 0.01  # of exposed communication: waiting that is worth a word
GATHERED_FROM = 0.2  # of the exposed communication of shards, from which on gathering them earlier helps
GAINS_NOTHING = 0.1  # of what is exposed, that a replay with overlap gains at most where links are busy
TIMES = "gradients-exchanged-per-microbatch"
FEWEST = 3  # operations of a step of which one can say that each stops the backward pass
STOPPED_FROM = 0.5  # of the exposed time, that is computed between them
GO_ON = (
    "Let the backward pass go on while gradients travel: a communication hook starts its operation with "
    "`async_op=True` and returns its future, and nothing in the backward pass waits for the network or the "
    "device."
)
IN_PIECES = (
    "Send gradients in several pieces, so that the first travel while the backward pass goes on: a smaller "
    "`bucket_cap_mb` of DDP, `reduce_bucket_size` of DeepSpeed."
)
WHOLE = 100  # GB/s, from which on a rate has no digits behind the point
AT_ONCE = 0.9  # of the bytes of gradients, that one operation of a step has
COMPARED_FROM = 0.1  # of a step, from which on exposed transfer is worth asking whether a link is slow
SLOW_LINK = "slow-link"
# Why the two ends of a message are not known as such although both were recorded, in words.
UNTOLD = {
    "its peer is unknown": "the recording does not say which rank a message goes to",
    IN_ONE_LAUNCH: "messages are sent and received in one launch, which shows one time for all",
    CONTRADICT: "the ranks' times contradict each other, so that sends and receives cannot be matched",
}
ENDS_LACK = "the other ends were not recorded"
UNCLEAR = re.compile(r"^ranks recorded between .* belong together is unclear$")


def exposed_communication(
    page: PageFindings,
    base: Finding,
    moving: int,
    waited: int,
    delayed: tuple[int, int] | None = None,
    awaited: tuple[int, int] | None = None,
) -> None:
    """What communication itself costs, with what is known about the network as evidence.

    `delayed` is a rank and how much exposed transfer begins late for it, ns, `awaited` a rank and how much of
    what may be waiting or transfer is waiting for it: that rank's finding has both.
    """
    given = page.given
    network = page.take(*NETWORK)
    small = [f for f in network if f.name == SMALL]
    joinable = main_purpose(given.purposes) not in NEVER_JOINED
    if small and joinable and 2 * sum(f.size for f in small) >= moving + waited:
        # Their number is what costs: the exposure is theirs.
        told = replace(
            joining(small[0], [base, *network[1:]]),
            cost_per_step=moving + waited,
            accounts=("communication.transfer", "communication.exposed"),
        )
        page.put(made_of(told, exposed_operations(given)))
        return
    worth = waited >= WAITING_TOLD * (moving + waited)
    absent = _awaited_without_steps(given) if worth else None
    whom = "" if absent is None else f" for rank {absent}, of which no step was recorded whole"
    waiting = f", {milliseconds(waited)} of it waiting{whom}" if worth else ""
    elsewhere = given.accounts.get("communication.wait", 0) - waited >= WAITING_TOLD * (moving + waited)
    unknown = min(moving, given.accounts.get("communication.exposed", 0))
    untold = f"{milliseconds(unknown)} of it may be waiting for other ranks" if unknown else ""
    several = len(given.steps) > 1
    if several and main_purpose(given.purposes) == STAGES and 2 * unknown >= moving:
        _between_stages(page, base, moving + waited, unknown)
        return
    longer = min(unknown, given.beyond_fastest // max(1, given.num_steps))
    if 2 * (longer + (waited if absent is not None else 0)) >= moving + waited and longer:
        late = f"{milliseconds(longer)} of it is longer than the same takes at its fastest: {NOT_HERE}"
        base = replace(base, doubt=" ".join(filter(None, (base.doubt, late))))
    if passing := _past_slow_links(page, moving + waited):
        base = replace(base, doubt=" ".join(filter(None, (base.doubt, passing))))
    base, why = _with_its_cause(page, base, moving + waited)
    untold_use = tuple(_of_unknown_use(given))
    if untold_use:
        base = replace(base, next=OF_EITHER, remedies=())
    elif main_purpose(given.purposes) == AVERAGED:
        base = replace(base, next=AVERAGE_LESS, remedies=(), edit=NO_EDIT)
    beside = [*_side_by_side(page, base, moving + waited, delayed, awaited)]
    fast = [*_how_fast(page, moving - unknown)]
    told = made_of(
        replace(
            base,
            claim=f"{base.claim} costs {page.share(moving + waited)}{waiting}.",
            cost_per_step=moving + waited,
            ns_per_step=min(base.ns_per_step, _transfer(page, base) + waited),
            evidence=(
                *why,
                *_one_comes_last(page),
                # These count the waiting that has a finding of its own.
                *_and_beside(exposed_for(given), beside, fast),
                *untold_use,
                *_waited_in_them(awaited, moving + waited),
                *((untold,) if untold else ()),
                *beside,
                *fast,
                *(() if elsewhere else base.evidence),
                *(f.claim.rstrip(".") for f in network[:2]),
            ),
            next=base.next,
            accounts=("communication.transfer", "communication.exposed"),
        ),
        exposed_operations(given),
    )
    page.put(told)


def _with_its_cause(page: PageFindings, base: Finding, cost: int) -> tuple[Finding, tuple[str, ...]]:
    """The finding by the name of what there is so much of it for, where that is known, with what to do and
    what is said to cost; and the facts that tell it."""
    if main_purpose(page.given.purposes) == GRADIENTS and (times := page.take(TIMES)):
        one, claim = times[0], f"{times[0].claim} Of it, what no computation hides"
        named = page.given.named(TIMES)
        told = replace(base, name=TIMES, claim=claim, next=one.next, remedies=named, edit=NO_EDIT)
        return told, one.evidence
    told = replace(base, name=EXPOSED, claim="Communication that no computation hides")
    stopped, at_once = tuple(_stops(page, cost)), tuple(_in_one_bucket(page, cost))
    if stopped:
        told = replace(told, next=GO_ON, remedies=())
    elif at_once:
        told = replace(told, next=IN_PIECES)
    return told, (*stopped, *at_once)


def _of_unknown_use(given: Given) -> Iterator[str]:
    """That all-reduces may be those of layers, which the advice for gradients does not make fewer."""
    purposes = given.purposes
    most = max(given.operations, key=lambda name: given.operations[name], default="")
    if most.startswith(f"all-reduce{SIZED}") and 2 * purposes.get(OTHER, 0) > sum(purposes.values()):
        yield (
            "whether these are of gradients or of layers (tensor parallelism), which accumulating makes no "
            "fewer, only recorded operators tell"
        )


def gathers(given: Given, again: bool = False) -> bool:
    """Whether all-gathers are a part of what is exposed that is worth starting earlier; or those of shards
    that the forward pass had (`again`), which it can keep."""
    by_kind: dict[str, int] = {}
    for name, ns in given.operations.items():
        kind = name.partition(SIZED)[0]
        by_kind[kind] = by_kind.get(kind, 0) + ns
    known = given.gathered_again if again else None
    exposed = by_kind.get("all-gather", 0) if known is None else known
    return exposed >= GATHERED_FROM * sum(by_kind.values())


def with_busy_links(finding: Finding, given: Given) -> Finding:
    """What to do about shards whose gathers a replay does not hide: to begin earlier gains nothing there."""
    gain = finding.predicted
    if (
        finding.name != EXPOSED
        or main_purpose(given.purposes) != SHARDS
        or gain is None
        or gain.ns >= GAINS_NOTHING * finding.size
        or not gathers(given)
    ):
        return finding
    if gain.refused:
        # The first gather and the last reduction of a step have nothing beside them.
        return _sends_less(finding, given) if gain.refused == NONE_EARLIER else finding
    fact = "begun earlier, most of it stays exposed, as a replay of that shows"
    told = replace(finding, evidence=(fact, *finding.evidence))
    if not gathers(given, again=True):
        return _sends_less(told, given)
    case = f"{EXPOSED}-gathered"
    return replace(told, next=given.advice(case, finding.next), remedies=given.named(case))


def _sends_less(finding: Finding, given: Given) -> Finding:
    """The finding where neither beginning earlier nor keeping what was gathered helps."""
    case = f"{EXPOSED}-reduced"
    return replace(finding, next=given.advice(case, SEND_LESS), remedies=given.named(case))


def _waited_in_them(awaited: tuple[int, int] | None, cost: int) -> Iterator[str]:
    """How much of the operations that are named is waiting for a rank that is told by itself."""
    rank, ns = awaited or (0, 0)
    if ns >= WAITING_TOLD * cost:
        yield f"{milliseconds(ns)} of these is waiting for rank {rank}, and counts there"


def _side_by_side(
    page: PageFindings,
    base: Finding,
    cost: int,
    delayed: tuple[int, int] | None,
    awaited: tuple[int, int] | None,
) -> Iterator[str]:
    """By how much the operations that are named add up to more than the whole: what is told of a late rank,
    and what runs at the same time."""
    rank, late = delayed or (0, 0)
    if late >= WAITING_TOLD * cost:
        yield f"{milliseconds(late)} of these begins late for rank {rank}, and counts there"
    late += awaited[1] if awaited else 0
    named = made_of(replace(base, cost_per_step=cost), exposed_operations(page.given)).contributed or 0
    if named - cost - late >= WAITING_TOLD * cost:
        yield f"these add up to {milliseconds(named - cost - late)} more, as some run at the same time"


def _and_beside(what_for: Iterable[str], beside: list[str], fast: list[str]) -> Iterator[str]:
    """What the operations are for, with the first fact of `beside` in one, where another is to be seen after
    both: a page shows few."""
    for fact in what_for:
        yield f"{fact}; {beside.pop(0)}" if beside and fast else fact


def _how_fast(page: PageFindings, moving: int) -> Iterator[str]:
    """The bandwidth that was reached, and, in one fact, that no other ranks' can be compared with it."""
    reached, alone = [*_reached(page.given)], [*_nothing_to_compare(page, moving)]
    if reached and alone:
        yield f"{reached[0]}: {alone[0]}"
    else:
        yield from (*reached, *alone)


def _reached(given: Given) -> Iterator[str]:
    """The bandwidth of the kind of operation that is exposed for longest, at the size of most of its time."""
    table = given.table("communication_summary")
    kinds = [
        name.partition(SIZED)[0] for name in sorted(given.operations, key=lambda n: -given.operations[n])
    ]
    if table is None or not kinds:
        return
    known = table.filter(pl.col("kind").cast(pl.String) == kinds[0], pl.col("bytes") >= LARGE)
    most = known.drop_nulls(["bus_bandwidth", "group_size"]).sort("time", descending=True).head(1)
    for ranks, rate in most.select("group_size", "bus_bandwidth").iter_rows():
        shown = f"{rate:,.0f}" if rate >= WHOLE else f"{rate:.3g}"
        yield f"{kinds[0]}s among {ranks} ranks reach {shown} GB/s of bus bandwidth"


def _nothing_to_compare(page: PageFindings, moving: int) -> Iterator[str]:
    """That one link may hold all back, where all ranks take part in each operation of most of the time."""
    given, links = page.given, page.given.table("communication_slow_links")
    table, ranks = given.table("communication_summary"), len(given.steps)
    by_kind: dict[str, int] = {}
    for name, ns in given.operations.items():
        kind = name.partition(SIZED)[0]
        by_kind[kind] = by_kind.get(kind, 0) + ns
    if table is None or not by_kind or given.missing_ranks or not page.reaches(moving, COMPARED_FROM):
        return
    most = max(by_kind, key=lambda kind: (by_kind[kind], kind))
    sizes = table.filter(pl.col("kind").cast(pl.String) == most)["group_size"]
    compared = links is not None and not links.filter(pl.col("kind").cast(pl.String) == most).is_empty()
    if ranks > 1 and not compared and len(sizes) and sizes.null_count() == 0 and (sizes == ranks).all():
        who = "both" if ranks == 2 else f"all {ranks}"
        yield (
            f"{who} ranks take part in each {most}, so only `lostflops bench collectives` tells whether a "
            "link is slow"
        )


def _in_one_bucket(page: PageFindings, cost: int) -> Iterator[str]:
    """That all gradients wait for the last of them, where one operation sends them and nothing hides it."""
    given, table = page.given, page.given.table("communication_summary")
    if table is None or main_purpose(given.purposes) != GRADIENTS:
        return
    reduced = table.filter(pl.col("kind").cast(pl.String) == "all-reduce").drop_nulls("bytes")
    moved = pl.col("bytes") * pl.col("calls_per_step")
    most = reduced.filter(moved >= AT_ONCE * moved.sum()).filter(pl.col("calls_per_step") == 1)
    if most.height != 1 or 2 * (most["per_step"][0] or 0) < cost:
        return
    split = given.table("communication_exposed")
    if split is None:
        return
    exposed, whole = split.select(pl.col("in_steps", "total_in_steps").sum()).row(0)
    if exposed >= MOSTLY_ONE * whole:
        every = "all" if reduced["bytes"].sum() == most["bytes"].sum() else "nearly all"
        yield (
            f"one all-reduce of {bytes_of(most['bytes'][0])} per step has {every} gradients, and begins when "
            "the last of them is there: smaller buckets would begin during the backward pass"
        )


def _stops(page: PageFindings, cost: int) -> Iterator[str]:
    """That computing and sending gradients take turns, where hardly any of it is hidden."""
    given = page.given
    steps = max(1, given.num_steps)
    times, computed = (given.stops.get(what, 0) / steps for what in ("times", "computed"))
    if main_purpose(given.purposes) == GRADIENTS and times >= FEWEST and computed >= STOPPED_FROM * cost:
        yield (
            f"{times:.0f} times per step the backward pass stops for all-reduces and goes on after them: "
            "hardly any of them run beside computation"
        )


def _past_slow_links(page: PageFindings, cost: int) -> str:
    """That operations with nothing to be compared with pass the ranks of slow links, too; empty elsewhere."""
    given, links = page.given, page.given.table("communication_slow_links")
    summary = given.table("communication_summary")
    if page.of(SLOW_LINK) is None or links is None or summary is None:
        return ""
    slow = links.filter(pl.col("ratio") >= SLOWER)
    on = {int(rank) for among in slow["among"] for rank in among.split(", ")}
    compared = set(links["kind"].cast(pl.String))
    groups = summary.select(pl.col("kind", "group").cast(pl.String)).drop_nulls()
    past = {
        kind
        for kind in set(groups["kind"]) - compared
        if all(on & set(map(int, re.findall(r"\d+", group.rpartition("[")[2])))
               for group in groups.filter(kind=kind)["group"])
    }  # fmt: skip
    ns = sum(ns for name, ns in given.operations.items() if name.partition(SIZED)[0] in past)
    if 2 * ns < cost * max(1, given.num_steps):
        return ""
    named = listed(sorted(f"{kind}s" for kind in past))
    return (
        f"Most of it, {named}, passes {called(sorted(on))} too, and no other ranks do the same to compare it "
        "with: the slow links may be why it takes so long."
    )


def _awaited_without_steps(given: Given) -> int | None:
    """The rank that others wait for nearly always and that has no step that counts, so that nothing tells
    what makes it late; None where there is none."""
    table = given.table("communication_imbalance")
    if table is None or table.is_empty():
        return None
    rank, share = table.select("rank", "blame_share").row(0)
    return rank if rank is not None and rank not in given.steps and (share or 0) >= MOSTLY_ONE else None


def _one_comes_last(page: PageFindings) -> Iterator[str]:
    """The rank that comes to collectives long after the others, which compute meanwhile: nobody waits for it
    in the open, but it has no compute left to hide them with."""
    table, given = page.given.table("communication_imbalance"), page.given
    if table is None or len(given.steps) < 3:
        return
    # Of a rank without a step that counts, nobody knows what a mean one holds.
    first = table.drop_nulls("rank").head(1).filter(pl.col("rank").is_in([*given.steps]))
    for row in first.iter_rows(named=True):
        # Operations that are under way at a time are led by the same lateness, each of them.
        led = (row["lead"] or 0) // max(1, row["last"])
        waited = (row["per_step"] or 0) * len(given.steps)
        # Last in half of them or less, it may have been in steps that the page leaves out alone.
        often = 2 * row["last"] > row["collectives"] and (row["blame_share"] or 0) >= MOSTLY_ONE
        if often and page.reaches(led, LED) and 2 * waited < led:
            yield (
                f"rank {row['rank']} comes {milliseconds(led)} after the others, which compute "
                f"meanwhile: last in {row['last']:,} of {row['collectives']:,} collectives"
            )


def _between_stages(page: PageFindings, base: Finding, cost: int, unknown: int) -> None:
    """Sends and receives that wait or transfer; which of both is not known, as ranks or peers are missing."""
    given, waiting = page.given, page.take(BUBBLE)
    waits = sum(f.size for f in waiting)
    why = _untold(given)
    told = made_of(
        replace(
            base,
            name=BUBBLE,
            claim=f"Pipeline stages wait or transfer {page.share(cost + waits)} with nothing computed.",
            cost_per_step=cost + waits,
            ns_per_step=max(base.ns_per_step, cost + waits),
            evidence=(
                f"{milliseconds(unknown)} of it may be either: {why or ENDS_LACK}",
                *exposed_for(given),
            ),
            next=ACCOUNTS["idle.pipeline_bubble"].remedy,
            accounts=("communication.exposed", "communication.wait", "communication.transfer"),
        ),
        exposed_operations(given),
    )
    # Where all was recorded, what the stages compute is known, whoever sends to whom.
    slow = slowest_stage(given) if why and not given.missing_ranks else None
    page.put(told if slow is None else of_slow_stage(told, slow, given))


def _untold(given: Given) -> str:
    """Why messages could not be matched although both ends were recorded, in words; empty where they were
    not. The recipe `communication_wait` has the reasons."""
    table = given.table("communication_wait")
    reasons = [] if table is None else table["unmatched_reason"].drop_nulls().mode().sort().to_list()
    if reasons and UNCLEAR.search(reasons[0]):
        return "some messages lack one end, and which of the others belong together is unclear"
    if reasons and reasons[0].startswith(NO_GROUP):
        return "the recording does not say which ranks communicate with each other"
    return UNTOLD.get(reasons[0], "") if reasons else ""


def _transfer(page: PageFindings, base: Finding) -> int:
    """The most that communication can cost a step without the waiting that has a finding of its own, ns.

    Ranks that keep in step all gain what the one gains that the others wait for; which that is may change.
    """
    total, waits = (
        page.given.table("communication_exposed"),
        page.given.table("communication_wait"),
    )
    if total is None or waits is None:
        return base.ns_per_step
    waited = {rank: ns or 0 for rank, ns in waits.select("rank", "in_steps").iter_rows()}
    each = (
        (ns - waited.get(rank, 0)) // max(1, page.given.steps.get(rank, 1))
        for rank, ns in total.select("rank", "total_in_steps").iter_rows()
    )
    return max(each, default=base.ns_per_step)
