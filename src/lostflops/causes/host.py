"""Findings about idle time: what is about the same gaps becomes one."""

from __future__ import annotations

import re
from dataclasses import replace

import polars as pl

from lostflops.finding import Finding, milliseconds, percent
from lostflops.naming.standing_still import stands_still
from lostflops.recipes.accounting import UNEXPLAINED as NOTHING_KNOWN
from lostflops.recipes.idle.read_values import WAITS

from .declared import BESIDE, COMPUTED_ON_CPU, EVALUATES, MADE_ON_CPU, ONE_BY_ONE, PROFILER, SLOWED
from .given import BETWEEN, HOST_WAITS, OTHER_HOST, Given
from .idle.evaluation import evaluates_often
from .idle.first_runs import runs_first
from .idle.freed_memory import gives_memory_back
from .idle.graphs import OF_IDLE, launched_late, pauses_inside_graphs
from .idle.made_tensors import computes_on_cpu, makes_tensors
from .idle.micro_batches import launched_for_each_micro_batch
from .idle.named import (
    BETWEEN_FROM,
    BY_NAME,
    RUNS,
    SYNCHRONISING,
    between_operators,
    launched_in_pieces,
    named,
    names_of,
    own_code,
    with_operators,
)
from .idle.optimizer import updated_one_by_one
from .idle.profiler import profiler_works
from .idle.threads import two_threads_launch
from .idle.worker_starts import starts_workers
from .names import made_of, spoken, untold_after_wait
from .one_rank.held_up import PAUSES, away, held_up, ranks_held_up
from .page_findings import PER_STEP, PageFindings

UNEXPLAINED = "idle-unexplained"
# Accounts in which a thread that is blocked has its reason.
WAITING = ("idle.data_loading", "idle.host_synchronisation", "communication.")
BLOCKED_BY = "a lock (Python's own, which another thread may hold), a file, another process, or a sleep"
FIND_OUT = "Find out what the training thread waits for"
MAY_BE_BLOCKED = "{}: it may wait here instead of running, or in operators for their own threads."
# Findings that say by themselves what they are made of.
TOLD = (ONE_BY_ONE.name, EVALUATES.name, MADE_ON_CPU.name, COMPUTED_ON_CPU.name, PROFILER.name)
UNTOLD_FROM = 0.5  # of what waiting costs, from which on it is said that no row tells what was done
TO_BE_READ_FROM = 0.01  # of the step, from which on kernels that compute what is read are told
SYNCS = 4  # waits per step, from which on they come from inside it
# Of a step, in which another thread saves: such steps are compared with those in which hardly any does. How
# many times as long the CPU pauses there, and what of the step that costs, from which on it is the saving's.
SAVES_BESIDE, HARDLY, TIMES, SLOWED_FROM = 0.5, 0.1, 2, 0.03
SEVERAL_PASSES = (
    "Read the values of several passes at once: where it generates, keep the tokens on the GPU and look for "
    "their end every few of them; where it is evaluated, add up on the GPU."
)
IN_ONE_LAUNCH = (
    'A static key-value cache and CUDA graphs (`torch.compile(mode="reduce-overhead")`) leave one launch '
    "between two reads."
)
GRAPHS = "cuda-graphs"  # the remedy
COLLECTS_FROM = 0.05  # of step time
MAY_EXPLAIN = 0.5  # of pauses that nothing explains, from which on waiting for a core is told of them
RECORD_STACKS = re.compile(r"Record call stacks: .*|To see which Python .*")


def join_host(page: PageFindings) -> None:
    """Name what idle time is made of, and join what is about the same gaps."""
    profiler_works(page)
    evaluates_often(page)
    makes_tensors(page)
    computes_on_cpu(page)
    if not _waits_again_and_again(page.given):
        updated_one_by_one(page)
    for finding in [f for f in page.all() if f.recipe == "idle_summary" and f.name not in TOLD]:
        page.replace(finding, named(page, finding))
    starts_workers(page)
    runs_first(page)
    gives_memory_back(page)
    between_operators(page)
    with_operators(page)
    launched_in_pieces(page)
    _one_gap(page)
    _out_of_memory(page)
    _outside_window(page)
    _synchronised_often(page)
    _reads_after_passes(page)
    _computed_to_be_read(page)
    _detects_anomalies(page)
    _after_waits(page)
    pauses_inside_graphs(page)
    launched_late(page)
    two_threads_launch(page)
    launched_for_each_micro_batch(page)
    _slowed_by_saving(page)
    _beside_python(page)
    _blocked(page)
    _without_core(page)
    _collects_young_objects(page)


def _one_gap(page: PageFindings) -> None:
    """A pause that is most of the idle time is no cause of its own where its cause has a finding."""
    gaps = page.given.table("gpu_gaps")
    pause = page.of("one-gap-is-most")
    if gaps is None or pause is None:
        return
    cause = page.about(gaps.filter("counted")["cause"][0])
    if cause is not None:
        page.absorb(cause, [pause])


def _out_of_memory(page: PageFindings) -> None:
    """Allocations that fail and are tried again are why the allocator stalls."""
    stalls, failing = page.of("allocator-stalls"), page.of("api-calls-fail")
    if stalls and failing and any("alloc" in fact.lower() for fact in failing.evidence):
        page.absorb(stalls, [failing])


def _outside_window(page: PageFindings) -> None:
    """A loader that starves the recorded steps does so in the others as well."""
    inside, outside = (
        page.of("data-loading-starves-device"),
        page.of("data-wait-outside-window"),
    )
    if inside and outside:
        page.absorb(inside, [outside])


def waits_per_step(given: Given) -> float:
    """How often the host of a mean rank waits for its device in a mean step, by calls that say so."""
    return _waits_in_steps(given)[0] / max(1, given.num_steps)


def _waits_in_steps(given: Given) -> tuple[int, int]:
    """How many calls in the steps that count wait for the device, and how long they take in a mean step, ns;
    both over all ranks."""
    calls = given.table("api_call_summary")
    if calls is None:
        return 0, 0
    waiting = calls.filter(pl.col("name").cast(pl.String).str.contains(WAITS))
    return waiting.select(pl.col("calls_in_steps").sum(), pl.col("per_step").sum()).row(0)


def _between(given: Given) -> int:
    """What a host that runs ahead would hide of a mean step, ns; pauses of which nothing is known are not."""
    known = sum(given.accounts.get(account, 0) for account in BETWEEN)
    return max(0, known - given.long_unexplained // max(1, given.num_steps))


def _in_long_pauses(given: Given) -> bool:
    """Whether most of what nothing explains comes in pauses too long for what lies between two waits."""
    return 2 * given.long_unexplained >= given.accounts.get(NOTHING_KNOWN, 0) * given.num_steps > 0


def _waits_again_and_again(given: Given) -> bool:
    """Whether the host waits for its device so often and for so long that all between would be hidden."""
    often, held = _waits_in_steps(given)
    return often >= SYNCS * given.num_steps and held >= _between(given) * len(given.steps)


def _synchronised_often(page: PageFindings) -> None:
    """A host that waits for the GPU again and again never runs ahead, so its Python and its launches show.

    It has time enough: as long as it waits in those calls, what it does between them would be hidden.
    """
    given = page.given
    waits = page.of(HOST_WAITS)
    often, between = _waits_in_steps(given)[0], _between(given)
    if waits is None or not _waits_again_and_again(given) or not between:
        return
    accounts = tuple(account for account in BETWEEN if account != NOTHING_KNOWN or not _in_long_pauses(given))
    members = page.about_any(accounts)
    cost = waits.size + between
    told = tuple(fact for fact in waits.evidence if not OF_IDLE.search(fact))
    joined = page.absorb(waits, [])
    for member in members:
        page.drop(member)
    parts = [part for account in (*joined.accounts, *accounts) for part in names_of(page, account)]
    page.replace(
        joined,
        made_of(
            replace(
                joined,
                cost_per_step=cost,
                ns_per_step=max([joined.ns_per_step, *(m.ns_per_step for m in members)]),
                claim=f"The GPU idles {page.share(cost)} because the CPU waits for it "
                f"{often // given.num_steps:,} times per step before it launches more work.",
                evidence=(
                    *told,
                    f"{milliseconds(between)} of it is launches and Python that a CPU that runs ahead hides",
                ),
                accounts=(*joined.accounts, *accounts),
            ),
            ((spoken(name), ns) for name, ns in parts),
        ),
    )


def _reads_after_passes(page: PageFindings) -> None:
    """Values of which each takes a pass of the model, as tokens do, cannot be read every hundredth step."""
    waits, many = page.of(HOST_WAITS), page.given.after_passes
    if waits is None or not many or 2 * many < _waits_in_steps(page.given)[0]:
        return
    each = f"{many // page.given.num_steps:,}" if many >= 2 * page.given.num_steps else "most"
    fact = f"{each} of these waits come after a pass of the model without gradients"
    told = (f"{fact}, as where it generates tokens", *waits.evidence)
    by_graphs = (IN_ONE_LAUNCH,) if page.given.left((GRAPHS,)) else ()  # where none are replayed yet
    told_next = " ".join((SEVERAL_PASSES, *by_graphs))
    page.replace(waits, replace(waits, evidence=told, next=told_next, remedies=()))


def _computed_to_be_read(page: PageFindings) -> None:
    """What computes the values that are read goes with the reading."""
    waits, more = page.of(HOST_WAITS), page.given.read_per_step
    if waits is None or not waits.ns_per_step or not page.reaches(more, TO_BE_READ_FROM):
        return
    fact = f"kernels between those waits take {milliseconds(more)} per step, which the bound counts as well"
    told = replace(waits, cost_per_step=waits.size, evidence=(*waits.evidence, fact))
    page.replace(waits, replace(told, ns_per_step=waits.ns_per_step + more))


def _detects_anomalies(page: PageFindings) -> None:
    """Anomaly detection reads a value from the GPU for each gradient: those are most of the waits."""
    on, waits = page.of("anomaly-detection-on"), page.of(HOST_WAITS)
    table = page.given.table("anomaly_detection")
    if on is None or waits is None or table is None or page.given.on_host:
        return
    if 2 * int(table["checks"].sum()) >= _waits_in_steps(page.given)[0]:
        told = replace(waits, next=on.next, remedies=())
        page.replace(waits, told)
        page.absorb(told, [on])


def _after_waits(page: PageFindings) -> None:
    """What a CPU does after it waited may be what takes long: its own code, or what no row tells."""
    waits = page.of(HOST_WAITS)
    if waits is None:
        return
    told, untold = waits, page.given.unnamed(SYNCHRONISING)
    if untold and untold >= UNTOLD_FROM * waits.size:
        told = replace(told, evidence=(untold_after_wait(untold), *told.evidence))
    names = [name for name in page.given.names["name"].unique() if name is not None]
    own = [
        (name, ns)
        for name, ns in names_of(page, SYNCHRONISING)
        # What launches as well does more than that, as a loop over steps does.
        if own_code(name) and not any(other.endswith(f" in {name}") for other in names)
    ]
    if own and 2 * sum(ns for _, ns in own) >= waits.size:
        runs = f"{spoken(own[0][0])} runs after the wait: the GPU idles less if it takes less"
        told = replace(told, evidence=(runs, *told.evidence))
    if told is not waits:
        page.replace(waits, told)


def _slowed_by_saving(page: PageFindings) -> None:
    """A thread that saves a checkpoint holds Python's lock: the other launches slowly in just those steps."""
    given = page.given
    if given.saving.is_empty():
        return
    accounts = (*BETWEEN, OTHER_HOST)
    pauses = pl.col("ns").filter(pl.col("account").is_in(accounts)).sum()
    each = (
        given.ledger.group_by("rank", "step")
        .agg(pauses=pauses, all=pl.col("ns").sum())
        .join(given.saving.select("rank", "step", saving="ns"), on=["rank", "step"], how="left")
        .with_columns(share=pl.col("saving").fill_null(0) / pl.col("all"))
    )
    beside, others = each.filter(pl.col("share") >= SAVES_BESIDE), each.filter(pl.col("share") <= HARDLY)
    if beside.is_empty() or others.is_empty():
        return
    slow, usual = (int(rows["pauses"].sum()) // rows.height for rows in (beside, others))
    cost = (slow - usual) * beside.height // given.num_steps
    members = page.about_any(accounts)
    if slow <= TIMES * usual or not members or not page.reaches(cost, SLOWED_FROM):
        return
    left = sum(member.size for member in members) - cost
    for member in members:
        page.drop(member)
    largest = max(members, key=lambda member: member.size)
    if page.reaches(left, SLOWED_FROM):
        claim = PER_STEP.sub(page.share(left), largest.claim, count=1)
        page.put(replace(largest, claim=claim, cost_per_step=left))
    compared = f"{milliseconds(slow)} in a step beside it, {milliseconds(usual)} in the others"
    page.put(
        Finding(
            name=SLOWED.name,
            claim=f"{'Nothing computes for' if given.on_host else 'The GPU idles'} {page.share(cost)} as the "
            "CPU is slow while another thread saves a checkpoint.",
            # That thread slows a processor's operators, too.
            gain="unknown" if given.on_host else "at most",
            ns_per_step=0 if given.on_host else max(cost, *(member.ns_per_step for member in members)),
            cost_per_step=cost,
            evidence=(
                f"pauses between {'operators' if given.on_host else 'launches'} take {compared}",
                f"the other thread is in {spoken(given.saving['name'][0])}",
            ),
            next="Save in a process of its own, which has its own Python lock, or less often.",
            recipe="idle_summary",
            accounts=tuple(dict.fromkeys(account for member in members for account in member.accounts)),
        )
    )


def _beside_python(page: PageFindings) -> None:
    """Pauses under many names, in which another thread runs Python nearly all the time, are its doing."""
    given = page.given
    members = page.about_any(PAUSES)
    thread = held_up(given, ranks_held_up(given))
    if page.of(SLOWED.name) or not members or thread is None:
        return
    cost = sum(member.size for member in members)
    if not page.reaches(cost, BETWEEN_FROM if given.on_host else SLOWED_FROM):
        return
    for member in members:
        page.drop(member)
    runs = percent(thread.ran, thread.pauses)
    idle = sum(ns for account, ns in given.accounts.items() if account.startswith("idle."))
    most = max(idle, *(member.ns_per_step for member in members))  # others wait for a rank that is held up
    page.put(
        Finding(
            name=BESIDE.name,
            claim=f"{'Nothing computes for' if given.on_host else 'The GPU idles'} {page.share(cost)} while "
            f"another thread runs Python: {thread.name}.",
            # Waiting for Python's lock lengthens a processor's operators too; a GPU idles for all of it.
            gain="unknown" if given.on_host else "at most",
            ns_per_step=0 if given.on_host else most,
            cost_per_step=cost,
            evidence=(f"it runs in {runs} of that time, and Python lets one thread run at a time",),
            next=away(thread.name),
            recipe="idle_summary",
            accounts=tuple(dict.fromkeys(account for member in members for account in member.accounts)),
        )
    )


def _blocked(page: PageFindings) -> None:
    """A thread that neither runs nor is ready to run executes no Python, in whichever function it is."""
    given = page.given
    table = given.table("step_log_off_core")
    counted = None if table is None else table.filter("counted")
    if counted is None or counted.is_empty():
        return
    known = sum(ns for account, ns in given.accounts.items() if account.startswith(WAITING))
    known += sum(ns for name, ns in names_of(page, OTHER_HOST) if stands_still(name))
    total = int(counted["blocked"].sum()) // counted.height
    blocked = total - known
    waits = given.table("step_log_core_waits")
    crowded = 0 if waits is None else waits.filter("counted").select(pl.col("core_wait").mean()).item() or 0
    found = filter(None, (page.of(BY_NAME), page.of(UNEXPLAINED)))
    elsewhere = 0  # in a larger finding
    for finding in sorted(found, key=lambda f: -f.size):
        # A GPU may work while the thread is blocked: all the time that is not this finding's. On a CPU whose
        # cores are crowded, an operator waits for its own threads as well.
        hidden = elsewhere + (crowded if given.on_host else given.mean_step - finding.size)
        if 2 * (blocked - hidden) < finding.size:
            if given.on_host and 2 * blocked >= finding.size and not finding.doubt:
                # What blocks it may hold up operators as well.
                doubt = MAY_BE_BLOCKED.format(_is_blocked(total, blocked))
                page.replace(finding, replace(finding.without_bound(), doubt=doubt))
                elsewhere += finding.size
            continue
        stacks = f" {advice[0]}" if (advice := RECORD_STACKS.search(finding.next)) else ""
        page.replace(
            finding,
            replace(
                finding,
                claim=RUNS.sub(r"is in \1", finding.claim),
                evidence=(*finding.evidence, _is_blocked(total, blocked)),
                next=f"{FIND_OUT}: {BLOCKED_BY}.{stacks}",
            ),
        )
        blocked -= finding.size


def _is_blocked(total: int, here: int) -> str:
    """How long the thread is blocked; waits that other findings tell may be some of it."""
    beyond = f", {milliseconds(here)} of it beyond waits that are told" if here < total else ""
    return f"Linux counts {milliseconds(total)} per step in which the training thread is blocked{beyond}"


def _without_core(page: PageFindings) -> None:
    """A thread that has no core for a while may be in a pause then or in an operator: none tells which.

    Pauses of which nothing is known and that such waiting may well explain are no cause beside it.
    """
    waits, untold = page.of("waits-for-a-core"), page.of(UNEXPLAINED)
    if waits is None or not page.given.on_host:
        return
    is_blocked = untold is None or untold.doubt or untold.next.startswith(FIND_OUT)  # and not ready to run
    if untold is not None and not is_blocked and waits.size >= MAY_EXPLAIN * untold.size:
        much = milliseconds(min(waits.size, untold.size))
        page.drop(untold)
        fact = f"{untold.claim.rstrip('.')}: up to {much} of it may be this waiting"
        told = replace(
            waits,
            evidence=(*waits.evidence, fact),
            next=f"{waits.next} To see what the rest is: {untold.next[:1].lower()}{untold.next[1:]}",
        )
        page.replace(waits, told)
    for finding in filter(None, (page.of(BY_NAME), page.of(UNEXPLAINED))):
        much = milliseconds(min(waits.size, finding.size))
        fact = f"up to {much} of it may be waiting for a core, which another finding tells"
        page.replace(finding, replace(finding, evidence=(*finding.evidence, fact)))


def _collects_young_objects(page: PageFindings) -> None:
    """Passes over the youngest objects are too short to be marked one by one: the step log adds them up."""
    given = page.given
    table = given.table("step_log_summary")
    share = None if table is None else table["recorded_garbage_share"].mean()
    found = [f for f in (page.of(UNEXPLAINED), page.of(BY_NAME)) if f is not None]
    if not found or not isinstance(share, float) or not given.mean_step:
        return
    marked = given.accounts.get("idle.garbage_collection", 0) / given.mean_step
    finding = max(found, key=lambda f: f.size)
    if share < COLLECTS_FROM or share < 2 * marked:
        return
    fact = (
        f"Python collects garbage for {percent(share, 1)} of the recorded steps' time, most of it in passes "
        "over young objects, too short to be marked"
    )
    fewer = "Make fewer objects per step that refer to each other, or raise `gc.set_threshold`."
    page.replace(
        finding,
        replace(
            finding,
            evidence=(*finding.evidence, fact),
            next=f"{fewer} {finding.next}",
        ),
    )
