"""Findings about idle time: who is named, and what is about the same gaps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import polars as pl

from lostflops.finding import Finding, milliseconds, percent
from lostflops.naming.standing_still import FILES, stands_still
from lostflops.naming.standing_still import WAITS as WAITS_FOR_OTHERS
from lostflops.recipes.idle.gaps import over_steps
from lostflops.recipes.stretch_names import is_users

from .declared import BESIDE, SLOWED
from .declared import LOGGING as LOGGING_INSIDE
from .given import BETWEEN, OTHER_HOST, Given
from .names import (
    NAMED_FROM,
    SAVED,
    called,
    from_to,
    listed,
    made_of,
    on_ranks,
    saved_or_logged,
    spoken,
    without_place,
)
from .one_rank.held_up import PAUSES, away, held_up, ranks_held_up
from .page_findings import PageFindings

BY_NAME, UNEXPLAINED = "host-busy-elsewhere", "idle-unexplained"
# Accounts in which a thread that is blocked has its reason.
WAITING = ("idle.data_loading", "idle.host_synchronisation", "communication.")
BLOCKED_BY = "a lock (Python's own, which another thread may hold), a file, another process, or a sleep"
LOADING, SYNCHRONISING = "idle.data_loading", "idle.host_synchronisation"
WAITS = "(?i)synchronize"  # calls that wait for the device
SYNCS = 4  # waits per step, from which on they come from inside it
# What is true of the idle time of one account alone.
OF_IDLE = re.compile(r"of all step time, over|^upper limit:")
ALONE = 0.9  # of the time on all ranks
# Of the time, in one step of at least so many: it happens mostly there, or only there.
IN_ONE, ONCE, FEWEST_FOR_ONCE = 0.8, 0.98, 3
ALIKE = 1.05  # times the mean of the ranks, of which the longest pause on a rank still tells
NEARLY_ALL, MOSTLY = 0.9, 0.5  # of a finding's time, in which the CPU does what is said of it
PER_STEP = re.compile(r"([\d.,]+ (?:ns|µs|ms|s) per step) \(([\d.]+ %)\)")
# Of a CPU's step, from which on what the framework does between operators is worth a finding. Recording
# lengthens just these pauses.
BETWEEN_FROM = 0.15
# Of a step, in which another thread saves: such steps are compared with those in which hardly any does. How
# many times as long the CPU pauses there, and what of the step that costs, from which on it is the saving's.
SAVES_BESIDE, HARDLY, TIMES, SLOWED_FROM = 0.5, 0.1, 2, 0.03
SAVES_OR_LOGS, SAVES, LOGS = "saves a checkpoint or logs", "saves a checkpoint", "logs"
# Ranges that frameworks and scripts draw around whole phases: what to change lies inside.
PHASE = re.compile(
    r"(?i)(?:^|[^a-z])(?:forward|backward|fwd|bwd|optimi[sz]er|zero_grad|loss|(?:training_|train_|run_)?step"
    r"|(?:training_|train_)?(?:batch|iter|iteration)|micro_?batch|evaluate_function|autograd)(?:[^a-z]|$)"
)
# Ranks that have an idle time, of that of the rank with most; and at most, of those that do not have it.
HAVE_IT, HAVE_NONE = 0.5, 0.1
WAITS_TOLD = 0.05  # of what a finding costs: waiting for others that is told with it
# Of one finding: how its waiting came together, rank by rank.
SHARED_OUT = re.compile(r"more of it than the others|the most on rank|of it waiting for other ranks")
OPERATOR = re.compile(r"^aten::\w+(?: in |$)")  # that computes on the CPU, where it takes long
COLLECTS_FROM = 0.05  # of step time
RUNS = re.compile(r"\bruns (Python|other code)\b")
RECORD_STACKS = re.compile(r"Record call stacks: .*|To see which Python .*")
FRAME = re.compile(r"\.pyx?\(\d+\): ")
# Optimizers whose states lie in the host's memory: DeepSpeed's, ColossalAI's, torchao's.
ON_CPU = re.compile(r"(?i)cpu_?(?:offload_?)?(?:adam|adagrad|lion|optimizer)|\badam_update\b|\bHybridAdam\b")
SCRIPT = "<module>"  # what a script does outside of functions: all of it


def join_host(page: PageFindings) -> None:
    """Name what idle time is made of, and join what is about the same gaps."""
    for finding in [f for f in page.all() if f.recipe == "idle_summary"]:
        page.replace(finding, _named(page, finding))
    _between_operators(page)
    _one_gap(page)
    _out_of_memory(page)
    _outside_window(page)
    _synchronised_often(page)
    _detects_anomalies(page)
    _untold_after_waits(page)
    _slowed_by_saving(page)
    _beside_python(page)
    _blocked(page)
    _collects_young_objects(page)


def names_of(page: PageFindings, account: str) -> list[tuple[str, int]]:
    """What an account's idle time is called, with its time in a mean step of a mean rank, ns."""
    given = page.given
    by_name = (
        given.names.filter(pl.col("account") == account)
        .drop_nulls("name")
        .group_by("name")
        .agg(pl.col("ns").sum())
        .sort("ns", "name", descending=[True, False])
    )
    return [(name, ns // max(1, given.num_steps)) for name, ns in by_name.iter_rows()]


def _named(page: PageFindings, finding: Finding) -> Finding:
    parts = [part for account in finding.accounts for part in names_of(page, account)]
    named = made_of(replace(finding, rank=_alone(page, finding)), ((spoken(name), ns) for name, ns in parts))
    if SAVES_OR_LOGS in finding.claim and parts:
        return _saving_or_logging(named, parts)
    if finding.name != BY_NAME or not named.contributors:
        return named
    parts = _by_function(parts)
    named = made_of(replace(finding, rank=named.rank), ((spoken(name), ns) for name, ns in parts))
    largest = [(spoken(name), ns) for name, ns in parts[:2] if ns >= NAMED_FROM * finding.size]
    what = [f"{without_place(name)} ({milliseconds(ns)})" for name, ns in largest]
    told = sum(ns for _, ns in largest) / finding.size
    does = _does([name for name, _ in parts[: len(largest)]], told)
    claim = finding.claim.replace(" while the CPU runs other code", does)
    return replace(
        named,
        claim=f"{claim.rstrip('.')}: {listed(what)}.",
        next=_cheaper(
            parts[0][0],
            [name for name in page.given.names["name"] if name is not None],
            page.given.accounts.get(LOADING, 0) > 0,
        ),
    )


def _by_function(parts: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Names with their time, the largest first; those in one function of the user's as one, where none of
    them is most of it: a copy of a tree is spread over many functions of a library."""
    inside = dict[str, list[tuple[str, int]]]()
    for name, ns in parts:
        inside.setdefault(_users_function(name) or name, []).append((name, ns))
    told = list[tuple[str, int]]()
    for frame, some in inside.items():
        whole = sum(ns for _, ns in some)
        spread = len(some) > 1 and 2 * max(ns for _, ns in some) < whole
        told += [(frame, whole)] if spread else some
    return sorted(told, key=lambda part: (-part[1], part[0]))


def _users_function(name: str) -> str:
    """The user's function that a name is of or in; "" for none, and for what a script does outside of any."""
    frame = name.rpartition(" in ")[2]
    return frame if is_users(frame) and not frame.endswith(f": {SCRIPT}") else ""


def _does(names: Sequence[str], told: float) -> str:
    """What the CPU does in the rows that a finding names, which are a share of its time."""
    idle = list(dict.fromkeys(map(stands_still, names)))
    if len(idle) == 1 and idle[0] is not None:
        how_much = "" if told >= NEARLY_ALL else ", mostly" if told > MOSTLY else ", partly"
        return f"{how_much} while the CPU {idle[0]}"
    if names and all(ON_CPU.search(name) for name in names):
        return " while the optimizer runs on the CPU"
    if names and all(OPERATOR.match(name) for name in names):
        return " while the CPU runs operators on tensors of its own"
    run = [name for name in names if stands_still(name) is None]
    runs = f"runs {'Python' if any('.py(' in name for name in run) else 'other code'}"
    return f" while the CPU {', or '.join(runs if still is None else still for still in idle or [None])}"


def _cheaper(name: str, names: Sequence[str], loads: bool) -> str:
    """What to do about the CPU's work of a name, given all names of idle time, and whether the job
    loads data: one that serves requests has no workers that could do it.
    """
    still = stands_still(name)
    if still == WAITS_FOR_OTHERS:
        return (
            f"Find what {spoken(name)} waits for: if it is the next batch, let more workers fill the queue, "
            "and earlier; if it is a result, ask for it a step later; if it is a lock, hold it for less "
            "long; if it is the next request, there are too few for this GPU."
        )
    if still == FILES:
        ahead = "read ahead in the loader's workers" if loads else "read ahead on another thread"
        return (
            f"Take {spoken(name)} out of the step: {ahead}, write on a thread of its own and less often, or "
            "keep the files on a faster disk."
        )
    if still is not None:
        return f"Take {spoken(name)} out of the step."
    if ON_CPU.search(name):
        return (
            "Keep the optimizer's states on the GPU if they fit (in 8 bits, or sharded over more ranks). "
            "Else give it all cores of the node (`OMP_NUM_THREADS`), and let it run beside the backward pass."
        )
    if name.startswith("torch/optim/"):
        return (
            "That is the optimizer's own Python: use its fused kernels (`fused=True`) or `foreach=True` "
            "where it has them, few groups of parameters, or `torch.compile(optimizer.step)`."
        )
    if OPERATOR.match(name):
        return (
            f"Move the tensors of {spoken(name)} to the GPU, or take it out of the step: onto a thread of "
            "its own, or done once for all steps."
        )
    if _is_work(name):
        workers = "into the loader's workers, " if loads else ""
        return (
            f"Make {spoken(name)} cheaper, or take it out of the step: {workers}onto a thread of its own, or "
            "done once for all steps."
        )
    if any(map(FRAME.search, names)):
        return f"Do the same in fewer operators inside {spoken(name)}: `torch.compile`, or a larger batch."
    return (
        f"{spoken(name)} is a whole phase. To see which Python runs in it, record call stacks: "
        "`lostflops record --what cuda,shapes,python -- COMMAND`."
    )


def _is_work(name: str) -> bool:
    """Whether a name is of one thing that is done, and not of a phase that holds all that a step does."""
    return FRAME.search(name) is not None or PHASE.search(name) is None


def _saving_or_logging(finding: Finding, parts: list[tuple[str, int]]) -> Finding:
    """The finding about checkpoints and logs as the one that it is about, by most of what is named in it."""
    if saved_or_logged(parts) == SAVED:
        return replace(finding, claim=finding.claim.replace(SAVES_OR_LOGS, SAVES))
    return replace(
        finding,
        name=LOGGING_INSIDE.name,
        claim=finding.claim.replace(SAVES_OR_LOGS, LOGS),
        next="Log less often.",
    )


def _between_operators(page: PageFindings) -> None:
    """On a CPU, time that is spread over short pauses under many names is what operators cost around them."""
    given, other = page.given, page.of(BY_NAME)
    if other is None or not given.on_host:
        return
    whole = given.accounts.get(OTHER_HOST, 0)
    names = names_of(page, OTHER_HOST)
    is_one = bool(names) and 2 * names[0][1] >= whole and _is_work(names[0][0])
    is_one = is_one or _mostly_in([part for part in names if _of_a_library(part[0])], whole) != ""
    if 2 * given.in_long_pauses >= whole * given.num_steps or is_one:
        return
    if not page.reaches(other.size, BETWEEN_FROM):
        page.drop(other)
        return
    inside = _mostly_in(names, whole)
    where = f", mostly in {without_place(spoken(inside))}" if inside else ""
    page.replace(
        other,
        replace(
            other,
            claim=f"Nothing computes for {page.share(other.size)} in the short pauses between operators"
            f"{where}.",
            next=f"Do the same in fewer operators{f' inside {spoken(inside)}' if inside else ''}: a larger "
            "batch, or `torch.compile`.",
        ),
    )


def _of_a_library(name: str) -> bool:
    """Whether a name is of Python in a library other than PyTorch: work, and no cost of operators."""
    return bool(FRAME.search(name.rpartition(" in ")[0])) and not name.startswith("torch/")


def _mostly_in(names: Sequence[tuple[str, int]], whole: int) -> str:
    """The user's function with more than half of a time, by the names of its parts; "" for none."""
    inside = dict[str, int]()
    for name, ns in names:
        if frame := _users_function(name):
            inside[frame] = inside.get(frame, 0) + ns
    most = max(inside, key=lambda frame: inside[frame], default="")
    return most if 2 * inside.get(most, 0) > whole else ""


def told_once(finding: Finding, given: Given) -> Finding:
    """The finding with the one step that has nearly all of its time, where there is one and it is a pause."""
    if not finding.claim or not finding.accounts or not finding.accounts[0].startswith("idle."):
        return finding
    held = given.ledger.filter(pl.col("account").is_in(finding.accounts)).group_by("rank", "step")
    each = held.agg(pl.col("ns").sum())
    by_step = each.group_by("step").agg(pl.col("ns").sum()).sort("ns", descending=True)
    steps, amount = given.ledger["step"].n_unique(), PER_STEP.search(finding.claim)
    whole = int(by_step["ns"].sum())
    if steps < FEWEST_FOR_ONCE or amount is None:
        return finding
    first = last = by_step["step"][0]
    if by_step["ns"][0] < IN_ONE * whole:
        first, last = _one_pause(given)
        if first == last:
            return finding
    by_rank = each.filter(pl.col("step").is_between(first, last)).group_by("rank").agg(pl.col("ns").sum())
    there = int(by_rank["ns"].sum())
    if there < IN_ONE * whole:
        return finding
    most = int(by_rank["ns"].max() or 0)  # pyright: ignore[reportArgumentType]
    where = f"step {first}" if first == last else from_to(first, last)
    lasts = "up to " * (most * given.ledger["rank"].n_unique() > ALIKE * there) + milliseconds(most)
    if there >= ONCE * whole:
        told = f"{lasts} once in {steps} steps, in {where} ({amount[1]}, {amount[2]}),"
    else:
        told = f"{amount[0]}, mostly in {where} ({lasts}),"
    return replace(finding, claim=finding.claim.replace(amount[0], told, 1))


def on_some_ranks(finding: Finding, given: Given) -> Finding:
    """A finding about idle time that only some ranks have, with these named: the others need no change."""
    if finding.recipe != "idle_summary" or finding.rank is not None or not finding.claim:
        return finding
    own = finding.accounts[:1]
    held = given.ledger.filter(pl.col("account").is_in(own)).group_by("rank").agg(pl.col("ns").sum())
    spent = dict.fromkeys(given.steps, 0) | dict(held.iter_rows())
    each = {rank: spent[rank] // steps for rank, steps in given.steps.items()}
    most = max(each.values(), default=0)
    ranks = sorted(rank for rank, ns in each.items() if ns >= HAVE_IT * most)
    others = [ns for rank, ns in each.items() if rank not in ranks]
    if not ranks or not others or max(others) > HAVE_NONE * most:
        return finding
    theirs = sum(each[rank] for rank in ranks) // len(ranks)
    usual = round(median(others))
    one = len(ranks) == 1
    fact = f"{called(ranks)} idle{'s' * one} {milliseconds(theirs)} per step for it, the other"
    fact += "s " if len(others) > 1 else " "
    fact += milliseconds(usual) if usual else "do not" if len(others) > 1 else "does not"
    idle = sum(given.accounts.get(account, 0) for account in finding.accounts if account.startswith("idle."))
    waits = finding.size - idle
    if waits >= WAITS_TOLD * finding.size:
        fact += f"; ranks wait {milliseconds(waits)} per step for {'it' if one else 'them'}"
    facts = (told for told in finding.evidence if not SHARED_OUT.search(told))
    return replace(finding, evidence=(fact, *facts), next=on_ranks(called(ranks), finding.next))


def _one_pause(given: Given) -> tuple[int, int]:
    """The first and the last step of the longest gap: the end of a step may part it."""
    gaps = given.table("gpu_gaps")
    longest = None if gaps is None or gaps.is_empty() else over_steps(gaps).row(0, named=True)
    return (longest["step"], longest["last_step"]) if longest else (0, 0)


def _alone(page: PageFindings, finding: Finding) -> int | None:
    """The rank that has nearly all of the time, where there are several."""
    given = page.given
    held = given.ledger.filter(pl.col("account").is_in(finding.accounts)).group_by("rank")
    by_rank = held.agg(pl.col("ns").sum()).sort("ns", "rank", descending=[True, False])
    if len(given.steps) < 2 or by_rank.is_empty() or by_rank["ns"][0] < ALONE * int(by_rank["ns"].sum()):
        return None
    return int(by_rank["rank"][0])


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
    return waiting.select(pl.col("calls_in_steps").sum(), pl.col("per_step").fill_null(0).sum()).row(0)


def _synchronised_often(page: PageFindings) -> None:
    """A host that waits for the GPU again and again never runs ahead, so its Python and its launches show.

    It has time enough: as long as it waits in those calls, what it does between them would be hidden.
    """
    given = page.given
    waits = page.of("host-waits-for-device")
    if waits is None:
        return
    often, held = _waits_in_steps(given)
    ranks = max(1, len(given.steps))
    between = sum(given.accounts.get(account, 0) for account in BETWEEN)
    if often < SYNCS * given.num_steps or held < between * ranks or not between:
        return
    members = [finding for account in BETWEEN if (finding := page.about(account))]
    cost = waits.size + between
    told = tuple(fact for fact in waits.evidence if not OF_IDLE.search(fact))
    joined = page.absorb(waits, [])
    for member in members:
        page.drop(member)
    parts = [part for account in (*joined.accounts, *BETWEEN) for part in names_of(page, account)]
    page.replace(
        joined,
        made_of(
            replace(
                joined,
                cost_per_step=cost,
                ns_per_step=max(joined.ns_per_step, *(m.ns_per_step for m in members), 0),
                claim=f"The GPU idles {page.share(cost)} because the CPU waits for it "
                f"{often // given.num_steps:,} times per step, and then has to refill its queue.",
                evidence=(
                    *told,
                    f"{milliseconds(between)} of it is launches and Python that a CPU that runs ahead hides",
                ),
                accounts=(*joined.accounts, *BETWEEN),
            ),
            ((spoken(name), ns) for name, ns in parts),
        ),
    )


def _detects_anomalies(page: PageFindings) -> None:
    """Anomaly detection reads a value from the GPU for each gradient: those are most of the waits."""
    on, waits = page.of("anomaly-detection-on"), page.of("host-waits-for-device")
    table = page.given.table("anomaly_detection")
    if on is None or waits is None or table is None or page.given.on_host:
        return
    if 2 * int(table["checks"].sum()) >= _waits_in_steps(page.given)[0]:
        told = replace(waits, next=on.next, remedies=())
        page.replace(waits, told)
        page.absorb(told, [on])


def _untold_after_waits(page: PageFindings) -> None:
    """What a CPU does after it waited may be what takes long, and needs a row of its own to be told."""
    waits = page.of("host-waits-for-device")
    unnamed = page.given.names.filter(pl.col("account") == SYNCHRONISING, pl.col("name").is_null())
    untold = int(unnamed["ns"].sum()) // max(1, page.given.num_steps)
    if waits is not None and untold and 2 * untold >= waits.size:
        fact = f"for {milliseconds(untold)} of it only call stacks would tell what the CPU did after the wait"
        page.replace(waits, replace(waits, evidence=(*waits.evidence, fact)))


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
    cost = (slow - usual) * beside.height // max(1, given.num_steps)
    members = [found for account in accounts if (found := page.about(account))]
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
            claim=f"The GPU idles {page.share(cost)} as the CPU is slow while another thread saves a "
            "checkpoint.",
            gain="at most",
            ns_per_step=max(cost, *(member.ns_per_step for member in members)),
            cost_per_step=cost,
            evidence=(
                f"pauses between launches take {compared}",
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
    members = [found for account in PAUSES if (found := page.about(account))]
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
    blocked = int(counted["blocked"].sum()) // counted.height - known
    waits = given.table("step_log_core_waits")
    crowded = 0 if waits is None else waits.filter("counted").select(pl.col("core_wait").mean()).item() or 0
    found = filter(None, (page.of(BY_NAME), page.of(UNEXPLAINED)))
    for finding in sorted(found, key=lambda f: -f.size):
        # A GPU may work while the thread is blocked: all the time that is not this finding's. On a CPU whose
        # cores are crowded, an operator waits for its own threads as well.
        hidden = crowded if given.on_host else given.mean_step - finding.size
        if 2 * (blocked - hidden) < finding.size:
            continue
        stacks = f" {advice[0]}" if (advice := RECORD_STACKS.search(finding.next)) else ""
        page.replace(
            finding,
            replace(
                finding,
                claim=RUNS.sub(r"is in \1", finding.claim),
                evidence=(
                    *finding.evidence,
                    f"Linux counts {milliseconds(blocked)} per step in which the training thread is blocked",
                ),
                next=f"Find out what the training thread waits for: {BLOCKED_BY}.{stacks}",
            ),
        )
        blocked -= finding.size


def _collects_young_objects(page: PageFindings) -> None:
    """Passes over the youngest objects are too short to be marked one by one: the step log adds them up."""
    given = page.given
    table = given.table("step_log_summary")
    share = None if table is None else table["garbage_share"].mean()
    found = [f for f in (page.of(UNEXPLAINED), page.of(BY_NAME)) if f is not None]
    if not found or not isinstance(share, float) or not given.mean_step:
        return
    marked = given.accounts.get("idle.garbage_collection", 0) / given.mean_step
    finding = max(found, key=lambda f: f.size)
    if share < COLLECTS_FROM or share < 2 * marked or share * given.mean_step < COLLECTS_FROM * finding.size:
        return
    fact = (
        f"Python collects garbage for {percent(share, 1)} of step time outside the recorded steps, most of "
        "it in passes over young objects, too short to be marked"
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
