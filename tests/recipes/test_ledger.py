"""Every nanosecond of every step lands in one account: the rules one by one, and an oracle that paints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lostflops.accounts import ACCOUNTS as DOCUMENTED
from lostflops.intervals.matching import matches
from lostflops.recipes import accounting, named
from lostflops.recipes.backward_threads import engines
from lostflops.recipes.idle.idle_gaps import idle_gaps
from lostflops.store.trace import ONE_PER_DEVICE
from lostflops.tables import COPIES, FRAMES, KERNELS, RANKS, STEPS, TABLES
from lostflops.testing import example_table, on_example

Rows = list[dict[str, Any]]
Tables = Mapping[str, Rows]
Spent = dict[tuple[int, int, str], int]

ORIGINS = st.sampled_from([0, -7, 1_754_000_000_000_000_000])
fast = settings(max_examples=15, deadline=None)

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
SAVE = "torch/serialization.py(943): save"
WAIT_TENSOR = "_c10d_functional::wait_tensor"
BEGIN, END = "cudaStreamBeginCapture", "cudaStreamEndCapture"
# What a host row of that name proves; None where it proves nothing by itself.
CAUSES: dict[str, str | None] = {
    LOADER: "idle.data_loading",
    SAVE: "idle.checkpoint_logging",
    "Python GC": "idle.garbage_collection",
    "cudaMalloc": "idle.memory_allocator",
    "cudaStreamSynchronize": "idle.host_synchronisation",
    "aten::item": "idle.host_synchronisation",
    "c10d::recv_": "idle.pipeline_bubble",
    BEGIN: None,
    END: None,
    WAIT_TENSOR: None,
    "cudaLaunchKernel": None,
    "aten::mm": None,
    "model.py(3): forward": None,
    "forward": None,
    "ProfilerStep#3": None,
}
NAMES = {
    "ranges": [LOADER, "forward", "ProfilerStep#3"],
    "operators": ["aten::mm", "aten::item", "c10d::recv_", WAIT_TENSOR],
    "frames": [SAVE, "Python GC", "model.py(3): forward"],
    "launches": ["cudaLaunchKernel", "cudaMalloc", "cudaStreamSynchronize", BEGIN, END],
}
MS = 1_000_000
# Jobs are drawn in small numbers, and stretched so that some of their calls and waits are long ones.
SCALES = st.sampled_from([1, 250_000])


def test_an_account_has_its_place_among_some_and_others_have_none() -> None:
    given = pl.Series(["compute", "copy", None, "nonsense", "idle.data_loading"])
    assert accounting.places(given, ["copy", "compute"]).tolist() == [1, 0, -1, -1, -1]
    assert accounting.places(given.drop_nulls(), ["copy"]).tolist() == [-1, 0, -1, -1]


def idle_of(
    steps: pl.LazyFrame,
    gaps: pl.LazyFrame,
    ranks: pl.LazyFrame,
    kernels: accounting.Frame,
    copies: accounting.Frame,
    launches: accounting.Frame,
    *named_rows: accounting.Frame,
) -> pl.LazyFrame:
    """The gaps by cause and name."""
    pairs = engines(*named_rows[:2])
    spans = accounting.host_by_cause(steps, ranks, kernels, copies, launches, pairs, *named_rows)
    numbered = idle_gaps(gaps.with_columns(account=pl.lit(None, dtype=pl.String)))
    stretches = accounting.idle_by_cause(
        numbered, ranks, kernels, copies, launches, spans, pairs, *named_rows
    )
    return accounting.with_names(stretches, launches, *named_rows)


def spent(given: Tables) -> Spent:
    """The ledger of these tables: time by rank, step and account."""
    tables = ("steps", "ranks", "kernels", "copies", "collectives", *NAMES)
    frames = {name: example_table(TABLES[name], given.get(name, ())) for name in tables}
    matched = matches(frames["collectives"], frames["ranks"]).lazy()
    runs = accounting.busy_and_gaps(frames["steps"], frames["kernels"], frames["copies"], matched).collect()
    host = [frames[name] for name in ("kernels", "copies", "launches", "operators", "ranges", "frames")]
    gaps = runs.filter(pl.col("account").is_null()).drop("account").lazy()
    idle = idle_of(frames["steps"], gaps, frames["ranks"], *host).collect()
    columns = ("rank", "step", "account", "start", "end")
    total: Spent = Counter()
    for table in (runs.drop_nulls("account"), idle):
        for rank, step, account, start, end in table.select(columns).iter_rows():
            total[rank, step, account] += end - start
    return dict(total)


def moved(tables: Tables, origin: int, scale: int = 1) -> dict[str, Rows]:
    times = {"start", "end", "arrival", "launch_start", "launch_end"}
    return {
        name: [
            {c: scale * v + origin if c in times and v is not None else v for c, v in row.items()}
            for row in rows
        ]
        for name, rows in tables.items()
    }


# -- drawing jobs -------------------------------------------------------------------------------------------


@st.composite
def jobs(draw: st.DrawFn) -> dict[str, Rows]:
    """One or two ranks with a few steps each, and rows of every table, also outside the steps.

    As in a real trace, every kernel and copy that communicates has its row in `collectives`.
    """
    tables: dict[str, Rows] = {"steps": [], "ranks": []}
    tables |= {name: [] for name in ("kernels", "copies", "collectives", *NAMES)}
    few = st.integers(0, 5)
    for rank in range(draw(st.integers(1, 2))):
        cpu = draw(st.booleans())
        tables["ranks"].append(
            {
                "rank": rank,
                "device_kind": "cpu" if cpu else "gpu",
                "main_thread": draw(st.sampled_from([7, None])),
            }
        )
        at = draw(st.integers(0, 5))
        for step in range(draw(st.integers(1, 3))):
            length = draw(st.integers(1, 25))
            tables["steps"].append({"rank": rank, "step": step, "start": at, "end": at + length})
            at += length + draw(st.sampled_from([0, 0, 3]))

        def span(rank: int = rank, until: int = at) -> dict[str, Any]:
            start = draw(st.integers(-4, until + 4))
            return {"rank": rank, "start": start, "end": start + draw(st.integers(0, 9))}

        def launched(row: dict[str, Any], cpu: bool = cpu) -> dict[str, Any]:
            thread = draw(st.sampled_from([7, 8]))
            if cpu:
                return row | {"thread": thread}
            ago, took = draw(st.sampled_from([None, -1, 0, 2, 11])), draw(st.sampled_from([None, 0, 1, 4]))
            if ago is None:
                return row
            called = row["start"] - ago
            returned = None if took is None else called + took
            by = draw(st.sampled_from([thread, thread, None]))  # a source may not say who called
            return row | {"launch_start": called, "launch_end": returned, "thread": by}

        for _ in range(draw(few)):
            family = draw(st.sampled_from(["gemm", "norm", "communication"]))
            tables["kernels"].append(launched(span()) | {"family": family})
        for _ in range(draw(st.integers(0, 3))):
            way = draw(st.sampled_from(["device to host", "host to device"]))
            tables["copies"].append(
                launched(span()) | {"communication": draw(st.booleans()), "direction": way}
            )
        for _ in range(draw(st.integers(0, 3))):
            row = span()
            tables["collectives"].append(row | {"arrival": row["start"] - draw(st.sampled_from([0, 2]))})
        talk = [row for row in tables["kernels"] if row["family"] == "communication"]
        talk += [row for row in tables["copies"] if row["communication"]]
        tables["collectives"] += [
            {"rank": rank, "start": row["start"], "end": row["end"], "arrival": row["start"]}
            for row in talk
            if row["rank"] == rank
        ]
        for name, known in NAMES.items():
            for _ in range(draw(few)):
                host = {"thread": draw(st.sampled_from([7, 8])), "name": draw(st.sampled_from(known))}
                tables[name].append(span() | host)
    return tables


# -- oracles ------------------------------------------------------------------------------------------------


def covers(row: Mapping[str, Any], t: int) -> bool:
    return row["start"] <= t < row["end"]


def busy_at(tables: Tables, collectives: Rows, rank: int, t: int) -> str | None:
    """The account of an instant in which the device works, or None."""

    def some(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        return [row for row in rows if row["rank"] == rank and covers(row, t)]

    if any(row["family"] != "communication" for row in some(tables["kernels"])):
        return "compute"
    talk = [
        "exposed" if c.get("wait") is None else "wait" if t < c["arrival"] + c["wait"] else "transfer"
        for c in some(collectives)
    ]
    for part in ("transfer", "wait", "exposed"):
        if part in talk:
            return f"communication.{part}"
    return "copy" if any(not row["communication"] for row in some(tables["copies"])) else None


def capturing(launches: Rows, t: int) -> bool:
    """Whether a thread with these calls captures at that moment: an end closes the last begin still open."""
    pairs: list[tuple[int, int]] = []
    open_calls: list[int] = []
    for row in sorted(launches, key=lambda r: (r["start"], r["end"])):
        if row["name"] == BEGIN:
            open_calls.append(row["start"])
        elif row["name"] == END and open_calls:
            pairs.append((open_calls.pop(), row["end"]))
    return any(start <= t < end for start, end in pairs)


def dispatching(mine: Callable[..., Rows], thread: int, t: int, long: int) -> bool:
    """Whether an operator of the thread launches at that moment, and does not compute by itself for long."""
    operators, calls = (
        [r for r in mine(name) if r["thread"] == thread] for name in ("operators", "launches")
    )
    lasting = [row for row in operators if row["end"] - row["start"] >= long]
    inner = [row for row in operators if row not in lasting] + calls

    def alone(at: int) -> bool:
        return any(covers(row, at) for row in lasting) and not any(covers(row, at) for row in inner)

    if not alone(t):
        return True
    first = last = t
    while alone(first - 1):
        first -= 1
    while alone(last + 1):
        last += 1
    return last + 1 - first < long


def reading(copies: Rows) -> list[tuple[int, int, int]]:
    """The calls (thread, start, end) that copy to the host and return when the copy has ended."""
    return [
        (row["thread"], row["launch_start"], row["launch_end"])
        for row in copies
        if row["direction"] == "device to host"
        and None not in (row.get("thread"), row.get("launch_start"), row.get("launch_end"))
        and row["launch_start"] < row["start"]
        and row["launch_end"] >= row["end"]
    ]


def idle_at(
    tables: Tables, gap: tuple[int, int, int], began: int, t: int, long: int, refills: bool = True
) -> str:
    """The cause of an instant inside a gap (rank, start, end) whose first piece began at `began`."""
    rank, _, end = gap

    def mine(*names: str) -> Rows:
        return [row for name in names for row in tables[name] if row["rank"] == rank]

    (facts,) = mine("ranks")
    cpu = facts["device_kind"] == "cpu"
    work = [row for row in mine("kernels", "copies") if row["start"] < row["end"]]
    coming = sorted(row["start"] for row in work if row["start"] >= end)
    ending = [row for row in work if coming and row["start"] == coming[0]]
    never = 10**9

    def order(row: dict[str, Any]) -> list[int]:
        known = (row.get(c) for c in ("launch_start", "launch_end", "thread"))
        return [never if value is None else value for value in known]

    first = min(ending, key=order, default={})
    launch, thread = first.get("launch_start"), first.get("thread")
    thread = facts["main_thread"] if thread is None else thread
    if launch is not None:
        ended = first.get("launch_end")
        returned = launch if ended is None else ended
        if t >= returned:
            waits = coming[0] - max(began, returned)
            return "idle.dependency" if waits < long else "idle.unrecorded"
    if (thread is None or (ending and launch is None)) and not cpu:
        return "idle.unrecorded"
    there = [
        (name, row) for name in NAMES for row in mine(name) if row["thread"] == thread and covers(row, t)
    ]
    if capturing([row for row in mine("launches") if row["thread"] == thread], t):
        return "idle.graph_capture"
    said = {CAUSES[row["name"]] for _, row in there}
    reads = reading(mine("copies"))
    if any(reader == thread and start <= t < end for reader, start, end in reads):
        said.add("idle.host_synchronisation")
    if cpu:  # there is no device that it could wait for
        said.discard("idle.host_synchronisation")
    for cause in accounting.HOST_CAUSES:
        if f"idle.{cause}" in said:
            return f"idle.{cause}"
    kinds = {kind for kind, row in there if row["name"] != "ProfilerStep#3"}
    if cpu and WAIT_TENSOR in (row["name"] for _, row in there):
        return "idle.host_synchronisation"
    if any(kind == "launches" and row["end"] - row["start"] >= long for kind, row in there):
        return "idle.long_call"
    answer = "idle.unexplained"
    if "launches" in kinds or ("operators" in kinds and not cpu and dispatching(mine, thread, t, long)):
        answer = "idle.launch_bound"
    elif kinds:
        answer = "idle.other_host_work"
    feeding = {row.get("thread") for row in work} - {None}
    # What any launching thread waits in is one wait where it touches; it costs what it took.
    waiting = sorted(
        [(start, end) for _, start, end in reads if start < end]
        + [
            (row["start"], row["end"])
            for row in mine("launches", "operators")
            if CAUSES[row["name"]] == "idle.host_synchronisation"
            and not cpu
            and row["thread"] in feeding
            and row["start"] < row["end"]
        ]
    )
    drained = any(start <= began <= end for start, end in waiting)
    called, returned = began, began
    for start, end in [*waiting, *reversed(waiting)] * len(waiting):
        if start <= returned and end >= called:
            called, returned = min(called, start), max(returned, end)
    paid = t < began + (returned - called)
    if not (refills and drained and paid):
        return answer
    if answer != "idle.launch_bound":  # what runs for long refills no queue, nor does what is not known
        alike = [idle_at(tables, gap, began, i, long, refills=False) == answer for i in range(*gap[1:])]
        at = t - gap[1]
        before = next((n for n, same in enumerate(reversed(alike[:at])) if not same), at)
        after = next((n for n, same in enumerate(alike[at:]) if not same), len(alike) - at)
        if before + after >= long:
            return answer
    return "idle.host_synchronisation"


def painted(tables: Tables, scale: int = 1) -> Spent:
    """The ledger, one instant after the other, of rows that are to be stretched by `scale`."""
    long = -(-MS // scale)
    frames = (example_table(TABLES[name], tables[name]) for name in ("collectives", "ranks"))
    matched = matches(*frames).to_dicts()
    result: Spent = Counter()
    for rank in {row["rank"] for row in tables["steps"]}:
        steps = sorted((s for s in tables["steps"] if s["rank"] == rank), key=lambda s: s["start"])
        busy = {
            t: busy_at(tables, matched, rank, t) for step in steps for t in range(step["start"], step["end"])
        }
        for step in steps:
            for t in range(step["start"], step["end"]):
                account = busy[t]
                if account is None:
                    start = end = began = t
                    while start - 1 >= step["start"] and busy[start - 1] is None:
                        start -= 1
                    while end < step["end"] and busy[end] is None:
                        end += 1
                    while busy.get(began - 1, "outside") is None:
                        began -= 1
                    account = idle_at(tables, (rank, start, end), began, t, long)
                result[rank, step["step"], account] += scale
    return dict(result)


@settings(max_examples=40, deadline=None)
@given(jobs(), ORIGINS, SCALES)
def test_the_ledger_is_what_painting_every_instant_gives(
    job: dict[str, Rows], origin: int, scale: int
) -> None:
    answer = spent(moved(job, origin, scale))
    assert answer == painted(job, scale)
    for step in job["steps"]:
        accounts = [
            ns for (rank, number, _), ns in answer.items() if (rank, number) == (step["rank"], step["step"])
        ]
        assert sum(accounts) == scale * (step["end"] - step["start"])


@fast
@given(jobs(), st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(job: dict[str, Rows], random: Any) -> None:
    shuffled = {name: random.sample(rows, len(rows)) for name, rows in job.items()}
    assert spent(shuffled) == spent(job)


# 0.25 ms of a pause of which nothing was recorded stand behind the cut.
LATE_CUT: dict[str, Rows] = {
    "steps": [{"rank": 1, "step": 0, "start": 4, "end": 13}],
    "ranks": [{"rank": 1, "device_kind": "gpu", "main_thread": 7}],
    "kernels": [],
    "copies": [{"rank": 1, "start": 0, "end": 1, "thread": 8, "communication": False}],
    "launches": [{"rank": 1, "start": 2, "end": 11, "thread": 8, "name": "cudaStreamSynchronize"}],
}


@fast
@example(LATE_CUT, 12, 250_000)
@given(jobs(), st.integers(0, 30), SCALES)
def test_splitting_a_step_splits_its_accounts(job: dict[str, Rows], at: int, scale: int) -> None:
    """A gap that is cut keeps its length, but what ends its first piece is the same, so causes stay too."""
    cut: Rows = []
    for step in job["steps"]:
        inside = step["start"] < at < step["end"]
        cut.append(step | {"end": at} if inside else step)
        cut += [step | {"start": at, "step": step["step"] + 1000}] if inside else []

    def by_step(steps: Rows) -> Counter[tuple[int, int, str]]:
        total: Counter[tuple[int, int, str]] = Counter()
        for (rank, step, account), ns in spent(moved(job | {"steps": steps}, 0, scale)).items():
            total[rank, step % 1000, account] += ns
        return total

    assert by_step(cut) == by_step(job["steps"])


@fast
@given(jobs(), st.data())
def test_moving_a_kernel_to_another_class_moves_its_nanoseconds_only(job: dict[str, Rows], data: Any) -> None:
    plain = [n for n, row in enumerate(job["kernels"]) if row["family"] != "communication"]
    if not plain:
        return
    chosen = data.draw(st.sampled_from(plain))
    row = job["kernels"][chosen]

    def instants(kernels: Rows, collectives: Rows) -> dict[tuple[int, int], str | None]:
        tables = {
            "steps": job["steps"],
            "kernels": kernels,
            "copies": job["copies"],
            "collectives": collectives,
        }
        frames = (example_table(TABLES[name], rows) for name, rows in tables.items())
        table = accounting.busy_and_gaps(*frames).select("rank", "start", "end", "account").collect()
        return {(rank, t): of for rank, start, end, of in table.iter_rows() for t in range(start, end)}

    kernels = [r | {"family": "communication"} if n == chosen else r for n, r in enumerate(job["kernels"])]
    collectives = [*job["collectives"], {c: row[c] for c in ("rank", "start", "end")}]
    before, after = instants(job["kernels"], job["collectives"]), instants(kernels, collectives)
    assert before.keys() == after.keys()
    changed = {at for at in before if before[at] != after[at]}
    assert changed <= {(row["rank"], t) for t in range(row["start"], row["end"])}
    assert {(before[at], after[at]) for at in changed} <= {("compute", "communication.exposed")}


# -- busy time, rule by rule --------------------------------------------------------------------------------


def runs(**tables: Rows) -> list[tuple[int, int, str | None]]:
    table = on_example(named("device_runs"), {"ranks": [{}], **tables})
    return table.select("start", "end", "account").rows()


def test_an_event_that_crosses_a_step_s_end_is_cut_there() -> None:
    assert spent(
        {
            "steps": [{"step": 1, "start": 0, "end": 10}, {"step": 2, "start": 10, "end": 17}],
            "kernels": [{"start": 4, "end": 13, "launch_start": -2, "thread": 7}],
            "ranks": [{}],
        }
    ) == {
        (0, 1, "compute"): 6,
        (0, 1, "idle.dependency"): 4,
        (0, 2, "compute"): 3,
        (0, 2, "idle.unrecorded"): 4,
    }


def test_while_one_operation_transfers_another_s_waiting_costs_nothing() -> None:
    waits = {"rank": 0, "start": 0, "end": 20, "kind": "all-reduce", "group": "a [0, 1]"}
    moves = {"rank": 0, "start": 6, "end": 12, "kind": "all-reduce", "group": "b [0, 2]"}
    others = [
        {"rank": 1, "start": 17, "end": 21, "kind": "all-reduce", "group": "a [0, 1]"},
        {"rank": 2, "start": 8, "end": 12, "kind": "all-reduce", "group": "b [0, 2]"},
    ]
    assert runs(
        steps=[{"step": 1, "start": 0, "end": 25}],
        kernels=[],
        collectives=[waits, moves, *others],
        ranks=[{"rank": r, "world_size": 3} for r in range(3)],
    ) == [
        (0, 8, "communication.wait"),
        (8, 12, "communication.transfer"),
        (12, 17, "communication.wait"),
        (17, 20, "communication.transfer"),
        (20, 25, None),
    ]


def test_a_rank_waits_from_its_arrival_but_the_device_only_from_the_start() -> None:
    """A CPU rank is ready when it calls; the ledger counts what the thread that communicates does."""
    rows = [
        {"rank": 0, "arrival": 2, "start": 5, "end": 30, "kind": "all-reduce"},
        {"rank": 1, "arrival": 11, "start": 12, "end": 29, "kind": "all-reduce"},
    ]
    steps = [{"step": 1, "start": 0, "end": 30}]
    ranks = [{"rank": r, "world_size": 2} for r in (0, 1)]
    assert runs(steps=steps, kernels=[], collectives=rows, ranks=ranks) == [
        (0, 5, None),
        (5, 11, "communication.wait"),
        (11, 30, "communication.transfer"),
    ]


def test_a_copy_that_carries_a_collective_is_communication_not_a_copy() -> None:
    assert runs(
        steps=[{"step": 1, "start": 0, "end": 12}],
        kernels=[],
        copies=[{"start": 0, "end": 7, "communication": True}, {"start": 5, "end": 9}],
        collectives=[{"start": 0, "end": 7}],
    ) == [(0, 7, "communication.exposed"), (7, 9, "copy"), (9, 12, None)]


def test_the_accounts_of_code_and_documentation_are_the_same() -> None:
    assert set(accounting.ACCOUNTS) == set(DOCUMENTED)


# -- idle time, rule by rule --------------------------------------------------------------------------------


def causes(**tables: Rows) -> list[tuple[int, int, str]]:
    """Causes of idleness between a kernel that ends at 20 and one at 90 that thread 7 launches at 77."""
    given: dict[str, Rows] = {
        "steps": [{"step": 1, "start": 0, "end": 100}],
        "kernels": [
            {"start": 0, "end": 20, "launch_start": -9, "thread": 7},
            {"start": 90, "end": 100, "launch_start": 77, "thread": 7},
        ],
        "ranks": [{"device_kind": "gpu", "main_thread": 7}],
        **tables,
    }
    return on_example(named("idle_causes"), given).select("start", "end", "account").rows()


def host(start: int, end: int, name: str, thread: int = 7) -> dict[str, Any]:
    return {"start": start, "end": end, "name": name, "thread": thread}


def test_what_no_row_covers_stays_unexplained_and_after_the_launch_the_work_is_on_its_way() -> None:
    assert causes() == [(20, 77, "idle.unexplained"), (77, 90, "idle.dependency")]


@pytest.mark.parametrize("table", NAMES)
def test_a_named_cause_claims_the_instants_it_covers(table: str) -> None:
    for name in NAMES[table]:
        cause = CAUSES[name]
        if cause is not None:
            assert causes(**{table: [host(31, 44, name)]}) == [
                (20, 31, "idle.unexplained"),
                (31, 44, cause),
                (44, 77, "idle.unexplained"),
                (77, 90, "idle.dependency"),
            ]


def test_only_the_thread_that_launches_counts() -> None:
    assert causes(ranges=[host(31, 44, LOADER, thread=8)]) == causes()


def test_operators_and_launches_are_dispatch_and_other_names_other_work() -> None:
    assert causes(
        operators=[host(31, 44, "aten::mm")],
        launches=[host(40, 47, "cudaLaunchKernel")],
        ranges=[host(46, 52, "forward"), host(0, 100, "ProfilerStep#3")],
    ) == [
        (20, 31, "idle.unexplained"),
        (31, 44, "idle.launch_bound"),  # of the operator
        (44, 47, "idle.launch_bound"),  # of the call
        (47, 52, "idle.other_host_work"),
        (52, 77, "idle.unexplained"),
        (77, 90, "idle.dependency"),
    ]


def test_a_named_cause_outranks_dispatch_and_one_cause_another() -> None:
    assert causes(
        operators=[host(25, 70, "aten::mm")],
        launches=[host(35, 50, "cudaMalloc")],
        frames=[host(30, 40, SAVE)],
    ) == [
        (20, 25, "idle.unexplained"),
        (25, 30, "idle.launch_bound"),
        (30, 40, "idle.checkpoint_logging"),
        (40, 50, "idle.memory_allocator"),
        (50, 70, "idle.launch_bound"),
        (70, 77, "idle.unexplained"),
        (77, 90, "idle.dependency"),
    ]


def test_a_queue_drained_by_waiting_is_refilled_on_its_account() -> None:
    """Nameless host time until the next launch is the price of the wait; what has a name keeps it."""
    assert causes(
        launches=[host(-34, 23, "cudaStreamSynchronize")],
        operators=[host(30, 40, "aten::mm")],
        ranges=[host(50, 60, LOADER)],
    ) == [
        (20, 23, "idle.host_synchronisation"),
        (23, 30, "idle.host_synchronisation"),
        (30, 40, "idle.host_synchronisation"),
        (40, 50, "idle.host_synchronisation"),
        (50, 60, "idle.data_loading"),
        (60, 77, "idle.host_synchronisation"),
        (77, 90, "idle.dependency"),
    ]


@pytest.mark.parametrize(
    ("length", "account"),
    [(1_000_000, "idle.other_host_work"), (999_999, "idle.host_synchronisation")],
)
@pytest.mark.parametrize("recorded", [True, False])
def test_what_lasts_a_millisecond_after_a_wait_refills_no_queue(
    length: int, account: str, recorded: bool
) -> None:
    """A function, or what no row tells: a loader without a mark starved the device as long."""
    late = 30 + length
    unknown = "idle.unexplained" if length >= MS else account
    answer = causes(
        steps=[{"step": 1, "start": 0, "end": late + 100}],
        kernels=[
            {"start": 0, "end": 20, "launch_start": -9, "launch_end": -4, "thread": 7},
            {"start": late + 90, "end": late + 100, "launch_start": late + 70, "launch_end": late + 77,
             "thread": 7},
        ],
        launches=[host(-3_000_000, 23, "cudaStreamSynchronize")],
        operators=[host(23, 30, "aten::mm"), host(late, late + 77, "aten::mm")],
        frames=[host(30, late, "train.py(7): tally")] if recorded else [],
    )  # fmt: skip
    assert answer[2] == (30, late, account if recorded else unknown)
    assert {name for start, _, name in answer if start != 30} == {
        "idle.host_synchronisation",
        "idle.dependency",
    }


def test_a_wait_costs_no_more_than_it_took() -> None:
    """Without the wait from 2 to 23 the host would have launched 21 ns sooner, at 56, and no sooner."""
    answer = causes(
        launches=[host(2, 23, "cudaStreamSynchronize"), host(70, 77, "cudaLaunchKernel")],
        operators=[host(30, 60, "aten::mm")],
    )
    assert answer == [
        (20, 23, "idle.host_synchronisation"),
        (23, 30, "idle.host_synchronisation"),
        (30, 41, "idle.host_synchronisation"),
        (41, 60, "idle.launch_bound"),
        (60, 70, "idle.unexplained"),
        (70, 77, "idle.launch_bound"),
        (77, 90, "idle.dependency"),
    ]


@pytest.mark.parametrize(
    "call",
    [
        host(2, 19, "cudaStreamSynchronize"),  # it had returned before the queue was empty
        host(21, 23, "cudaStreamSynchronize"),  # the queue was empty before it was called
        host(2, 23, "cudaStreamSynchronize", thread=8),  # the thread launches nothing
        host(2, 23, "cudaLaunchKernel"),
    ],
)
def test_only_a_wait_of_a_launching_thread_that_sees_the_queue_run_dry_drains_it(
    call: dict[str, Any],
) -> None:
    assert (40, 77, "idle.unexplained") in causes(launches=[call, host(39, 40, "cudaLaunchKernel")])


def test_a_long_wait_drains_though_another_call_came_and_went_inside_it() -> None:
    calls = [host(-34, 23, "cudaDeviceSynchronize"), host(5, 6, "cudaEventSynchronize")]
    assert {account for _, _, account in causes(launches=calls)} == {
        "idle.host_synchronisation",
        "idle.dependency",
    }


def test_a_gap_cut_by_a_step_s_end_was_drained_where_it_began() -> None:
    answer = causes(
        steps=[{"step": 1, "start": 0, "end": 50}, {"step": 2, "start": 50, "end": 100}],
        launches=[host(-34, 23, "cudaStreamSynchronize")],
    )
    assert answer == [
        (20, 23, "idle.host_synchronisation"),
        (23, 50, "idle.host_synchronisation"),
        (50, 77, "idle.host_synchronisation"),
        (77, 90, "idle.dependency"),
    ]


def test_a_gap_at_a_step_s_end_is_ended_by_the_work_after_it() -> None:
    assert causes(steps=[{"step": 1, "start": 0, "end": 60}], ranges=[host(31, 44, LOADER)]) == [
        (20, 31, "idle.unexplained"),
        (31, 44, "idle.data_loading"),
        (44, 60, "idle.unexplained"),
    ]


def test_work_whose_launch_was_not_recorded_says_nothing_of_the_host() -> None:
    kernels = [{"start": 0, "end": 20, "launch_start": -9, "thread": 7}, {"start": 90, "end": 100}]
    assert causes(kernels=kernels, ranges=[host(31, 44, LOADER)]) == [(20, 90, "idle.unrecorded")]


def test_when_no_work_follows_the_main_thread_tells() -> None:
    kernels = [{"start": 0, "end": 20, "launch_start": -9, "thread": 8}]
    assert causes(kernels=kernels, ranges=[host(31, 44, LOADER)]) == [
        (20, 31, "idle.unexplained"),
        (31, 44, "idle.data_loading"),
        (44, 100, "idle.unexplained"),
    ]
    unknown = [{"device_kind": "gpu"}]
    assert causes(kernels=kernels, ranges=[host(31, 44, LOADER)], ranks=unknown) == [
        (20, 100, "idle.unrecorded")
    ]


def launched(call: int, back: int, start: int, **more: Any) -> dict[str, Any]:
    """A kernel of 7 ns that thread 7 launches."""
    return {
        "start": start,
        "end": start + 7,
        "launch_start": call,
        "launch_end": back,
        "thread": 7,
        **more,
    }


def test_inside_the_launching_call_it_is_the_host_that_is_late() -> None:
    kernels = [launched(-9, -4, 13), launched(77, 84, 90)]
    call = host(77, 84, "cudaLaunchKernel")
    tail = [(84, 90, "idle.dependency"), (97, 100, "idle.unexplained")]
    assert causes(kernels=kernels, launches=[call]) == [
        (0, 13, "idle.dependency"),
        (20, 77, "idle.unexplained"),
        (77, 84, "idle.launch_bound"),
        *tail,
    ]
    nested = [call, host(79, 82, "cudaMalloc")]
    assert causes(kernels=kernels, launches=nested)[2:] == [
        (77, 79, "idle.launch_bound"),
        (79, 82, "idle.memory_allocator"),
        (82, 84, "idle.launch_bound"),
        *tail,
    ]
    loading = [host(75, 83, "Lazy Function Loading")]
    assert causes(kernels=kernels, launches=[call], ranges=loading)[2:] == [
        (75, 83, "idle.compilation"),
        (83, 84, "idle.launch_bound"),
        *tail,
    ]


def test_work_that_begins_inside_its_call_leaves_nothing_to_dependency() -> None:
    kernels = [launched(-9, -4, 13), launched(77, 95, 90)]
    calls = [host(77, 95, "hipMemcpyWithStream")]
    assert causes(kernels=kernels, launches=calls)[1:] == [
        (20, 77, "idle.unexplained"),
        (77, 90, "idle.host_synchronisation"),
        (97, 100, "idle.unexplained"),
    ]


@pytest.mark.parametrize(
    ("length", "expected"),
    [(MS - 1, "idle.launch_bound"), (MS, "idle.long_call"), (9 * MS, "idle.long_call")],
)
def test_a_call_of_a_millisecond_is_not_sold_as_launch_bound(length: int, expected: str) -> None:
    """Whether it launches the next work or not, and unless its name or a row in it tells the cause."""
    steps = [{"step": 1, "start": 0, "end": 20 * MS}]
    kernels = [launched(5 + length, 9 + length, 12 + length)]

    def first(*calls: dict[str, Any], **more: Any) -> tuple[int, int, str]:
        return causes(steps=steps, kernels=kernels, launches=[*calls], **more)[1]

    for name in ("cudaLaunchKernel", "cudaStreamCreateWithFlags"):
        call = host(3, 3 + length, name)
        assert first(call) == (3, 3 + length, expected)
        assert first(call, operators=[host(3, 3 + length, "aten::mm")])[2] == expected
    assert first(host(3, 3 + length, "cudaMalloc"))[2] == "idle.memory_allocator"


def test_a_long_call_keeps_its_name_after_the_queue_was_drained() -> None:
    steps = [{"step": 1, "start": 0, "end": 9 * MS}]
    calls = [
        host(2, 23, "cudaStreamSynchronize"),
        host(30, 33, "cudaLaunchKernel"),
        host(40, 40 + 3 * MS, "hipLaunchKernel"),
    ]
    kernels = [launched(-9, -4, 13), launched(40, 40 + 3 * MS, 45 + 3 * MS)]
    assert causes(steps=steps, kernels=kernels, launches=calls)[1:5] == [
        (20, 23, "idle.host_synchronisation"),
        (23, 30, "idle.host_synchronisation"),
        (30, 33, "idle.host_synchronisation"),
        (33, 40, "idle.host_synchronisation"),
    ]
    assert causes(steps=steps, kernels=kernels, launches=calls)[5:7] == [
        (40, 40 + 3 * MS, "idle.long_call"),
        (40 + 3 * MS, 45 + 3 * MS, "idle.dependency"),
    ]


@pytest.mark.parametrize(("waits", "expected"), [(MS - 1, "idle.dependency"), (MS, "idle.unrecorded")])
def test_launched_work_that_waits_for_long_waits_for_what_was_not_recorded(waits: int, expected: str) -> None:
    steps = [{"step": 1, "start": 0, "end": 20 * MS}]
    kernels = [launched(-9, -4, 13), launched(40, 50, 50 + waits)]
    assert causes(steps=steps, kernels=kernels)[2] == (50, 50 + waits, expected)
    # What other work explains of the wait does not count.
    early = [launched(-9, -4, 13), launched(-3, -1, 20 + waits)]
    assert causes(steps=steps, kernels=early)[1] == (20, 20 + waits, expected)


def test_an_operator_that_launches_nothing_for_long_computes_on_the_cpu() -> None:
    """`aten::sort` of a CPU tensor takes 3 ms; one that launches meanwhile does not."""
    late = 10 + 3 * MS
    kernels = [launched(-9, -8, 0), launched(late + 5, late + 8, late + 20)]
    given: dict[str, Any] = {"steps": [{"step": 1, "start": 0, "end": late + 40}], "kernels": kernels}
    sort = host(10, late, "aten::sort")
    assert (10, late, "idle.other_host_work") in causes(operators=[sort], **given)
    calls = [host(10 + n * MS // 2, 12 + n * MS // 2, "cudaLaunchKernel") for n in range(6)]
    accounts = {account for _, _, account in causes(operators=[sort], launches=calls, **given)}
    assert "idle.launch_bound" in accounts and "idle.other_host_work" not in accounts


def test_a_kernel_that_was_lost_between_two_may_have_run_where_nothing_seems_to() -> None:
    """Another was launched from 25 to 28: the host then waits for the device until 60 and launches at 77."""

    def call(start: int, end: int, name: str, number: int) -> dict[str, Any]:
        return host(start, end, name) | {"correlation": number}

    kernels = [
        {"start": 0, "end": 20, "launch_start": -9, "launch_end": -8, "thread": 7, "correlation": 1},
        {"start": 90, "end": 100, "launch_start": 77, "launch_end": 79, "thread": 7, "correlation": 3},
    ]
    calls = [
        call(-9, -8, "cudaLaunchKernel", 1),
        call(25, 28, "cudaLaunchKernel", 2),
        call(30, 60, "cudaStreamSynchronize", 9),
        call(77, 79, "cudaLaunchKernel", 3),
    ]
    later = call(80, 81, "cudaLaunchKernel", 4)  # was queued when the recording ended
    whole = [*kernels, {**kernels[1], "start": 20, "end": 22, "correlation": 2, "launch_start": 25}]
    assert causes(kernels=kernels, launches=[*calls, later])[-4:] == [
        (30, 60, "idle.unrecorded"),
        (60, 77, "idle.unexplained"),
        (77, 79, "idle.launch_bound"),
        (79, 90, "idle.unrecorded"),
    ]
    for made in (causes(kernels=whole, launches=calls), causes(kernels=kernels, launches=calls[::2])):
        assert {account for _, _, account in made} & {"idle.unrecorded"} == set()
    # Launched before what ran before, it has run before.
    before = [{**kernels[0], "launch_start": 29}, kernels[1]]
    assert "idle.unrecorded" not in {account for _, _, account in causes(kernels=before, launches=calls)}


def test_a_step_s_end_does_not_shorten_a_wait() -> None:
    steps = [{"step": 1, "start": 0, "end": 50 + MS // 2}, {"step": 2, "start": 50 + MS // 2, "end": 2 * MS}]
    kernels = [launched(-9, -4, 13), launched(40, 50, 50 + MS)]
    assert causes(steps=steps, kernels=kernels)[2:4] == [
        (50, 50 + MS // 2, "idle.unrecorded"),
        (50 + MS // 2, 50 + MS, "idle.unrecorded"),
    ]


def test_what_a_thread_does_while_it_captures_a_graph_is_capture() -> None:
    """Also what proves another cause elsewhere, and calls of a millisecond."""
    calls = [host(25, 28, BEGIN), host(30, 33, "cudaMalloc"), host(35, 38, "cudaLaunchKernel")]
    assert causes(launches=[*calls, host(60, 64, END)], ranges=[host(22, 70, "forward")]) == [
        (20, 22, "idle.unexplained"),
        (22, 25, "idle.other_host_work"),
        (25, 64, "idle.graph_capture"),
        (64, 70, "idle.other_host_work"),
        (70, 77, "idle.unexplained"),
        (77, 90, "idle.dependency"),
    ]
    assert "idle.graph_capture" not in {of for *_, of in causes(launches=calls)}
    elsewhere = [host(25, 28, BEGIN, thread=8), host(60, 64, END, thread=8)]
    assert causes(launches=elsewhere) == causes()


def test_each_stretch_is_named_by_the_deepest_row_of_at_least_half_of_it() -> None:
    table = on_example(
        named("idle_causes"),
        {
            "steps": [{"step": 1, "start": 0, "end": 100}],
            "kernels": [launched(-9, -4, 13), launched(77, 81, 90, end=100)],
            "ranges": [host(21, 40, LOADER), host(40, 70, "forward"), host(0, 99, "backward", thread=8)],
            "frames": [
                host(22, 36, "torch/utils/data/dataloader.py(720): __next__"),
                host(41, 60, "model.py(3): forward"),
                host(42, 50, "model.py(9): mlp"),
            ],
            "operators": [host(48, 56, "aten::mm"), host(58, 59, "aten::add")],
            "launches": [host(58, 59, "cudaLaunchKernel"), host(77, 81, "cudaLaunchKernel")],
            "ranks": [{"device_kind": "gpu", "main_thread": 7}],
        },
    )
    other = "idle.other_host_work"
    assert table.select("start", "end", "account", "name").rows()[1:] == [
        (20, 21, "idle.unexplained", None),
        (21, 40, "idle.data_loading", "torch/utils/data/dataloader.py(720): __next__"),
        (40, 48, other, "model.py(9): mlp"),
        (48, 50, "idle.launch_bound", "aten::mm in model.py(9): mlp"),
        (50, 56, "idle.launch_bound", "aten::mm in model.py(3): forward"),
        (56, 58, other, "model.py(3): forward"),
        (58, 59, "idle.launch_bound", "cudaLaunchKernel in model.py(3): forward"),
        (59, 70, other, "forward"),
        (70, 77, "idle.unexplained", None),
        (77, 81, "idle.launch_bound", "cudaLaunchKernel"),
        (81, 90, "idle.dependency", None),
    ]


def test_a_launch_that_seems_later_than_its_work_leaves_the_gap_to_the_host() -> None:
    kernels = [{"start": 0, "end": 20}, {"start": 90, "end": 100, "launch_start": 94, "thread": 7}]
    assert causes(kernels=kernels, operators=[host(31, 96, "aten::mm")]) == [
        (20, 31, "idle.unexplained"),
        (31, 90, "idle.launch_bound"),
    ]


def test_of_works_that_begin_together_the_earliest_launched_ends_the_gap() -> None:
    kernels = [
        {"start": 0, "end": 20, "launch_start": -9, "thread": 7},
        {"start": 90, "end": 100},
        {"start": 90, "end": 97, "launch_start": 85, "thread": 7},
    ]
    copies = [{"start": 90, "end": 93, "launch_start": 66, "thread": 8}]
    assert causes(kernels=kernels, copies=copies) == [
        (20, 66, "idle.unexplained"),
        (66, 90, "idle.dependency"),
    ]


def on_cpu(**tables: Rows) -> list[tuple[int, int, str]]:
    return causes(
        kernels=[{"start": 0, "end": 20, "thread": 7}, {"start": 90, "end": 100, "thread": 7}],
        ranks=[{"device_kind": "cpu", "main_thread": 7}],
        **tables,
    )


def test_on_a_cpu_only_rank_a_call_of_communication_waits_and_nothing_is_launch_bound() -> None:
    assert on_cpu(
        operators=[
            host(21, 60, "autograd::engine::evaluate_function: AddmmBackward0"),
            host(30, 41, WAIT_TENSOR),
            host(62, 67, "c10d::recv_"),
            host(70, 74, "c10d::allreduce_"),
        ]
    ) == [
        (20, 21, "idle.unexplained"),
        (21, 30, "idle.other_host_work"),
        (30, 41, "idle.host_synchronisation"),
        (41, 60, "idle.other_host_work"),
        (60, 62, "idle.unexplained"),
        (62, 67, "idle.pipeline_bubble"),
        (67, 70, "idle.unexplained"),
        (70, 74, "idle.host_synchronisation"),
        (74, 90, "idle.unexplained"),
    ]


def test_on_a_cpu_only_rank_reading_a_value_waits_for_no_device() -> None:
    item = "<built-in method item of Tensor object at 0x7f11dcef5090>"
    assert on_cpu(frames=[host(20, 90, "train.py(3): clip"), host(30, 41, item)]) == [
        (20, 90, "idle.other_host_work")
    ]
    assert (30, 41, "idle.host_synchronisation") in causes(frames=[host(30, 41, item)])


def test_on_a_gpu_rank_the_same_call_only_dispatches() -> None:
    assert (30, 41, "idle.launch_bound") in causes(operators=[host(30, 41, WAIT_TENSOR)])


def test_on_a_cpu_only_rank_the_thread_that_works_next_tells() -> None:
    assert on_cpu(ranges=[host(31, 44, LOADER)])[1] == (31, 44, "idle.data_loading")
    assert on_cpu(ranges=[host(31, 44, LOADER, thread=8)]) == [(20, 90, "idle.unexplained")]


def test_a_rank_without_any_work_is_idle_throughout() -> None:
    assert causes(kernels=[]) == [(0, 100, "idle.unexplained")]
    assert causes(kernels=[], ranks=[]) == [(0, 100, "idle.unrecorded")]
    nobody = [{"device_kind": "cpu"}]
    assert causes(kernels=[], ranks=nobody) == [(0, 100, "idle.unexplained")]


def test_a_wait_while_another_device_of_the_process_works_is_for_that_one() -> None:
    """Where both devices are one process's, on one host and thread; what is on its way stays so."""
    tables: dict[str, Rows] = {
        "steps": [{"rank": 0, "step": 1, "start": 0, "end": 100}],
        "kernels": [
            {"rank": 0, "start": 0, "end": 20, "launch_start": -9, "thread": 7},
            {"rank": 0, "start": 90, "end": 100, "launch_start": 77, "thread": 7},
            {"rank": 1, "start": 35, "end": 50},
            {"rank": 1, "start": 80, "end": 85},
        ],
        "copies": [{"rank": 1, "start": 62, "end": 65}],
        "launches": [{"rank": 0, **host(30, 60, "cudaStreamSynchronize")}],
    }

    def found(main: int | None = 7, **second: Any) -> list[tuple[int, int, str]]:
        one = {"device_kind": "gpu", "main_thread": main, "host": 1, "rank_source": ONE_PER_DEVICE}
        given = {**tables, "ranks": [{"rank": 0, **one}, {"rank": 1, **one, **second}]}
        return on_example(named("idle_causes"), given).select("start", "end", "account").rows()

    alone = [
        (20, 30, "idle.unexplained"),
        (30, 60, "idle.host_synchronisation"),
        (60, 77, "idle.unexplained"),
        (77, 90, "idle.dependency"),
    ]
    assert (
        found()
        == found(main=None)
        == [
            (20, 30, "idle.unexplained"),
            (30, 35, "idle.host_synchronisation"),
            (35, 50, "idle.other_device"),
            (50, 60, "idle.host_synchronisation"),
            (60, 62, "idle.unexplained"),
            (62, 65, "idle.other_device"),
            (65, 77, "idle.unexplained"),
            (77, 90, "idle.dependency"),
        ]
    )
    assert found(host=2) == found(main_thread=8) == found(rank_source="metadata") == alone


def test_rows_without_a_thread_claim_nothing() -> None:
    rows = [{"start": 31, "end": 44, "name": LOADER, "thread": None}]
    assert causes(ranges=rows) == causes()
    assert causes(ranges=rows, kernels=[{"start": 90, "end": 100}]) == [(0, 90, "idle.unrecorded")]


def test_the_layers_may_be_absent() -> None:
    """A trace without a table gives None for it; the ledger still adds up."""
    steps = example_table(STEPS, [{"step": 1, "start": 3, "end": 9}])
    idle = accounting.busy_and_gaps(steps, None, None, None)
    assert idle.collect().rows(named=True) == [{"rank": 0, "step": 1, "start": 3, "end": 9, "account": None}]
    ranks = example_table(RANKS, [{}])
    found = idle_of(steps, idle.drop("account"), ranks, None, None, None, None, None, None).collect()
    assert found.select("start", "end", "account").rows() == [(3, 9, "idle.unrecorded")]
    plain = pl.LazyFrame(
        {"rank": [0], "start": [4], "end": [6]}, {"rank": pl.Int32, "start": pl.Int64, "end": pl.Int64}
    )
    assert accounting.busy_and_gaps(steps, None, None, plain).collect()["account"].to_list() == [
        None,
        "communication.exposed",
        None,
    ]


def test_many_gaps_and_deep_stacks_take_no_long() -> None:
    """A hundred thousand kernels with a gap after each, and a stack of frames over all of them."""
    many = 100_000
    starts = pl.int_range(many, eager=True) * 10
    kernels = KERNELS.conform(
        pl.DataFrame({"rank": 0, "start": starts, "end": starts + 7, "launch_start": starts - 5, "thread": 7})
    ).with_columns(pl.col("family").fill_null("gemm"))
    depth = 30
    frames = FRAMES.conform(
        pl.DataFrame(
            {
                "rank": 0,
                "start": range(depth),
                "end": 10 * many - pl.int_range(depth, eager=True),
                "thread": 7,
                "name": "model.py(3): forward",
            }
        )
    )
    steps = example_table(STEPS, [{"step": 1, "start": 0, "end": 10 * many}])
    gaps = accounting.busy_and_gaps(steps, kernels.lazy(), COPIES.empty().lazy(), None).filter(
        pl.col("account").is_null()
    )
    found = idle_of(
        steps,
        gaps.drop("account"),
        example_table(RANKS, [{"main_thread": 7}]),
        kernels.lazy(),
        None,
        None,
        None,
        None,
        frames.lazy(),
    )
    totals = found.group_by("account").agg((pl.col("end") - pl.col("start")).sum()).collect()
    assert totals.filter(pl.col("account") == "idle.dependency")["end"].item() == 3 * (many - 1)
    assert totals["end"].sum() == 3 * many


def test_what_is_no_account_has_no_place_among_some() -> None:
    asked = pl.Series(["compute", "nothing of the kind", None, "copy", "idle.host"], dtype=pl.String)
    assert accounting.places(asked, ("copy", "compute")).tolist() == [1, -1, -1, 0, -1]
    assert accounting.places(asked[:1], ("copy", "compute")).tolist() == [1]
