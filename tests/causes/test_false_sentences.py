"""Sentences of the page that were false: of late ranks, of one pause in two steps, of copies, of a ring."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

import lostflops
from lostflops.accounts import IDLE
from lostflops.causes import findings
from lostflops.causes.copies import join_copies
from lostflops.causes.given import NAMES, Given, has_stages
from lostflops.causes.idle.occurrence import told_once
from lostflops.causes.lateness import late_when
from lostflops.causes.names import made_of, spoken
from lostflops.causes.one_rank.late import Excess, Late, also, says
from lostflops.causes.own_time.together import late_together
from lostflops.causes.page_findings import PageFindings
from lostflops.causes.purposes import surely_waited
from lostflops.causes.waited_for import dearer
from lostflops.finding import Finding
from lostflops.recipes.copies.cost import pinning_helps
from lostflops.recipes.idle.costs import idle_costs_step_time
from lostflops.recipes.idle.gaps import one_gap_is_most, over_steps
from made_runs import Job, Work, made

MS = 1_000_000
COMPUTE, DATA, PYTHON, WAIT = "compute", "idle.data_loading", "idle.other_host_work", "communication.wait"
SYNC, SAVING = "idle.host_synchronisation", "idle.checkpoint_logging"
Row = tuple[int, int, str, int]


def given(rows: list[Row], tables: dict[str, pl.DataFrame] | None = None, **of: Any) -> Given:
    schema = {"rank": pl.Int64, "step": pl.Int64, "account": pl.String, "ns": pl.Int64}
    answers = {name: SimpleNamespace(table=t, findings=()) for name, t in (tables or {}).items()}
    return Given(
        answers=answers,  # pyright: ignore[reportArgumentType]
        ledger=pl.DataFrame(rows, schema, orient="row").with_columns(start=1000 * pl.col("step")),
        **of,
    )


def late(
    by_account: dict[str, int], ns: int, parts: tuple[tuple[str, int], ...] = (), waits: int = 0
) -> Late:
    first = next(iter(by_account.values()))
    return Late(1, ns, ns, Excess(1, by_account, parts, first, waits=waits), None, 8, 0, False, {}, ns, ns)


def steps_of(*late_by: int, first: int = 3) -> list[Row]:
    """Rank 1 computes so much more than ranks 0 and 2 in these steps."""
    return [
        (rank, step, COMPUTE, 100 * MS + (more if rank == 1 else 0))
        for step, more in enumerate(late_by, first)
        for rank in range(3)
    ]


@pytest.mark.parametrize(
    ("late_by", "said"),
    [
        ((0, 0, 0, 0, 20, 22, 18, 21), "all of it since step 7"),
        ((20, 22, 18, 21, 0, 0), "all of it up to step 6"),
        ((1, 0, 20, 22, 21), "nearly all of it since step 5"),
        ((20, 22, 18, 21), ""),
        ((0, 0, 0, 20, 22), "all of it in steps 6 and 7"),
        ((20, 0, 0, 21, 0, 0), "all of it in steps 3 and 6"),
        ((20, 1, 0, 21, 0, 0), "nearly all of it in steps 3 and 6"),
        ((20, 0, 18, 21, 0), ""),  # in most
        ((20, 8, 0, 21, 8, 0), ""),
        ((0, 20, 1, 22, 21), ""),
        ((0, 0, 0, 0), ""),
    ],
)
def test_a_rank_says_in_which_steps_it_is_late(late_by: tuple[int, ...], said: str) -> None:
    assert late_when(late({COMPUTE: 10}, 10), given(steps_of(*(ms * MS for ms in late_by)))) == said


def test_a_rank_that_is_late_since_a_step_says_so_on_the_page(tmp_path: Path) -> None:
    """Rank 1 loads 20 ms longer from step 2 on: 12 in a mean step of five, 20 in each of those three."""
    slow = [[Work(), Work(loads=20 if step >= 2 else 0), Work()] for step in range(5)]
    job = Job().run(slow)
    page = lostflops.why(made(tmp_path, job))
    assert page.findings[0].claim.startswith(
        "Rank 1 is 12.0 ms late per step (22.2 %), all of it since step 2."
    )


def test_a_rank_names_the_second_cause_that_makes_it_late() -> None:
    two = late({DATA: 6 * MS, PYTHON: 4 * MS}, 10 * MS)
    assert says(two) == "6.00 ms of data loading, and 4.00 ms of Python and other CPU work"
    assert also(two) == (PYTHON,)
    assert also(late({DATA: 9 * MS, PYTHON: 4 * MS}, 10 * MS)) == (PYTHON,)  # the first gone, 4 ms remain
    assert also(late({DATA: 9 * MS, PYTHON: 2 * MS}, 10 * MS)) == ()  # the first alone explains it
    assert also(late({DATA: 6 * MS, PYTHON: 1 * MS}, 10 * MS)) == ()
    assert says(late({DATA: 6 * MS, COMPUTE: 4 * MS}, 10 * MS)).endswith("and 4.00 ms more computing")


def test_readings_of_one_rank_are_counted_and_are_not_all_waiting() -> None:
    told = says(late({SYNC: 1_250_000}, MS, parts=(("`cudaStreamSynchronize`", 144_000),), waits=17))
    assert told == "its CPU waits for the GPU 17 times per step, which costs 1.25 ms"


def finding(**of: Any) -> Finding:
    told: dict[str, Any] = {"name": "n", "claim": "c", "gain": "at most", "evidence": (), "next": "n"}
    return Finding(**(told | of))


def test_what_a_finding_is_mostly_made_of_is_more_than_half_of_it() -> None:
    whole = finding(cost_per_step=1_040_000)
    some = made_of(whole, [("a", 144_000), ("b", 114_000), ("c", 40)])
    assert (some.contributors, some.is_mostly_these) == (("a 144 µs", "b 114 µs"), False)
    assert made_of(whole, [("a", 600_000)]).is_mostly_these


def test_a_function_inside_another_is_spoken_as_both() -> None:
    inner = "wandb/sdk/wandb_run.py(9): log in train.py(1): main"
    assert spoken(inner) == "`log` (wandb_run.py:9) in `main` (train.py:1)"
    loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__ in train.py(1): main"
    assert spoken(loader) == "`_MultiProcessingDataLoaderIter.__next__` in `main` (train.py:1)"


def gaps(*rows: tuple[int, int, int, int]) -> pl.DataFrame:
    """Gaps of rank 0: step, start, end and the share of it that its cause has, in per cent."""
    return pl.DataFrame(
        {
            "rank": 0, "step": step, "start": start, "end": end, "ns": end - start, "cause": f"cause {step}",
            "cause_ns": (end - start) * share // 100, "step_ns": 1000, "idle_ns": 500, "steps_ns": 9000,
            "counted": True,
        }
        for step, start, end, share in rows
    )  # fmt: skip


def test_a_gap_that_the_end_of_a_step_parts_is_one() -> None:
    joined = over_steps(gaps((6, 200, 260, 100), (5, 160, 200, 50), (8, 300, 320, 100)))
    columns = ["step", "last_step", "start", "end", "ns", "cause", "step_ns"]
    assert joined.select(columns).rows() == [
        (5, 6, 160, 260, 100, "cause 6", 2000),
        (8, 8, 300, 320, 20, "cause 8", 1000),
    ]


def test_a_pause_in_two_steps_comes_once() -> None:
    rows = [(0, step, account, ns) for step in range(8) for account, ns in ((COMPUTE, 20 * MS), (SAVING, 0))]
    rows += [(0, 5, SAVING, 40 * MS), (0, 6, SAVING, 60 * MS)]
    claim = "The GPU idles 12.5 ms per step (38.5 %) while the CPU saves a checkpoint."
    told = finding(claim=claim, accounts=(SAVING,))
    one = {"gpu_gaps": gaps((5, 160, 200, 100), (6, 200, 260, 100))}
    two = {"gpu_gaps": gaps((5, 160, 199, 100), (6, 200, 260, 100))}
    assert told_once(told, given(rows, one)).claim == (
        "The GPU idles 100 ms once in 8 steps, in steps 5 and 6 (12.5 ms per step, 38.5 %), while the CPU "
        "saves a checkpoint."
    )
    assert told_once(told, given(rows, two)).claim == claim
    # The longest pause counts, and only where nearly all of the time is in it.
    short = {"gpu_gaps": gaps((1, 10, 20, 100), (5, 160, 200, 100), (6, 200, 260, 100))}
    assert told_once(told, given(rows, short)).claim.startswith("The GPU idles 100 ms once in 8 steps")
    others = [(0, step, SAVING, 10 * MS) for step in (0, 1, 2)]
    assert told_once(told, given([*rows, *others], one)).claim == claim


def test_a_finding_that_costs_waiting_as_well_has_no_limit_of_the_cpus_time() -> None:
    evidence = (
        "11.7 % of all step time, over 32 steps of the ranks here",
        "the most on rank 1: 9.00 ms per step",
        "upper limit: the CPU spends 4.99 ms per step on this, part of it hidden today",
    )
    idle = finding(cost_per_step=5 * MS, evidence=evidence)
    page = PageFindings(given([(0, 0, COMPUTE, 40 * MS)]))
    more = dearer(page, idle, 15 * MS, fact="15.0 ms of it waiting")
    assert more.evidence == ("15.0 ms of it waiting", evidence[1])
    assert (more.size, more.is_mostly_these) == (20 * MS, False)


def test_a_processor_that_others_wait_for_loses_what_they_wait_too() -> None:
    said = "Nothing computes for 4.00 ms per step (10.0 %), mostly while the CPU sleeps: `f` (3.00 ms)."
    idle = made_of(finding(claim=said, cost_per_step=4 * MS), [("f", 3 * MS)])
    page = PageFindings(given([(0, 0, COMPUTE, 40 * MS)]))
    little, much = dearer(page, idle, 1 * MS), dearer(page, idle, 4 * MS)
    assert little.claim.startswith("The job loses 5.00 ms per step (12.5 %), mostly while the CPU sleeps")
    assert much.claim.startswith("The job loses 8.00 ms per step (20.0 %), partly while the CPU sleeps")
    assert (little.is_mostly_these, much.is_mostly_these) == (True, False)


def test_ranks_late_for_causes_of_their_own_are_not_late_for_one() -> None:
    """Rank 1 loads for 6 ns more and rank 3 runs Python for 7 more: to mend one alone gains hardly any."""
    own = {1: (DATA, 6), 3: (PYTHON, 7)}
    rows: list[Row] = []
    for step in range(4):
        for rank in range(4):
            rows += [(rank, step, COMPUTE, 100), (rank, step, WAIT, 0 if rank in own else 6)]
            rows += [(rank, step, *own[rank])] if rank in own else []
    group = late_together(given(rows))
    assert group is not None
    assert (group.ranks, group.apart) == ((1, 3), ((1, DATA, 6), (3, PYTHON, 7)))
    same = [(rank, step, DATA if account == PYTHON else account, ns) for rank, step, account, ns in rows]
    together = late_together(given(same))
    assert together is not None and (together.account, together.apart) == (DATA, ())


def test_two_late_ranks_are_told_with_both_of_their_causes(tmp_path: Path) -> None:
    one, other = Work(loads=6), Work(python=6.5)
    page = lostflops.why(made(tmp_path, Job().run([[Work(), one, Work(), other]] * 4)))
    first = page.findings[0]
    assert first.claim.endswith(
        "for ranks 1 and 3, which have more of their own to do in nearly every step: rank 1 has 6.00 ms of "
        "data loading and rank 3 has 6.50 ms of Python and other CPU work."
    )
    assert "On rank 1: " in first.next and first.edit == "even-ranks:1+3"
    assert "ranks 1 and 3 have" not in str(page) and "makes it" not in page.verdict


def test_more_than_three_late_ranks_are_all_told(tmp_path: Path) -> None:
    """Ranks 1, 3, 5 and 7 of eight have 6.0 to 6.6 ms of their own each; the claim names three of them."""
    late = [Work(loads=6), Work(python=6.4), Work(collects=6.2), Work(loads=6.6)]
    ranks = [work for each in late for work in (Work(), each)]
    first = lostflops.why(made(tmp_path, Job().run([ranks] * 4))).findings[0]
    assert " for ranks 1, 3, 5 and 7, which " in first.claim
    assert first.claim.endswith("rank 5 has 6.20 ms of garbage collection and one more rank has its own.")
    assert "beside those, rank 7 has 6.60 ms of data loading" in first.evidence
    assert first.next.endswith("Then rank 7, by its cause.")


RUNS = {"rank": pl.Int32, "step": pl.Int64, "start": pl.Int64, "end": pl.Int64, "account": pl.String}


def test_who_waits_for_a_rank_that_is_here_waits_whoever_is_missing() -> None:
    """Ranks 0 and 1 of three are here: 1 comes 30 ns after 0, and nothing hides the first 20 of those."""
    calls = [
        (rank, at + 30 * rank, at + 50, number, kind)
        for at, number, kind in ((100, 4, "all-reduce"), (200, 5, "broadcast"), (300, None, "all-reduce"))
        for rank in range(2)
    ]
    matches = pl.DataFrame(
        [
            {"rank": rank, "arrival": start, "end": end, "sequence": number, "kind": kind}
            | {"group": "g [0, 1, 2]", "wait": None, "reason": "ranks 2 of its group are not here"}
            for rank, start, end, number, kind in calls
        ],
        schema_overrides={"rank": pl.Int32, "wait": pl.Int64},
    )  # fmt: skip
    bare = "communication.exposed"
    rows = [(0, 7, 110, 150, bare), (1, 7, 130, 150, bare), (0, 7, 200, 350, bare), (0, 7, 90, 110, COMPUTE)]
    runs = pl.DataFrame(rows, RUNS, orient="row")
    counted = pl.DataFrame({"rank": [0, 1], "step": [7, 7]}, {"rank": pl.Int32, "step": pl.Int64})
    assert surely_waited(matches, runs, counted) == 20
    assert surely_waited(matches, runs, counted.with_columns(step=pl.lit(8, pl.Int64))) == 0
    here = matches.with_columns(reason=pl.lit("the ranks' collectives differ in kind, bytes or order"))
    assert surely_waited(here, runs, counted) == 0


def test_copies_that_wait_for_work_that_was_not_recorded_are_not_dear() -> None:
    """Of 100 ns the GPU idles 60 for it and 3 otherwise; the copies' own calls last as long."""
    rows = [(0, 0, "idle.unrecorded", 60), (0, 0, DATA, 3), (0, 0, "copy", 2), (0, 0, COMPUTE, 35)]
    claim = "Copies from or to pageable memory cost 33 ns per step (33.0 %)."
    alone = "nothing hides 2 ns of the 4 ns that 2 copies take"
    fact = f"{alone}, and the GPU idles another 31 ns in calls that copy"
    costly = finding(
        name="copies-pageable", claim=claim, cost_per_step=33, evidence=(fact,), accounts=("copy",)
    )
    page = PageFindings(given(rows, {"x": pl.DataFrame()}))
    page.put(costly)
    join_copies(page)
    (told,) = page.all()
    assert (told.claim, told.size) == ("Copies from or to pageable memory cost 5 ns per step (5.0 %).", 5)
    assert told.evidence == (alone,)
    recorded = PageFindings(given([(r, s, DATA if a == "idle.unrecorded" else a, n) for r, s, a, n in rows]))
    recorded.put(costly)
    join_copies(recorded)
    assert list(recorded.all()) == [costly]


def ring(peers: dict[int, tuple[int, int]]) -> dict[str, list[dict[str, Any]]]:
    """Ranks that send to one and receive from another; nothing hides the last 400 of each 1,000 ns."""
    tables: dict[str, list[dict[str, Any]]] = {"ranks": [], "steps": [], "kernels": [], "collectives": []}
    for rank, (to, of) in peers.items():
        tables["ranks"].append({"rank": rank, "end": 4000, "device_kind": "gpu", "world_size": len(peers)})
        for step in range(4):
            at = 1000 * step
            tables["steps"].append({"rank": rank, "step": step, "start": at, "end": at + 1000})
            tables["kernels"].append({"rank": rank, "start": at, "end": at + 600, "family": "gemm"})
            for kind, peer in (("send", to), ("receive", of)):
                span = {"rank": rank, "start": at + 600, "end": at + 1000, "stream": 9}
                tables["kernels"].append({**span, "family": "communication"})
                tables["collectives"].append(
                    {
                        **span,
                        "arrival": at + 600,
                        "kind": kind,
                        "peer": peer,
                        "bytes_in": 64,
                        "group": "cp [0, 1, 2]",
                    }
                )
    return tables


def test_a_ring_is_no_pipeline(tmp_path: Path) -> None:
    page = lostflops.why(made(tmp_path, ring({0: (1, 2), 1: (2, 0), 2: (0, 1)})))
    (found,) = (f for f in page.findings if f.name == "communication-exposed")
    said = "all of it: sends and receives around a ring, as of context parallelism"
    assert any(fact.partition("; ")[0] == said for fact in found.evidence)
    assert "microbatches" not in found.next and found.remedies == ("earlier-exchange",)
    assert not has_stages(given([], purposes={"ring": 5}))


@pytest.mark.parametrize("coalesced", [False, True])
def test_a_ring_of_two_is_no_pipeline(tmp_path: Path, coalesced: bool) -> None:
    """Both compute before they exchange; coalesced, no peer is known. A second stage receives first."""
    tables = ring({0: (1, 1), 1: (0, 0)})
    for row in tables["collectives"] if coalesced else ():
        row |= {"kind": "send-receive", "peer": None, "group": None}
    for row in tables["collectives"]:
        row["group"] = None
    (found,) = (
        f for f in lostflops.why(made(tmp_path, tables)).findings if f.name == "communication-exposed"
    )
    said = "all of it: sends and receives around a ring, as of context parallelism"
    assert any(fact.partition("; ")[0] == said for fact in found.evidence)
    for row in [r for r in tables["kernels"] if r["rank"] == 1 and r["family"] == "gemm"]:
        row |= {"start": row["end"] + 400, "end": row["end"] + 1000}
    for name in ("steps", "ranks"):
        for row in tables[name]:
            row["end"] += 1000 * (row["rank"] == 1 and name == "ranks")
    pipeline = lostflops.why(made(tmp_path, tables))
    assert not any("around a ring" in fact for f in pipeline.findings for fact in f.evidence)


def test_what_exposed_communication_is_made_of_is_no_longer_than_it(tmp_path: Path) -> None:
    """Of 400 ns of an all-reduce computing hides 100."""
    tables = ring({0: (1, 2), 1: (2, 0), 2: (0, 1)})
    for row in tables["kernels"]:
        row["end"] += 100 if row["family"] == "gemm" else 0
    (found,) = (
        f for f in lostflops.why(made(tmp_path, tables)).findings if f.name == "communication-exposed"
    )
    assert found.size == 300
    assert found.contributors == ("receive of 64 bytes 300 ns", "send of 64 bytes 300 ns")


def test_layers_on_several_gpus_of_a_process_are_not_told_of_data_parallel() -> None:
    idle = finding(
        name="another-gpu-works", claim="The GPU idles.", accounts=("idle.other_device",), cost_per_step=9
    )
    known = given([(0, 0, "idle.other_device", 9)], {"x": pl.DataFrame()}, names=NAMES.to_frame())
    known.answers["x"].findings = (idle,)  # pyright: ignore[reportAttributeAccessIssue]
    (told,) = findings(replace(known, data_parallel=False))
    assert "torch.distributed.pipelining" in told.next and "DataParallel" not in told.next


def test_copies_that_are_joined_cost_in_their_sentence_what_they_cost() -> None:
    page = PageFindings(given([(0, 0, "copy", 40 * MS), (0, 0, COMPUTE, 60 * MS)], {"x": pl.DataFrame()}))
    claim = "Copies from or to pageable memory cost 33.0 ms per step (33.0 %)."
    page.put(finding(name="copies-pageable", claim=claim, cost_per_step=33 * MS, accounts=("copy",)))
    page.put(finding(name="copies-exposed", claim="Copies cost.", cost_per_step=40 * MS, accounts=("copy",)))
    join_copies(page)
    (told,) = page.all()
    assert told.claim == "Copies from or to pageable memory cost 40.0 ms per step (40.0 %)."


def test_a_remedy_for_all_ranks_is_not_told_to_one(tmp_path: Path) -> None:
    """Rank 1 has half as many kernels more to run: it is the ranks' shares that have to change."""
    more = Work(computes=60, calls=6)
    (first, *_) = lostflops.why(made(tmp_path, Job().run([[Work(), more, Work()]] * 4))).findings
    assert first.rank == 1 and "On rank 1" not in first.next


@pytest.mark.parametrize(
    ("inside", "does"),
    [
        ("<built-in function print>", "while the CPU logs"),
        ("torch/serialization.py(943): save", "saves a checkpoint"),
    ],
)
def test_a_function_that_prints_in_pieces_saves_no_checkpoint(tmp_path: Path, inside: str, does: str) -> None:
    """Of 20 ms in `report`, which proves nothing, 14 are in pieces of 2 that do."""
    work = Work(python=20, frame="train.py(150): report")
    tables = Job(transfer=0).run([[work]] * 4)
    tables["frames"] += [
        row
        | {"start": row["start"] + (3 * n + 1) * MS, "end": row["start"] + (3 * n + 3) * MS, "name": inside}
        for row in list(tables["frames"])
        for n in range(6)
    ]
    (first, *_) = lostflops.why(made(tmp_path, tables)).findings
    assert does in first.claim and any("in `report` (train.py:150)" in part for part in first.contributors)


def test_what_a_rank_alone_does_in_some_steps_is_no_uneven_share(tmp_path: Path) -> None:
    """Rank 0 evaluates in two steps of six: twice as many kernels, for 30 ms more."""
    steps = [[Work(computes=70, calls=8) if n in (1, 4) else Work(), Work(), Work()] for n in range(6)]
    (first, *_) = lostflops.why(made(tmp_path, Job().run(steps))).findings
    assert first.rank == 0 and "all of it in steps 1 and 4" in first.claim
    assert first.edit == "even-ranks:0" and "such as an evaluation" in first.next
    assert "sequence" not in first.next


def test_a_bound_of_what_the_cpu_spends_and_others_wait_is_told_in_one_line() -> None:
    """The page shows three lines: the bound of 70 ms stood under "the CPU spends 33.4 ms" alone."""
    ms = {"per_step": 11.4, "host_per_step": 33.4, "most": 11.4, "at_most": 70.1}
    row = {"account": IDLE[0].name, "step_share": 0.05, "steps": 3, "most_on": 0, "on_host": False}
    table = pl.DataFrame([row | {name: int(length * MS) for name, length in ms.items()}])
    assert IDLE[0].loss is not None
    (found,) = idle_costs_step_time(table, IDLE[0], replace(IDLE[0].loss, from_share=0.01, removable=True))
    assert found.evidence[-1] == (
        "upper limit: the CPU spends 33.4 ms per step on this, part of it hidden today; ranks that wait for "
        "others could gain too"
    )


@pytest.mark.parametrize(
    ("direction", "memory", "told"),
    [
        ("host to device", "pinned", True),  # it may be waited for
        ("device to host", "pageable", True),
        ("device to host", "pinned", False),
        ("device to device", "unknown", False),
        ("memset", "unknown", False),
    ],
)
def test_pinning_is_told_where_the_host_s_memory_is_to_be_pinned(
    direction: str, memory: str, told: bool
) -> None:
    rows = pl.DataFrame({"direction": [direction], "host_memory": [memory]})
    assert pinning_helps(rows, direction) is told


@pytest.mark.parametrize(("everywhere", "doubt"), [(False, True), (True, False)])
def test_a_rank_that_alone_recorded_its_stacks_may_be_late_for_that(
    tmp_path: Path, everywhere: bool, doubt: bool
) -> None:
    usual = Work(python=1 if everywhere else 0)
    page = lostflops.why(made(tmp_path, Job().run([[usual, Work(python=13), usual]] * 4)))
    said = "Python's stacks were recorded for it alone, and recording them makes its CPU slower."
    assert page.findings[0].rank == 1 and (said == page.findings[0].doubt) == doubt


@pytest.mark.parametrize(("first", "since"), [(Work(loads=12), False), (Work(), True)])
def test_a_rank_is_late_since_a_step_where_it_was_not_before(
    tmp_path: Path, first: Work, since: bool
) -> None:
    """Rank 1 runs Python for 12 ms from step 1 on; in step 0 it is as late, for its loader, or not at all."""
    steps = [[Work(), first if step == 0 else Work(python=12), Work()] for step in range(6)]
    (late, *_) = lostflops.why(made(tmp_path, Job().run(steps))).findings
    told = " ".join((late.claim, *late.evidence))
    assert late.rank == 1 and ("since step 1" in told) == since


@pytest.mark.parametrize(("frame", "most"), [("report", 20), ("<module>", 12)])
def test_logging_less_often_saves_all_that_the_function_which_logs_does(
    tmp_path: Path, frame: str, most: int
) -> None:
    """`report` builds a line for 8 ms of 20 and prints it for 12. A script does more than its logging."""
    tables = Job(transfer=0).run([[Work(python=20, frame=f"train.py(150): {frame}")]] * 4)
    tables["frames"] += [
        row | {"start": row["start"] + 8 * MS, "name": "<built-in function print>"}
        for row in list(tables["frames"])
    ]
    (logs,) = (f for f in lostflops.why(made(tmp_path, tables)).findings if "logs" in f.claim)
    assert (logs.size, logs.ns_per_step) == (12 * MS, most * MS)
    told = "`report` (train.py:150) takes another 8.00 ms in which the GPU idles"
    assert (told in logs.evidence) == (most == 20)


def test_one_pause_is_told_of_a_rank_that_has_no_gpu_too() -> None:
    """A job on CPUs was told that its GPU idles: `gpu_gaps` does not know what a rank computes on."""
    rows = gaps((5, 160, 960, 100)).with_columns(cause=pl.lit(PYTHON), idle_ns=pl.lit(900))
    (told,) = one_gap_is_most(rows)
    assert told.claim == "Rank 0 idles once for 800 ns, 88.9 % of all its idle time."
