"""What the layers of the ledger and the numbers of its gaps are where a table holds what it seldom does."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from lostflops.recipes import accounting, first_calls
from lostflops.recipes.backward_threads import engines
from lostflops.recipes.dispatching import dispatching
from lostflops.recipes.idle.idle_gaps import idle_gaps
from lostflops.recipes.launched_work import launched_work
from lostflops.recipes.steps.ledger import step_ledger
from lostflops.tables import COLLECTIVES, COPIES, KERNELS, LAUNCHES, OPERATORS, RANKS, STEPS
from lostflops.testing import example_table

NO_SPANS = pl.DataFrame(
    schema={"rank": pl.Int32, "thread": pl.Int64, "account": pl.String, "start": pl.Int64, "end": pl.Int64}
)


def runs(
    copies: list[dict[str, Any]] | None = None, collectives: pl.LazyFrame | None = None
) -> list[tuple[int, int, str | None]]:
    steps = example_table(STEPS, [{"start": 0, "end": 20}])
    carried = None if copies is None else example_table(COPIES, copies)
    found = accounting.busy_and_gaps(steps, None, carried, collectives).collect()
    return found.select("start", "end", "account").rows()


def test_a_copy_of_a_collective_is_no_copy_where_the_collectives_are_not_there() -> None:
    copies = [{"start": 2, "end": 5}, {"start": 7, "end": 11, "communication": True}]
    assert runs(copies) == [(0, 2, None), (2, 5, "copy"), (5, 20, None)]


def test_what_waited_for_is_not_known_is_exposed_and_the_rest_is_not() -> None:
    rows = [{"start": 2, "end": 9, "arrival": 1}, {"start": 11, "end": 17, "arrival": 10}]
    waits = pl.Series("wait", [None, 4], pl.Int64)
    collectives = example_table(COLLECTIVES, rows).collect().with_columns(waits).lazy()
    busy = [run for run in runs(None, collectives) if run[2]]
    assert busy == [
        (2, 9, "communication.exposed"),
        (11, 14, "communication.wait"),
        (14, 17, "communication.transfer"),
    ]
    unknown = collectives.drop("wait")
    assert [run for run in runs(None, unknown) if run[2]] == [
        (2, 9, "communication.exposed"),
        (11, 17, "communication.exposed"),
    ]


def idle(
    gaps: list[tuple[int, int, int]],
    launches: list[dict[str, Any]],
    kernel: int,
    operators: list[dict[str, Any]] | None = None,
) -> pl.DataFrame:
    """Gaps (rank, start, end) by cause. On rank 0 a kernel begins at `kernel`, launched 2 ns before."""
    work = {
        "start": kernel,
        "end": kernel + 9,
        "thread": 7,
        "launch_start": kernel - 2,
        "launch_end": kernel - 1,
    }
    ranks = example_table(RANKS, [{"rank": rank, "device_kind": "gpu", "main_thread": 7} for rank in (0, 1)])
    kernels = example_table(KERNELS, [work])
    calls = example_table(LAUNCHES, launches)
    steps = example_table(STEPS, [{"rank": rank, "start": 0, "end": 90} for rank in (0, 1)])
    holes = pl.LazyFrame(
        gaps, {"rank": pl.Int32, "start": pl.Int64, "end": pl.Int64}, orient="row"
    ).with_columns(step=pl.lit(0, dtype=pl.Int32), account=pl.lit(None, dtype=pl.String))
    rows = None if operators is None else example_table(OPERATORS, operators)
    pairs = engines(rows, None)
    spans = accounting.host_by_cause(steps, ranks, kernels, None, calls, pairs, rows, None, None)
    causes = accounting.idle_by_cause(idle_gaps(holes), ranks, kernels, None, calls, spans, pairs, rows)
    return accounting.with_names(causes, calls, rows, None, None).collect()


def test_gaps_are_numbered_by_rank_and_start_and_one_without_time_is_none() -> None:
    found = idle([(1, 3, 8), (0, 30, 40), (0, 5, 5), (0, 10, 20)], [], kernel=50)
    numbers = found.group_by("gap", maintain_order=True).agg(
        pl.col("rank").first(), pl.col("start").min(), pl.col("end").max()
    )
    assert numbers.rows() == [(0, 0, 10, 20), (1, 0, 30, 40), (2, 1, 3, 8)]


def test_a_call_without_a_name_is_part_of_the_capture_around_it() -> None:
    calls: list[dict[str, Any]] = [
        {"start": 10, "end": 11, "thread": 7, "name": "cudaStreamBeginCapture"},
        {"start": 14, "end": 16, "thread": 7, "name": None},
        {"start": 19, "end": 20, "thread": 7, "name": "cudaStreamEndCapture"},
    ]
    found = idle([(0, 10, 20)], calls, kernel=40)
    told = found.select("start", "end", "account", pl.col("name").cast(pl.String)).rows()
    assert told == [(10, 20, "idle.graph_capture", "cudaStreamBeginCapture")]


def test_of_two_operators_with_the_same_times_the_later_row_is_the_inner_one() -> None:
    both = [{"start": 10, "end": 20, "thread": 7, "name": name} for name in ("aten::linear", "aten::addmm")]
    found = idle([(0, 10, 20)], [], kernel=40, operators=both)
    assert found.select(pl.col("name").cast(pl.String)).rows() == [("aten::addmm",)]


def test_a_gap_began_where_the_first_of_its_pieces_did_and_no_rank_goes_on_with_another_s() -> None:
    rank, start, end = np.array([0, 0, 1]), np.array([0, 10, 20]), np.array([10, 20, 30])
    assert accounting._beginnings(rank, start, end).tolist() == [0, 0, 20]


def test_work_without_time_ends_no_gap() -> None:
    work = launched_work(example_table(KERNELS, [{"start": 4, "end": 4}, {"start": 5, "end": 6}]), None)
    assert work is not None and work.collect()["start"].to_list() == [5]


def test_a_piece_is_cut_inside_alone() -> None:
    lane = {"rank": [0, 0, 0], "thread": [7, 7, 7]}
    doers = pl.DataFrame({**lane, "start": [0, 5, 10], "end": [5, 10, 15], "gap": [0, 1, 2]})

    def cut(at: int) -> list[tuple[int, int]]:
        charged = accounting._charged(doers, NO_SPANS, np.full(3, at), np.zeros(3, np.bool_))
        return sorted(zip(charged.start.tolist(), charged.end.tolist(), strict=True))

    assert cut(5) == [(0, 5), (5, 10), (10, 15)]
    assert cut(7) == [(0, 5), (5, 7), (7, 10), (10, 15)]


def test_a_long_node_dispatches_where_it_calls_or_runs_something() -> None:
    ms = accounting.LONG
    columns = ("rank", "thread", "start", "end", "name")
    node = {"start": 0, "end": 3 * ms, "thread": 7, "name": f"{accounting.NODE} Mul"}
    operators = example_table(OPERATORS, [node]).select(columns).collect()
    call = example_table(LAUNCHES, [{"start": ms, "end": ms + 200, "thread": 7, "name": "cudaLaunchKernel"}])
    short = {**node, "end": ms - 1}

    def spans(launches: pl.LazyFrame | None, rows: pl.DataFrame = operators) -> list[tuple[int, int]]:
        return dispatching(rows, launches, ms)[0].select("start", "end").rows()

    assert spans(call) == [(ms, ms + 200)]
    assert spans(None) == []
    assert spans(None, example_table(OPERATORS, [short]).select(columns).collect()) == [(0, ms - 1)]


def test_a_call_as_the_first_step_ends_is_a_later_one() -> None:
    ms = accounting.LONG
    steps = example_table(
        STEPS, [{"step": s, "start": s * 20 * ms, "end": (s + 1) * 20 * ms} for s in (0, 1)]
    )
    names = pl.DataFrame({"name": ["cudaMalloc"], "cause": ["memory_allocator"]})

    def first(later: int) -> int:
        rows = [
            {"start": start, "end": start + took, "thread": 7, "name": "cudaMalloc"}
            for start, took in ((0, 10 * ms), (later, 5 * ms))
        ]
        return first_calls.first_calls(steps, example_table(LAUNCHES, rows).collect(), names).height

    assert first(20 * ms) == 0
    assert first(20 * ms - 1) == 1


def test_an_account_has_a_row_from_a_nanosecond_on() -> None:
    kinds = {"rank": pl.Int32, "step": pl.Int32, "start": pl.Int64, "end": pl.Int64, "account": pl.String}
    busy = pl.LazyFrame(
        [
            (0, 0, 0, 4, "compute"),
            (0, 0, 4, 5, "copy"),
            (0, 0, 5, 5, "communication.wait"),
            (0, 0, 5, 9, None),
        ],
        kinds,
        orient="row",
    )
    stretches = pl.LazyFrame(
        [
            (0, 0, 5, 8, "idle.data_loading"),
            (0, 0, 8, 9, "idle.unexplained"),
            (0, 7, 9, 9, "idle.dependency"),
        ],
        kinds,
        orient="row",
    )
    steps = example_table(STEPS, [{"start": 0, "end": 9}, {"step": 7, "start": 9, "end": 9}])
    assert step_ledger(steps, busy, stretches).collect().select("step", "account", "ns").rows() == [
        (0, "compute", 4),
        (0, "idle.data_loading", 3),
        (0, "copy", 1),
        (0, "idle.unexplained", 1),
    ]


def test_accounts_stand_by_rank_and_step_the_largest_first_and_equal_ones_by_name() -> None:
    kinds = {"rank": pl.Int32, "step": pl.Int32, "start": pl.Int64, "end": pl.Int64, "account": pl.String}
    each = [(3, "copy"), (4, "communication.wait"), (4, "communication.exposed"), (9, "compute")]
    busy = [(rank, step, 0, ns, account) for rank in (1, 0) for step in (8, 7) for ns, account in each]
    steps = example_table(
        STEPS, [{"rank": r, "step": s, "start": s, "end": s + 1} for r in (0, 1) for s in (7, 8)]
    )
    none = pl.LazyFrame(schema=kinds)
    found = step_ledger(steps, pl.LazyFrame(busy, kinds, orient="row"), none).collect()
    names = ["compute", "communication.exposed", "communication.wait", "copy"]
    assert found.select("rank", "step", "account").rows() == [
        (rank, step, name) for rank in (0, 1) for step in (7, 8) for name in names
    ]
