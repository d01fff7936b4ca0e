"""Who is named for idle time: what the CPU does in it, and how to make that cheaper."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from lostflops.causes.declared import LOGGING, NO_EDIT
from lostflops.causes.given import BETWEEN, OTHER_HOST
from lostflops.causes.names import (
    NAMED_FROM,
    SAVED,
    SCRIPT,
    listed,
    made_of,
    saved_or_logged,
    spoken,
    without_place,
)
from lostflops.causes.page_findings import PageFindings
from lostflops.finding import Finding, milliseconds
from lostflops.naming.classification import NODE, WRAPPER
from lostflops.naming.host_causes import causes_of
from lostflops.naming.standing_still import FILES, NO_CORE, PIPES, stands_still
from lostflops.naming.standing_still import WAITS as WAITS_FOR_OTHERS
from lostflops.recipes.stretch_names import is_users

BY_NAME, LOADING, LAUNCHING = "host-busy-elsewhere", "idle.data_loading", "idle.launch_bound"
LONG_CALLS = "idle.long_call"
# Calls that only ask for something.
ASKS = re.compile(r"^(?:cuda|hip)(?:GetDeviceProperties|MemGetInfo|DeviceGetAttribute|FuncGetAttributes)")
SYNCHRONISING = "idle.host_synchronisation"
# What of the idle time a CPU hides that waits for nothing.
AHEAD = (SYNCHRONISING, *BETWEEN, LOADING, OTHER_HOST, "idle.dependency")
LAUNCHES = (LAUNCHING, SYNCHRONISING)  # of a function: what it asks of the GPU
# Operators that change one tensor in place, as a loop over parameters does, and that have one for lists.
IN_PLACE = re.compile(
    r"^aten::(add|sub|mul|div|lerp|addcmul|addcdiv|sqrt|neg|sign|pow|exp|abs|reciprocal|zero)_ in "
)
OPTIMIZERS, ONE_LAUNCH, NO_SYNC = "torch/optim/", "cuda-graph", "no-sync"
# What the passes of a model are made of, such as of one that generates tokens and reads each, and checks of
# gradients are not. How much of a function's launching that is, from which on it makes passes.
PRODUCT = re.compile(r"^aten::(?:\w*mm|linear|matmul|conv\w*|\w*convolution\w*|\w*attention\w*)(?: in |$)")
PASSES = 0.2
# Functions of PyTorch's optimizers that may change tensors one by one: not what stands around an update, nor
# one of lists or in one kernel.
OF_OPTIMIZERS = re.compile(r"torch/optim/(\w+)\.py\(\d+\): (\w+)")
NO_LOOP = re.compile(
    r"lr_scheduler|swa_utils|wrapper|zero_grad|profile|_use_grad|_init_group|_multi_tensor|_fused_"
)
# Of a CPU's step, from which on what the framework does between operators is worth a finding. Recording
# lengthens just these pauses.
BETWEEN_FROM, BETWEEN_OPERATORS = 0.15, "in the short pauses between operators"
ALONE = 0.9  # of the time on all ranks
NEARLY_ALL, MOSTLY = 0.9, 0.5  # of a finding's time, in which the CPU does what is said of it
SAVES_OR_LOGS, SAVES, LOGS = "saves a checkpoint or logs", "saves a checkpoint", "logs"
RUNS = re.compile(r"\bruns (Python|other code)\b")
NAMES_HERE = "{}"  # in advice that is the same for several names
# Ranges that frameworks and scripts draw around whole phases: what to change lies inside.
PHASE = re.compile(
    r"(?i)(?:^|[^a-z])(?:forward|backward|fwd|bwd|optimi[sz]er|zero_grad|loss|(?:training_|train_|run_)?step"
    r"|(?:training_|train_)?(?:batch|iter|iteration)|micro_?batch|evaluate_function|autograd)(?:[^a-z]|$)"
)
OPERATOR = re.compile(r"^aten::\w+(?: in |$)")  # that computes on the CPU, where it takes long
OF_GPUS = re.compile(r"^aten::_?(?:cudnn|miopen)_\w+(?: in |$)")  # whose tensors lie there
ANY_OPERATOR = re.compile(r"^\w+::\w+(?: in |$)")
MESSAGES = re.compile(r"MPI_\w|uc[ps]_")
FRAME = re.compile(r"\.pyx?\(\d+\): ")
# Optimizers whose states lie in the host's memory: DeepSpeed's, ColossalAI's, torchao's.
ON_CPU = re.compile(r"(?i)cpu_?(?:offload_?)?(?:adam|adagrad|lion|optimizer)|\badam_update\b|\bHybridAdam\b")


def names_of(page: PageFindings, account: str) -> list[tuple[str, int]]:
    """What an account's idle time is called, the longest first, with its ns in a mean step of a mean rank."""
    given = page.given
    by_name = (
        given.names.filter(pl.col("account") == account)
        .drop_nulls("name")
        .group_by("name")
        .agg(pl.col("ns").sum())
        .sort("ns", "name", descending=[True, False])
    )
    return [(name, ns // max(1, given.num_steps)) for name, ns in by_name.iter_rows()]


def named(page: PageFindings, finding: Finding) -> Finding:
    parts = [part for account in finding.accounts for part in names_of(page, account)]
    named = made_of(replace(finding, rank=_alone(page, finding)), ((spoken(name), ns) for name, ns in parts))
    if SAVES_OR_LOGS in finding.claim and parts:
        return _saving_or_logging(page, named, parts)
    if LONG_CALLS in finding.accounts and parts and ASKS.match(parts[0][0]) and named.is_mostly_these:
        keep = f"Ask once, and keep what {spoken(parts[0][0])} answers; or ask less often than in each step."
        return replace(named, next=keep, remedies=())
    if LOADING in finding.accounts and page.given.on_host:
        return _computes_batches(page, named, parts)
    if LAUNCHING in finding.accounts:
        return _tensor_by_tensor(page, named, parts)
    if finding.name != BY_NAME:
        return named
    parts = _by_function(parts)
    named = made_of(replace(finding, rank=named.rank), ((spoken(name), ns) for name, ns in parts))
    if not named.contributors:
        return named
    largest = [(spoken(name), ns) for name, ns in parts[:2] if ns >= NAMED_FROM * finding.size]
    what = [f"{without_place(name)} ({milliseconds(ns)})" for name, ns in largest]
    told = sum(ns for _, ns in largest) / finding.size
    does = _does([name for name, _ in parts[: len(largest)]], told)
    claim = finding.claim.replace(" while the CPU runs other code", does)
    # What a training loop or a whole phase does between its calls stays where it is.
    work = [part for part in parts[: len(largest)] if _is_work(part[0]) and not page.given.holds(part[0])]
    edit = _without(work, page.given.accounts.get(OTHER_HOST), len(page.given.steps) > 1)
    return replace(
        named,
        claim=f"{claim.rstrip('.')}: {listed(what)}.",
        next=_in_pieces(page, parts[0]) or _advice(page, [name for name, _ in (work if edit else parts[:1])]),
        edit=edit,
    )


def _computes_batches(page: PageFindings, finding: Finding, parts: Sequence[tuple[str, int]]) -> Finding:
    """The finding about a loader on a CPU, as computing where it is mostly in operators that it calls."""
    operators = [(name, ns) for name, ns in parts if ANY_OPERATOR.match(name)]
    if 2 * sum(ns for _, ns in operators) < finding.size:
        return finding
    largest = [(name, ns) for name, ns in operators[:2] if ns >= NAMED_FROM * finding.size]
    what = listed([without_place(spoken(name)) for name, _ in largest])
    return replace(
        finding,
        claim=f"The data loader takes {page.share(finding.size)}, mostly in operators"
        f"{f': {what}' if what else ''}.",
    )


def _advice(page: PageFindings, names: Sequence[str]) -> str:
    """What to do about the CPU's work of these names; what is to be done about several is said once, and of
    several in one function of the user's for the first."""
    given = page.given
    every, loads = given.names["name"].drop_nulls().to_list(), bool(given.accounts.get(LOADING))
    about: dict[str, dict[str, str]] = {}
    for name in names:
        said = _own_lines(page, name) if page.given.holds(name) else _cheaper(name, every, loads)
        alike = about.setdefault(said.replace(spoken(name), NAMES_HERE), {})
        alike.setdefault(_users_function(name) or name, spoken(name))
    return " ".join(
        (said if len(alike) == 1 else re.sub(r"\bit\b", "them", said)).replace(
            NAMES_HERE, listed([*alike.values()])
        )
        for said, alike in about.items()
    )


def _own_lines(page: PageFindings, name: str) -> str:
    """What to do about Python of a function that holds a training loop or a pass, between what it calls."""
    held = "the training loop" if name in page.given.loops else "a backward pass"
    return (
        f"{spoken(name)} holds {held}, and this is Python of its own lines or of libraries that they "
        "call. Move these lines into functions and record again: what takes long then has a name."
    )


def _in_pieces(page: PageFindings, part: tuple[str, int]) -> str:
    """What to do about a user's function whose Python lies between work that it gives to the GPU, and so can
    be done on no other thread; "" for others."""
    function, ns = _users_function(part[0]), part[1]
    asked = (of for account in LAUNCHES for of in names_of(page, account))
    if not function or 2 * sum(its for name, its in asked if _users_function(name) == function) < ns:
        return ""
    return (
        f"Give the GPU its work in fewer pieces in {spoken(function)}: `torch._foreach_…` functions take "
        "whole lists of tensors, one copy takes a buffer of many, and `torch.compile` fuses operators."
    )


def _tensor_by_tensor(page: PageFindings, finding: Finding, parts: Sequence[tuple[str, int]]) -> Finding:
    """The finding about launching, with what helps a function of the user's that changes tensors one by one,
    such as a mean of the weights: to compile the model does not."""
    reads = mostly_in(parts, finding.size)
    waited = names_of(page, SYNCHRONISING)
    inside = [(name, ns) for name, ns in parts if _users_function(name) == reads]
    passes = sum(ns for name, ns in inside if PRODUCT.match(name)) >= PASSES * sum(ns for _, ns in inside)
    waits_there = reads and not passes and reads == mostly_in(waited, sum(ns for _, ns in waited))
    if page.given.reads_values and waits_there and not page.given.after_passes:
        return replace(
            finding,
            claim=f"{finding.claim.rstrip('.')}, mostly in {without_place(spoken(reads))}, which reads "
            "values from it.",
            next=f"In {spoken(reads)} bring the values together on the GPU (`torch._foreach_norm`, "
            "`torch.stack`) and read one, or read them every hundredth step. To compile the model does not "
            "help there.",
            cost_per_step=finding.size,
            ns_per_step=finding.ns_per_step + page.given.read_per_step,
            remedies=(),
            edit=NO_SYNC,
        )
    updates, names = page.given.updates, page.given.names["name"].drop_nulls()
    of_update: dict[str, int] = dict(
        updates.drop_nulls("name").group_by("name").agg(pl.col("ns").sum()).select("name", "ns").iter_rows()
    )
    many = max(1, page.given.num_steps)
    beside = ((name, ns - of_update.get(name, 0) // many) for name, ns in parts if IN_PLACE.match(name))
    in_place = [(name, ns) for name, ns in beside if ns > 0]
    function = mostly_in(in_place, finding.size)
    # Which of them an optimizer launches is known by its step.
    if not function or (updates.is_empty() and _changes_one_by_one(names)):
        return finding
    largest = next(found[1] for name, _ in in_place if (found := IN_PLACE.match(name)))
    return replace(
        finding,
        next=f"Change whole lists of tensors at once in {spoken(function)}: `torch._foreach_{largest}_` "
        "takes them in one call; or compile that function.",
        remedies=(),
        edit=NO_EDIT,
    )


def _changes_one_by_one(names: pl.Series) -> bool:
    """Whether functions of an optimizer of PyTorch's are named that may change tensors one by one."""
    found = (OF_OPTIMIZERS.search(name) for name in names.unique())
    return any(each is not None and not NO_LOOP.search(" ".join(each.groups())) for each in found)


def _without(parts: Sequence[tuple[str, int]], whole: int | None, several: bool) -> str:
    """What to ask `lostflops whatif` for the account without these parts of it; "" where they are not most
    of it, or one is no work that could be done elsewhere or less often.

    What is left is taken to be a share of each pause. On `several` ranks, which wait for the longest pause
    of each step, that is told where little is left.
    """
    taken = sum(ns for _, ns in parts)
    if not whole or taken <= MOSTLY * whole or not all(_can_go(name) for name, _ in parts):
        return ""
    if several and taken < NEARLY_ALL * whole:
        return ""
    return f"host:other-host-work={100 * max(0, whole - taken) / whole:.0f}%"


def _can_go(name: str) -> bool:
    """Whether a name is of something that a job can do without in its step: it sleeps, is at files, or runs
    Python that is neither PyTorch's nor an optimizer's."""
    still = stands_still(name)
    if still is not None:
        return still not in (WAITS_FOR_OTHERS, PIPES)
    theirs = name.startswith("torch/") or OPERATOR.match(name) or ON_CPU.search(name)
    return bool(FRAME.search(name)) and not theirs


def own_code(name: str) -> bool:
    """Whether a name is of a function of the job's own, other than its script, that waits for no device."""
    head = name.partition(" in ")[0]
    theirs = head.startswith("torch/") or causes_of([head], "frame") != [None]
    return bool(FRAME.search(head)) and not theirs and not head.endswith(f": {SCRIPT}")


def _by_function(parts: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Names with their time, the largest first; those in one function of the user's as one, where none of
    them is most of it: a copy of a tree is spread over many functions of a library. A row in which the
    thread runs no code stays by itself."""
    inside = dict[str, list[tuple[str, int]]]()
    for name, ns in parts:
        function = "" if stands_still(name) else _users_function(name)
        inside.setdefault(function or name, []).append((name, ns))
    told = list[tuple[str, int]]()
    for frame, some in inside.items():
        whole = sum(ns for _, ns in some)
        spread = 2 * max(ns for _, ns in some) < whole
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
    if names and all(OPERATOR.match(name) for name in names) and any(map(OF_GPUS.match, names)):
        return " inside operators of a library that runs on it"
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
    if still == NO_CORE:
        return (
            "Give this thread a core of its own: fewer loader workers and threads than cores "
            "(`OMP_NUM_THREADS`), more cores for the job (`--cpus-per-task`), no other jobs beside it. "
            "`thread-state-summary` and `core-utilization` show who runs."
        )
    if MESSAGES.match(name):
        return (
            f"Find which process comes last to {spoken(name)}: all others wait for it. Where the result is "
            "not needed at once, let it arrive beside the GPU's work, on a thread of its own; or ask for it "
            "less often."
        )
    if still == WAITS_FOR_OTHERS:
        return (
            f"Find what {spoken(name)} waits for: if it is the next batch, let more workers fill the queue, "
            "and earlier; if it is a result, ask for it a step later; if it is a lock, hold it for less "
            "long; if it is the next request, too few of them come."
        )
    if still == FILES:
        ahead = "read ahead in the loader's workers" if loads else "read ahead on another thread"
        return (
            f"Take {spoken(name)} out of the step: {ahead}, write on a thread of its own and less often, or "
            "keep the files on a faster disk."
        )
    if still == PIPES:
        return (
            f"Find what {spoken(name)} reads or writes: files can be read ahead and written on a thread of "
            "their own; where it waits for another process, such as a loader's worker, that has to be sooner."
        )
    if still is not None:
        return f"Take {spoken(name)} out of the step."
    if ON_CPU.search(name):
        return (
            "Keep the optimizer's states on the GPU if they fit (in 8 bits, or sharded over more ranks). "
            "Else give it all cores of the node (`OMP_NUM_THREADS`), and let it run beside the backward pass."
        )
    if name.startswith(OPTIMIZERS):
        return (
            "That is the optimizer's own Python: use its fused kernels (`fused=True`) or `foreach=True` "
            "where it has them, few groups of parameters, or `torch.compile(optimizer.step)`."
        )
    if OF_GPUS.match(name):
        return (
            f"Keep the shapes of {spoken(name)} steady: for each new one cuDNN or MIOpen looks for an "
            "algorithm, and tries them all with `torch.backends.cudnn.benchmark = True`."
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
    if FRAME.search(name.partition(" in ")[0]):
        return (
            f"Make {spoken(name)} cheaper: fewer operators in it (`torch.compile`, a larger batch), and less "
            "Python between them."
        )
    if any(map(FRAME.search, names)):
        return f"Do the same in fewer operators inside {spoken(name)}: `torch.compile`, or a larger batch."
    row = name.partition(" in ")[0]
    if re.match(NODE, row):
        return (
            f"`{row.removeprefix(WRAPPER)}` is a node of autograd in C++: no Python runs in it. This is "
            "time inside it and outside its operators, such as for freeing memory. A larger batch has fewer "
            "nodes per sample; `torch.compile` makes one of many."
        )
    return (
        f"{spoken(name)} is a whole phase. To see which Python runs in it, record call stacks: "
        "`lostflops record --what cuda,shapes,python -- COMMAND`."
    )


def _by_operators(name: str) -> bool:
    """Whether what is advised about a name makes operators of a CPU fewer or faster, too."""
    still = stands_still(name)
    if still is not None:
        return still == NO_CORE
    return name.startswith(OPTIMIZERS) or bool(ON_CPU.search(name)) or not _is_work(name)


def _is_work(name: str) -> bool:
    """Whether a name is of one thing that is done, and not of a phase that holds all that a step does."""
    what = name.partition(" in ")[0]
    frame = FRAME.search(what)
    return PHASE.search(what) is None if frame is None else PHASE.fullmatch(what[frame.end() :]) is None


def _saving_or_logging(page: PageFindings, finding: Finding, parts: list[tuple[str, int]]) -> Finding:
    """The finding about checkpoints and logs as the one that it is about, by most of what is named in it."""
    finding = _with_the_rest(page, finding, parts)
    if saved_or_logged(parts) == SAVED:
        own = tuple(name for name in page.given.named(finding.name) if name not in LOGGING.remedies)
        return replace(finding, claim=finding.claim.replace(SAVES_OR_LOGS, SAVES), remedies=own)
    return replace(
        finding,
        name=LOGGING.name,
        claim=finding.claim.replace(SAVES_OR_LOGS, LOGS),
        ns_per_step=_with_reads(page, finding.ns_per_step),
        next="Log less often.",
    )


def _with_reads(page: PageFindings, ns: int) -> int:
    """The bound on logging less often with what it saves besides: values that are not read are not waited
    for, and a CPU that waits for nothing runs ahead."""
    given = page.given
    if not ns or given.on_host or not given.reads_values or not given.accounts.get(SYNCHRONISING):
        return ns
    hidden = sum(given.accounts.get(account, 0) for account in AHEAD)
    return max(ns, min(ns + hidden, given.beside_work // max(1, given.num_steps)))


def _with_the_rest(page: PageFindings, finding: Finding, parts: list[tuple[str, int]]) -> Finding:
    """With what the user's function that saves or logs does besides, such as building a line: that goes too.

    One that launches work does more than that, as does what a script runs outside of functions.
    """
    function, names = mostly_in(parts, sum(ns for _, ns in parts)), page.given.names.drop_nulls("name")
    inside = [name for name in names["name"].unique() if _users_function(name) == function]
    rest = names.filter(pl.col("name").is_in(inside), ~pl.col("account").is_in(finding.accounts))
    ns = int(rest["ns"].sum()) // max(1, page.given.num_steps)
    # What does far more than that has another finding, which names it.
    if not function or not ns or ns > finding.size or not rest.filter(account=LAUNCHING).is_empty():
        return finding
    idle = "nothing computes" if page.given.on_host else "the GPU idles"
    fact = f"{spoken(function)} takes another {milliseconds(ns)} in which {idle}"
    return replace(finding, ns_per_step=finding.ns_per_step + ns, evidence=(*finding.evidence, fact))


def between_operators(page: PageFindings) -> None:
    """On a CPU, time that is spread over short pauses under many names is what operators cost around them."""
    given, other = page.given, page.of(BY_NAME)
    if other is None or not given.on_host:
        return
    whole = given.accounts.get(OTHER_HOST, 0)
    names = names_of(page, OTHER_HOST)
    is_one = any(2 * ns >= whole and _is_work(name) and not page.given.holds(name) for name, ns in names)
    is_one = is_one or mostly_in([part for part in names if _of_a_library(part[0])], whole) != ""
    if 2 * given.in_long_pauses >= whole * given.num_steps or is_one:
        return
    if not page.reaches(other.size, BETWEEN_FROM):
        page.drop(other)
        return
    inside = mostly_in([part for part in names if not page.given.holds(_users_function(part[0]))], whole)
    where = f", mostly in {without_place(spoken(inside))}" if inside else ""
    page.replace(
        other,
        replace(
            other.without_bound(),  # fewer operators save time of their own as well
            claim=f"Nothing computes for {page.share(other.size)} {BETWEEN_OPERATORS}{where}.",
            next=f"Do the same in fewer operators{f' inside {spoken(inside)}' if inside else ''}: a larger "
            "batch, or `torch.compile`.",
            edit="",
        ),
    )


def with_operators(page: PageFindings) -> None:
    """On a CPU, operators of a function that is taken out go, too: the bound counts them.

    What is predicted without the Python alone is then no prediction of that. Where fewer or faster operators
    are advised there is no bound: they save time of their own.
    """
    given, found = page.given, page.of(BY_NAME)
    if found is None or not given.on_host or BETWEEN_OPERATORS in found.claim or found.gain != "at most":
        return
    parts = _by_function(names_of(page, OTHER_HOST))
    largest = [name for name, ns in parts[:2] if ns >= NAMED_FROM * found.size]
    if largest and not page.given.holds(largest[0]) and _by_operators(largest[0]):
        page.replace(found, replace(found.without_bound(), edit=NO_EDIT))
        return
    work = [name for name in largest if _is_work(name) and not page.given.holds(name)]
    of = {name: _users_function(name) or name.partition(" in ")[0] for name in work}
    functions = list(dict.fromkeys(of.values()))
    whole = given.spent_in(functions) // max(1, given.num_steps) if functions else 0
    more = whole - sum(ns for name, ns in parts if name in of or _users_function(name) in functions)
    if more < NAMED_FROM * found.size:
        return
    fact = (
        f"{listed([spoken(name) for name in functions])} take{'s' * (len(functions) == 1)} "
        f"{milliseconds(whole)} per step with operators, which the bound counts"
    )
    page.replace(
        found,
        replace(
            found,
            cost_per_step=found.size,
            ns_per_step=found.ns_per_step + more,
            evidence=(fact, *found.evidence),
            edit=NO_EDIT,
        ),
    )


def launched_in_pieces(page: PageFindings) -> None:
    """A function that launches piece by piece, and whose own Python lies between: that is one cause."""
    launching, python = page.about(LAUNCHING), page.of(BY_NAME)
    if launching is None or python is None or launching.recipe != python.recipe:
        return
    function, other = (mostly_in(names_of(page, f.accounts[0]), f.size) for f in (launching, python))
    if not function or function != other:
        return
    cost, between = launching.size + python.size, milliseconds(python.size)
    page.drop(python)
    parts = [part for account in (LAUNCHING, OTHER_HOST) for part in names_of(page, account)]
    told = replace(
        launching,
        claim=f"The GPU idles {page.share(cost)} because the CPU launches work too slowly, mostly in "
        f"{without_place(spoken(function))}.",
        cost_per_step=cost,
        ns_per_step=max(launching.ns_per_step, python.ns_per_step),
        evidence=(f"{between} of it is Python between the launches",),
        accounts=(*launching.accounts, *python.accounts),
        edit=NO_SYNC if launching.edit == NO_SYNC else ",".join(filter(None, (ONE_LAUNCH, python.edit))),
    )
    page.replace(launching, made_of(told, ((spoken(name), ns) for name, ns in parts)))


def _of_a_library(name: str) -> bool:
    """Whether a name is of Python in a library other than PyTorch: work, and no cost of operators."""
    return bool(FRAME.search(name.rpartition(" in ")[0])) and not name.startswith("torch/")


def mostly_in(names: Sequence[tuple[str, int]], whole: int) -> str:
    """The user's function with more than half of a time, by the names of its parts; "" for none."""
    inside = Counter[str]()
    for name, ns in names:
        inside[_users_function(name)] += ns
    return next((frame for frame, ns in inside.items() if 2 * ns > whole), "")


def _alone(page: PageFindings, finding: Finding) -> int | None:
    """The rank that has nearly all of the time, where there are several."""
    given = page.given
    held = given.ledger.filter(pl.col("account").is_in(finding.accounts)).group_by("rank")
    by_rank = held.agg(pl.col("ns").sum()).sort("ns", "rank", descending=[True, False])
    if len(given.steps) < 2 or by_rank.is_empty() or by_rank["ns"][0] < ALONE * int(by_rank["ns"].sum()):
        return None
    return int(by_rank["rank"][0])
