"""*At most* is a bound: no made-up job gains more from losing a cause than the page offers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from lostflops.recipes import named
from lostflops.testing import on_example

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
THREAD = 7


@dataclass(frozen=True)
class Part:
    """What one rank does before a collective: it waits for its loader, copies, then computes."""

    loads: int
    copies: int
    computes: int


Plan = list[list[list[Part]]]  # steps, collectives of a step, ranks
TRANSFER = 3


def run(plan: Plan) -> tuple[dict[str, list[dict[str, Any]]], list[int]]:
    """The tables of the job by one true clock, and how long each step lasts; all ranks keep in step."""
    num_ranks = len(plan[0][0])
    tables: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("steps", "kernels", "copies", "ranges", "collectives")
    }
    free, lengths = 0, list[int]()
    for number, step in enumerate(plan):
        begin = free
        for parts in step:
            arrivals = list[int]()
            for rank, part in enumerate(parts):
                copied = free + part.loads
                computed = copied + part.copies
                arrivals.append(computed + part.computes)
                mine = {"rank": rank, "thread": THREAD}
                tables["ranges"].append({**mine, "start": free, "end": copied, "name": LOADER})
                if part.copies:
                    tables["copies"].append(
                        {
                            **mine,
                            "start": copied,
                            "end": computed,
                            "launch_start": copied,
                            "launch_end": copied,
                        }
                    )
                tables["kernels"].append(
                    {
                        **mine,
                        "start": computed,
                        "end": arrivals[-1],
                        "launch_start": copied,
                        "launch_end": copied,
                    }
                )
            free = max(arrivals) + TRANSFER
            for rank, arrival in enumerate(arrivals):
                tables["collectives"].append(
                    {"rank": rank, "start": arrival, "end": free, "kind": "all-reduce"}
                )
        lengths.append(free - begin)
        tables["steps"] += [
            {"rank": r, "step": number, "start": begin, "end": free} for r in range(num_ranks)
        ]
    tables["ranks"] = [
        {"rank": r, "world_size": num_ranks, "clock_error": 0, "device_kind": "gpu", "main_thread": THREAD}
        for r in range(num_ranks)
    ]
    return tables, lengths


def mean(lengths: list[int]) -> float:
    return sum(lengths) / len(lengths)


def without(plan: Plan, **zero: int) -> Plan:
    return [[[Part(**{**vars(p), **zero}) for p in parts] for parts in step] for step in plan]


amounts = st.integers(0, 40)
parts = st.builds(Part, loads=amounts, copies=amounts, computes=st.integers(1, 40))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    num_ranks = draw(st.integers(1, 4))
    collective = st.lists(parts, min_size=num_ranks, max_size=num_ranks)
    step = st.lists(collective, min_size=1, max_size=3)
    return draw(st.lists(step, min_size=1, max_size=3))


@settings(max_examples=25, deadline=None)
@given(plans())
def test_no_job_gains_more_from_losing_its_loader_than_the_bound_says(plan: Plan) -> None:
    tables, lengths = run(plan)
    gain = mean(lengths) - mean(run(without(plan, loads=0))[1])
    table = on_example(named("idle_summary"), tables).filter(account="idle.data_loading")
    assert sum(table["at_most"]) >= int(gain)


@settings(max_examples=25, deadline=None)
@given(plans())
def test_no_job_gains_more_from_levelling_its_ranks_than_the_bound_says(plan: Plan) -> None:
    """However the ranks that come late are sped up, the one that waits most keeps its own work."""
    tables, lengths = run(plan)
    table = on_example(named("communication_wait"), tables)
    own = [[sum(sum(vars(ranks[r]).values()) for ranks in s) for r in range(len(s[0]))] for s in plan]
    fastest = min(range(len(own[0])), key=lambda r: sum(step[r] for step in own))
    as_fastest = [[[ranks[fastest]] * len(ranks) for ranks in s] for s in plan]
    gain = mean(lengths) - mean(run(as_fastest)[1])
    assert max(table["per_step"].drop_nulls(), default=0) >= int(gain)


@settings(max_examples=25, deadline=None)
@given(plans())
def test_no_job_gains_more_from_a_late_rank_coming_with_the_next_than_the_bound_says(plan: Plan) -> None:
    tables, lengths = run(plan)
    table = on_example(named("communication_imbalance"), tables)
    for row in table.drop_nulls("rank").iter_rows(named=True):
        late = row["rank"]
        eased: Plan = []
        for step in plan:
            eased.append([])
            for ranks in step:
                work = [p.loads + p.copies + p.computes for p in ranks]
                next_to_last = max((w for r, w in enumerate(work) if r != late), default=work[late])
                shorter = min(work[late], next_to_last)
                eased[-1].append([Part(0, 0, shorter) if r == late else part for r, part in enumerate(ranks)])
        gain = mean(lengths) - mean(run(eased)[1])
        assert row["at_most"] >= int(gain)


# -- hosts that run ahead of their devices -------------------------------------------------------------------

COMPUTE, SIDE, TALK = 0, 1, 2  # streams
LATENCY = 2  # from the return of a launch to the start of what it launched
ROWS = {"load": LOADER, "collect": "gc.collect", "other": "my_hook"}


@dataclass(frozen=True)
class Act:
    """What a host does next, and what comes of it.

    'load', 'collect' and 'other' take `host` ns; 'launch' takes `host` ns and gives a stream `device` ns of
    work; 'join' has the compute stream wait for the side stream; 'wait' waits for the device; 'read' waits
    for a value of it, whose copy takes `device` ns.
    """

    what: str
    host: int = 0
    device: int = 0
    stream: int = COMPUTE


Program = list[list[list[Act]]]  # steps, ranks, acts; each step ends with a collective of all ranks


def recorded(program: Program) -> tuple[dict[str, list[dict[str, Any]]], float]:
    """The tables of a job whose hosts launch and go on, by one true clock, and its mean step."""
    num_ranks = len(program[0])
    tables: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("steps", "kernels", "copies", "ranges", "operators", "launches", "collectives")
    }
    host = [0] * num_ranks
    free = [[0, 0, 0] for _ in range(num_ranks)]
    begins: list[list[int]] = [[] for _ in range(num_ranks)]
    for step in program:
        arrivals = list[int]()
        for rank, acts in enumerate(step):
            begins[rank].append(host[rank])
            talk = Act("launch", host=1, stream=TALK)
            for act in [*acts, talk]:
                begin, mine = host[rank], {"rank": rank, "thread": THREAD}
                host[rank] += act.host
                span = {**mine, "start": begin, "end": host[rank]}
                if act.what in ROWS:
                    tables["ranges"].append({**span, "name": ROWS[act.what]})
                elif act.what == "join":
                    free[rank][COMPUTE] = max(free[rank])
                elif act.what == "read":
                    start = max(begin + LATENCY, free[rank][COMPUTE])
                    host[rank] = free[rank][COMPUTE] = start + act.device
                    call = {**mine, "start": begin, "end": host[rank]}
                    tables["launches"].append({**call, "name": "cudaMemcpy"})
                    tables["operators"].append({**call, "name": "aten::_local_scalar_dense"})
                    tables["copies"].append(
                        {
                            **mine,
                            "start": start,
                            "end": host[rank],
                            "stream": COMPUTE,
                            "direction": "device_to_host",
                            "launch_start": begin,
                            "launch_end": host[rank],
                        }
                    )
                elif act.what == "wait":
                    host[rank] = max(host[rank], *free[rank])
                    tables["launches"].append(
                        {**mine, "start": begin, "end": host[rank], "name": "cudaDeviceSynchronize"}
                    )
                else:
                    tables["operators"].append({**span, "name": "aten::mm"})
                    ready = [free[rank][act.stream], *(free[rank] if act is talk else ())]
                    start = max(host[rank] + LATENCY, *ready)
                    free[rank][act.stream] = start + act.device
                    kernel = {
                        **mine,
                        "start": start,
                        "end": start + act.device,
                        "stream": act.stream,
                        "launch_start": host[rank],
                        "launch_end": host[rank],
                    }
                    if act is talk:
                        arrivals.append(start)
                        kernel |= {"family": "communication"}
                    tables["kernels"].append(kernel)
        end = max(arrivals) + TRANSFER
        for rank, arrival in enumerate(arrivals):
            free[rank] = [end, free[rank][SIDE], end]
            tables["kernels"][-1 - [k["rank"] for k in reversed(tables["kernels"])].index(rank)]["end"] = end
            tables["collectives"].append({"rank": rank, "start": arrival, "end": end, "kind": "all-reduce"})
    whole = max(*host, *(t for streams in free for t in streams))
    for rank in range(num_ranks):
        edges = [*begins[rank], whole]
        tables["steps"] += [
            {"rank": rank, "step": n, "start": a, "end": b} for n, (a, b) in enumerate(pairwise(edges))
        ]
    tables["ranks"] = [
        {"rank": r, "world_size": num_ranks, "clock_error": 0, "device_kind": "gpu", "main_thread": THREAD}
        for r in range(num_ranks)
    ]
    return tables, whole / len(program)


times = st.integers(0, 30)
acts = st.one_of(
    st.builds(Act, what=st.sampled_from(["load", "collect", "other"]), host=times),
    st.builds(
        Act,
        what=st.just("launch"),
        host=st.integers(0, 9),
        device=times,
        stream=st.sampled_from([COMPUTE, COMPUTE, SIDE]),
    ),
    st.builds(Act, what=st.sampled_from(["join", "wait"])),
    st.builds(Act, what=st.just("read"), device=st.integers(1, 9)),
)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    num_ranks = draw(st.integers(1, 3))
    rank = st.lists(acts, min_size=1, max_size=8)
    return draw(st.lists(st.lists(rank, min_size=num_ranks, max_size=num_ranks), min_size=1, max_size=4))


REMOVED = {
    "idle.data_loading": "load",
    "idle.garbage_collection": "collect",
    "idle.other_host_work": "other",
    "idle.launch_bound": "launch",
    "idle.host_synchronisation": "wait",
}
# A value that nobody reads is not copied.
ALIKE = {"wait": ("wait", "read")}


def removed(program: Program, what: str) -> Program:
    """The job in which launching takes the host no time, or in which the other acts are left out."""

    def rid(done: list[Act]) -> list[Act]:
        if what == "launch":
            return [replace(act, host=0) if act.what == what else act for act in done]
        return [act for act in done if act.what not in ALIKE.get(what, (what,))]

    return [[rid(done) for done in step] for step in program]


# Rank 1 loads before the first collective, in which rank 0 waits while a side stream of its own computes.
HIDDEN_WAIT = [
    [[Act("join")], [Act("load", host=2)]],
    [[Act("launch", device=1, stream=SIDE)], [Act("load")]],
]


# The copies behind two values that the host reads go with them.
READ = [[[Act("launch", device=9), Act("read", device=9), Act("launch", device=1), Act("read", device=9)]]]


@settings(max_examples=50, deadline=None)
@given(programs())
@example(HIDDEN_WAIT)
@example(READ)
def test_no_host_that_runs_ahead_gains_more_than_the_bound_says(program: Program) -> None:
    tables, mean_step = recorded(program)
    bounds = on_example(named("idle_summary"), tables)
    for account, at_most in bounds.select("account", "at_most").iter_rows():
        if account in REMOVED:
            gain = mean_step - recorded(removed(program, REMOVED[account]))[1]
            assert at_most >= int(gain), account


def test_what_a_rank_did_before_it_was_recorded_may_be_what_the_others_waited_for() -> None:
    """Rank 1 collects for 40 ns, of which its recording, begun late, shows 5; rank 0 waits for it."""
    step, ranks = 0, [{"start": 0, "end": 100}, {"start": 35, "end": 100}]
    tables: dict[str, list[dict[str, Any]]] = {
        "steps": [
            {"rank": r, "step": step, "start": held["start"], "end": 100} for r, held in enumerate(ranks)
        ],
        "kernels": [
            {"rank": 0, "start": 0, "end": 10},
            {"rank": 1, "start": 42, "end": 60, "launch_start": 41, "launch_end": 42, "thread": THREAD},
            *(
                {"rank": r, "start": start, "end": 100, "family": "communication", "stream": 1}
                for r, start in ((0, 10), (1, 60))
            ),
        ],
        "collectives": [
            {"rank": r, "start": start, "end": 100, "kind": "all-reduce"} for r, start in ((0, 10), (1, 60))
        ],
        "ranges": [{"rank": 1, "start": 35, "end": 40, "thread": THREAD, "name": "gc.collect"}],
        "ranks": [
            {
                **held,
                "rank": r,
                "world_size": 2,
                "clock_error": 0,
                "device_kind": "gpu",
                "main_thread": THREAD,
            }
            for r, held in enumerate(ranks)
        ],
    }
    table = on_example(named("idle_summary"), tables).filter(account="idle.garbage_collection")
    # Rank 0 gains 40, rank 1 the 5 that it shows and what it waits for, which is nothing.
    assert table["at_most"].to_list() == [(40 + 5) // 2]


# -- several streams that wait for each other ----------------------------------------------------------------

STREAMS = range(4)


@dataclass(frozen=True)
class Do:
    """What the host of one rank does next: `host` ns, and what it gives a stream to do, `device` ns.

    'python' leaves no row; 'compute', 'fp32', 'copy' and 'exchange' launch work; 'event' has a stream wait
    for what another was given so far; 'wait' has the host wait for a stream. A `blocking` copy returns when
    it is done.
    """

    what: str
    host: int = 0
    device: int = 0
    stream: int = 0
    other: int = 0
    blocking: bool = False


def several(steps: list[list[Do]]) -> tuple[dict[str, list[dict[str, Any]]], float]:
    """The tables of one rank's job, and its mean step: the last one ends when all is done."""
    names = "steps", "kernels", "copies", "ranges", "operators", "launches", "collectives"
    tables: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    host, free, begins = 0, dict.fromkeys(STREAMS, 0), list[int]()
    for step in steps:
        begins.append(host)
        for act in step:
            begin = host
            host += act.host
            call = {"thread": THREAD, "start": begin, "end": host}
            if act.what == "event":
                free[act.stream] = max(free[act.stream], free[act.other])
            elif act.what == "wait":
                host = max(host, free[act.stream])
                tables["launches"].append({**call, "end": host, "name": "cudaStreamSynchronize"})
            elif act.what == "load":
                tables["ranges"].append({**call, "name": LOADER})
            elif act.what != "python":
                start = max(host + LATENCY, free[act.stream])
                free[act.stream] = end = start + act.device
                host = max(host, end) if act.blocking else host
                row = {"start": start, "end": end, "stream": act.stream, "thread": THREAD}
                row |= {"launch_start": begin, "launch_end": host}
                if act.what == "copy":
                    memory = "pageable" if act.blocking else "pinned"
                    tables["copies"].append({**row, "host_memory": memory, "direction": "host to device"})
                else:
                    tables["operators"].append({**call, "name": "aten::mm"})
                    kind = {"family": "communication" if act.what == "exchange" else "gemm"}
                    slow = {"precision": "fp32", "tensor_cores": False} if act.what == "fp32" else {}
                    tables["kernels"].append({**row, **kind, **slow})
                if act.what == "exchange":
                    tables["collectives"].append({"start": start, "end": end, "kind": "all-reduce"})
    whole = max(host, *free.values())
    tables["steps"] = [
        {"step": n, "start": a, "end": b} for n, (a, b) in enumerate(pairwise([*begins, whole]))
    ]
    tables["ranks"] = [
        {"world_size": 1, "clock_error": 0, "device_kind": "gpu", "main_thread": THREAD, "end": whole}
    ]
    return tables, whole / len(steps)


lengths = st.integers(0, 12)
streams = st.sampled_from(list(STREAMS))
doings = st.one_of(
    st.builds(Do, what=st.sampled_from(["python", "load"]), host=lengths),
    st.builds(
        Do,
        what=st.sampled_from(["compute", "compute", "fp32", "copy", "exchange"]),
        host=st.integers(0, 5),
        device=times,
        stream=streams,
    ),
    st.builds(Do, what=st.just("copy"), host=lengths, device=times, stream=streams, blocking=st.just(True)),
    st.builds(Do, what=st.just("event"), stream=streams, other=streams),
    st.builds(Do, what=st.just("wait"), stream=streams),
)
jobs = st.lists(st.lists(doings, min_size=1, max_size=10), min_size=1, max_size=3)


def spared(steps: list[list[Do]], *whats: str) -> list[list[Do]]:
    """The job with nothing left of some of what it does."""
    gone = {"host": 0, "device": 0, "blocking": False}
    return [[replace(do, **gone) if do.what in whats else do for do in step] for step in steps]


def gain(steps: list[list[Do]], changed: list[list[Do]]) -> int:
    return int(several(steps)[1] - several(changed)[1])


@settings(max_examples=50, deadline=None)
@given(jobs)
def test_no_job_gains_more_from_hiding_its_communication_than_the_bound_says(job: list[list[Do]]) -> None:
    table = on_example(named("communication_exposed"), several(job)[0])
    changed = [[replace(d, device=0) if d.what == "exchange" else d for d in step] for step in job]
    assert int(table["at_most"].sum()) // len(job) >= gain(job, changed)


# Without the copy the host launches the second kernel while the first, which is shorter, is on its way.
@example([[Do("compute", device=1), Do("copy", blocking=True), Do("compute")]])
@settings(max_examples=50, deadline=None)
@given(jobs)
def test_no_job_gains_more_from_losing_its_copies_than_the_bound_says(job: list[list[Do]]) -> None:
    table = on_example(named("copy_summary_by_time"), several(job)[0])
    assert min(int(table["at_most"].sum()), table["beside"].max() or 0) // len(job) >= gain(
        job, spared(job, "copy")
    )


@settings(max_examples=50, deadline=None)
@given(jobs)
def test_no_job_gains_more_from_tensor_cores_than_the_bound_says(job: list[list[Do]]) -> None:
    table = on_example(named("precision_mix"), several(job)[0]).filter(precision="fp32")
    changed = [[replace(d, device=0) if d.what == "fp32" else d for d in step] for step in job]
    bound = int(table["span"].sum()) / len(job)
    assert int(bound) >= gain(job, changed)
    assert bound <= several(job)[1]


@settings(max_examples=50, deadline=None)
@given(jobs)
def test_no_job_gains_more_from_a_graph_of_its_launches_than_the_bound_says(job: list[list[Do]]) -> None:
    """A graph takes the host's part of launches, and the Python between them."""
    table = on_example(named("idle_summary"), several(job)[0]).filter(account="idle.launch_bound")
    launching = ("python", "compute", "fp32", "exchange")
    changed = [[replace(d, host=0) if d.what in launching else d for d in step] for step in job]
    for at_most in table["at_most"]:
        assert at_most >= gain(job, changed)


def test_a_stream_that_waits_behind_hidden_communication_gains_more_than_what_is_exposed() -> None:
    """50 ns of communication, 40 of them under one stream; 40 ns of another stream wait for all of it."""
    job = [
        [
            Do("exchange", device=50, stream=3),
            Do("compute", device=40, stream=0),
            Do("event", stream=1, other=3),
            Do("compute", device=40, stream=1),
        ]
    ]
    tables, step = several(job)
    table = on_example(named("communication_exposed"), tables)
    assert (step, table["in_steps"].to_list()) == (92, [10])
    assert gain(job, spared(job, "exchange")) == 50
    assert table["at_most"].to_list() == [50]
