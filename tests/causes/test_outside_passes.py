"""Operators of a CPU outside of passes that train, and what goes with a function that is taken out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from by_hand import DATA, MS, PYTHON, UNEXPLAINED, finding, page
from lostflops.causes.needless.outside import computes_outside
from lostflops.causes.needless.own_functions import runs_own_functions
from lostflops.recipes.host.functions import spent_in
from lostflops.recipes.needless.outside_passes import OUTSIDE, outside_passes
from lostflops.recipes.needless.own_functions import OWN_FUNCTIONS, own_functions
from made_runs import made

COUNTED = pl.DataFrame({"rank": [0], "step": [1]}, {"rank": pl.Int32, "step": pl.Int64})
MODEL, OTHER = "forward#Net", "forward#Teacher"
AUGMENT, EMA = "a.py(3): augment", "a.py(9): update_ema"


def run(folder: Path, **more: Any) -> Any:
    """Step 1, from 100 to 200: operators by start, end, sequence and phase. Autograd numbers those before the
    model alike."""
    told = [
        ("aten::rot90", 102, 109, 4, "forward"),  # 7 ns on data, numbered as the first one of the model is
        ("aten::linear", 120, 131, 4, "forward"),
        ("aten::argmax", 131, 132, -1, None),
        ("aten::mm", 136, 141, -1, None),  # 5 ns of a teacher without gradients
        ("aten::mse_loss", 142, 145, 5, "forward"),
        ("MseLossBackward0", 150, 153, 5, "backward"),
        ("AddmmBackward0", 153, 160, 4, "backward"),
        ("aten::add_", 163, 170, -1, "optimizer"),
        ("aten::mul", 180, 183, 6, "forward"),  # 3 ns that no backward pass follows
        ("aten::zero_", 191, 192, -1, None),
        ("aten::mul", 205, 210, -1, None),  # in the next step, which does not count
    ]
    columns = ["name", "start", "end", "sequence", "phase"]
    rows = [dict(zip(columns, row, strict=True)) | {"thread": 7} for row in told]
    # A thread of its own, as of a loader, neither trains nor is held up.
    rows += [{**rows[0], "name": "aten::flip", "phase": "backward", "sequence": -1, "thread": 8}]
    kernels = [{k: row[k] for k in ("name", "start", "end", "thread")} for row in rows]
    ranges = [
        (MODEL, 118, 133),
        (OTHER, 135, 141),
        ("backward", 148, 161),
        ("Optimizer.zero_grad#SGD", 190, 193),
    ]
    tables = {
        "ranks": [{"device_kind": "cpu", "main_thread": 7}],
        "steps": [{"step": 1, "host_start": 100, "host_end": 200}],
        "operators": rows,
        "kernels": kernels,
        "ranges": [{"name": name, "start": s, "end": e, "thread": 7} for name, s, e in ranges],
    }
    return made(folder, tables | more)


def test_a_job_that_trains_nothing_has_nothing_outside_of_it(tmp_path: Path) -> None:
    """A model that generates is what such a job is for, not data or a metric beside it."""
    trace = run(tmp_path)
    rows = trace.table("operators")
    assert rows is not None
    forward = rows.collect().filter(pl.col("name").cast(pl.String).str.starts_with("aten::"))
    forward = forward.with_columns(sequence=pl.lit(-1, forward.schema["sequence"]), phase=None)
    marks = [{"name": OTHER, "start": 118, "end": 141, "thread": 7}]
    told = outside_passes(run(tmp_path, operators=forward.to_dicts(), ranges=marks), COUNTED)
    assert told.is_empty() and told.schema == OUTSIDE


def of_kind(table: pl.DataFrame, kind: str) -> dict[str, int]:
    return dict(table.filter(kind=kind).select("name", "ns").iter_rows())


def test_what_makes_no_node_of_a_backward_pass_is_outside_of_what_trains(tmp_path: Path) -> None:
    frames = [(AUGMENT, 101, 112), (EMA, 179, 184), ("torch/hub.py(2): f", 101, 105)]
    rows = [{"name": name, "start": s, "end": e, "thread": 7} for name, s, e in frames]
    told = outside_passes(run(tmp_path, frames=rows), COUNTED)
    assert of_kind(told, "operator") == {"aten::rot90": 7, "aten::mm": 5, "aten::mul": 3}
    assert of_kind(told, "model") == {OTHER: 5} and of_kind(told, "graph") == {}
    assert of_kind(told, "function") == {AUGMENT: 7, EMA: 3}
    # From the step's start to the model, from the model to the loss, from the optimizer to its zeroing.
    assert of_kind(told, "bound") == {"": 18 + 9 + 20}
    assert of_kind(told, "step") == {"1": 7 + 5 + 3}


@pytest.mark.parametrize(("second", "graph"), [(9, {OTHER: 5}), (8, {})])
def test_a_pass_in_which_autograd_counts_on_made_a_graph(
    tmp_path: Path, second: int, graph: dict[str, int]
) -> None:
    """Frozen weights need no nodes: all operators of such a pass have the number of the next node."""
    trace = run(tmp_path)
    rows = trace.table("operators")
    assert rows is not None
    made_nodes = rows.collect().with_columns(
        sequence=pl.when(pl.col("start") == 136).then(8).otherwise("sequence")
    )
    more = made_nodes.filter(pl.col("start") == 136).with_columns(
        start=pl.lit(139, pl.Int64), sequence=pl.lit(second, made_nodes.schema["sequence"])
    )
    told = outside_passes(run(tmp_path, operators=pl.concat([made_nodes, more]).to_dicts()), COUNTED)
    assert (of_kind(told, "model"), of_kind(told, "graph")) == ({OTHER: 5}, graph)


def test_where_passes_are_not_marked_one_begins_with_the_first_operator_that_has_a_gradient(
    tmp_path: Path,
) -> None:
    """A trace of PyTorch's profiler alone: from 120 to 160 gradients flow, whatever else is among it."""
    marks = [{"name": "Optimizer.zero_grad#SGD", "start": 190, "end": 193, "thread": 7}]
    trace = run(tmp_path, ranges=marks)
    told = outside_passes(trace, COUNTED)
    assert of_kind(told, "operator") == {"aten::rot90": 7, "aten::mul": 3}
    assert (of_kind(told, "model"), of_kind(told, "unmarked")) == ({}, {"": 7 + 3})
    # From the step's start, and from the optimizer to its zeroing.
    assert of_kind(told, "bound") == {"": 20 + 20}
    operators = trace.table("operators")
    assert operators is not None
    again = [
        {"start": start, "end": start + 2, "sequence": 9, "phase": phase, "name": "f", "thread": 7}
        for start, phase in ((184, "forward"), (187, "backward"))
    ]
    two = run(tmp_path, ranges=marks, operators=[*operators.collect().to_dicts(), *again])
    # The last one lies between two passes of the step, from the optimizer to the second.
    assert of_kind(outside_passes(two, COUNTED), "bound") == {"": 20 + 14}
    # Of a job that updates its weights by hand nothing tells what does so.
    by_hand = [row for row in operators.collect().to_dicts() if row["phase"] != "optimizer"]
    marks = [{**marks[0], "name": "train"}]
    told = outside_passes(run(tmp_path, ranges=marks, operators=by_hand), COUNTED)
    assert of_kind(told, "operator") == {"aten::rot90": 7}
    no_backward = [{"name": "aten::mm", "start": 120, "end": 131, "thread": 7, "sequence": 4}]
    assert outside_passes(run(tmp_path, ranges=marks, operators=no_backward), COUNTED).is_empty()


def outside(*rows: tuple[str, str, int]) -> pl.DataFrame:
    return pl.DataFrame([(0, kind, name, ms * MS) for kind, name, ms in rows], OUTSIDE, orient="row")


LEDGER = [(0, step, "compute", 100) for step in range(2)]


@pytest.mark.parametrize(
    ("more", "says", "then"),
    [
        ([], ": `aten::mul` (19.0 ms).", "To see which functions call them, record call stacks"),
        ([("function", AUGMENT, 20)], ", mostly in `augment` (10.0 ms): ", "Make `augment` (a.py:3) cheaper"),
        ([("model", OTHER, 30)], ", mostly in passes of `Teacher` without gradients (15.0 ms)", "If this"),
        (
            [("model", OTHER, 30), ("graph", OTHER, 15)],
            ", mostly in passes of `Teacher` that no backward pass follows (15.0 ms)",
            "These passes keep all that a backward pass needs. Where none uses it later, call",
        ),
        ([("function", AUGMENT, 19)], ": `aten::mul` (19.0 ms).", "To see"),
    ],
)
def test_operators_outside_are_told_with_what_calls_them_and_a_bound(
    more: list[tuple[str, str, int]], says: str, then: str
) -> None:
    parts = ("operator", "aten::mul", 38), ("operator", "aten::add", 2)
    rows = outside(*parts, ("bound", "", 50), ("step", "0", 30), *more)
    (told,) = page(ledger=LEDGER, join=computes_outside, on_host=True, outside=rows)
    assert told.claim.startswith(
        "Operators outside of passes that train and of the optimizer take 20.0 ms per"
    )
    assert says in told.claim and told.next.startswith(then)
    assert (told.gain, told.ns_per_step, told.size) == ("at most", 25 * MS, 20 * MS)
    assert "aten::add" not in told.claim
    unmarked = pl.concat([rows, outside(("unmarked", "", 40))])
    (plain,) = page(ledger=LEDGER, join=computes_outside, on_host=True, outside=unmarked)
    assert plain.claim.startswith("Operators without gradients, other than the optimizer's, take 20.0 ms per")
    assert plain.next.endswith("What frozen layers say of a sample can be computed once and stored.")
    two = [(rank, 0, "compute", 100) for rank in range(2)]  # which may wait for each other
    (told,) = page(ledger=two, join=computes_outside, on_host=True, outside=rows)
    assert (told.gain, told.ns_per_step, told.size) == ("unknown", 0, 20 * MS)


def test_what_comes_in_several_steps_is_told_with_their_number() -> None:
    """An evaluation after two of five steps of training: 40 ms each."""
    ledger = [(0, step, "compute", 60 if step in (1, 3) else 20) for step in range(5)]
    for other, said in ((1, ", in 2 of 5 steps: `aten::mm`"), (2, "): `aten::mm`")):
        some = [("step", f"{step}", 40 if step in (1, 3) else other) for step in range(5)]
        rows = outside(("operator", "aten::mm", 80 + 3 * other), ("bound", "", 90), *some)
        (told,) = page(ledger=ledger, join=computes_outside, on_host=True, outside=rows)
        assert said in told.claim
    once = outside(("operator", "aten::mm", 80), ("bound", "", 90), ("step", "1", 80))
    assert not page(ledger=ledger, join=computes_outside, on_host=True, outside=once)
    # Unless the step log knows that it comes back: in steps 1, 6, 11, ... but not where those are 2, 7, ...
    for first, found in ((6, 1), (7, 0)):
        pauses = {"step_log_pauses": pl.DataFrame([{"rank": 0, "period": 5, "first_step": first}])}
        told = page(ledger=ledger, join=computes_outside, on_host=True, outside=once, tables=pauses)
        assert [", in 1 of 5 steps" in f.claim for f in told] == [True] * found


@pytest.mark.parametrize(
    "known",
    [
        {"passes": {AUGMENT}},
        {"on_host": False},
        {"outside": 19},
        {"told": True},
        {"in one": 9},
        {"evaluates": 10},
    ],
)
def test_one_cause_is_told_once_and_from_a_tenth_of_a_step_on(known: dict[str, Any]) -> None:
    known = dict(known)
    each = ("step", "0", known.pop("in one", 40))
    rows = outside(("operator", "aten::mul", known.pop("outside", 40)), ("function", AUGMENT, 40), each)
    python = finding(
        "host-busy-elsewhere", PYTHON, 9, "It idles while the CPU runs Python: `augment` (9.00 ms)."
    )
    others = [python] if known.pop("told", False) else []
    if "evaluates" in known:
        others = [finding("evaluation-inside-step", PYTHON, known.pop("evaluates"))]
    found = page(*others, ledger=LEDGER, join=computes_outside, **{"on_host": True, "outside": rows} | known)
    assert ["mostly in" in f.claim for f in found if f not in others] == (
        [False] if "passes" in known else []
    )
    held = "They are called from `augment` (a.py:3), which trains as well"
    assert all(f.next.startswith(held) for f in found if f not in others)


@pytest.mark.parametrize(("others", "one"), [(3, True), (4, False)])
def test_pauses_that_lie_around_operators_outside_of_passes_are_one_cause_with_them(
    others: int, one: bool
) -> None:
    """As of a job that prints tensors: 8 ms per step around its operators, of which other accounts idle 3 or
    4; of 8 ms that nothing explains more than half lie there or not."""
    rows = outside(("operator", "aten::mul", 40), ("bound", "", 56), ("step", "0", 30))
    ledger: Any = [
        (0, step, account, ms)
        for step in range(2)
        for account, ms in (("compute", 92 - others), (UNEXPLAINED, 8), (DATA, others))
    ]
    untold = finding("idle-unexplained", UNEXPLAINED, 8, "It idles.")
    told = page(untold, ledger=ledger, join=computes_outside, on_host=True, outside=rows)
    assert [f.name == "operators-outside-passes" for f in told] == ([True] if one else [False, True])
    assert ("It idles, mostly around these operators" in told[-1].evidence) is one


def test_time_in_functions_counts_once_and_within_its_step(tmp_path: Path) -> None:
    frames = [
        (EMA, 110, 120, 7),
        (AUGMENT, 112, 118, 7),
        (EMA, 195, 230, 7),
        (AUGMENT, 90, 99, 7),
        (EMA, 130, 140, 8),
    ]
    rows = [{"name": name, "start": s, "end": e, "thread": at} for name, s, e, at in frames]
    mark = {"name": "mix", "start": 150, "end": 153, "thread": 7}
    trace = run(tmp_path, frames=rows, ranges=[mark])
    assert spent_in(trace, COUNTED, [EMA, AUGMENT]) == 10 + 5
    assert spent_in(trace, COUNTED, [EMA, "mix"]) == 10 + 5 + 3
    assert spent_in(trace, COUNTED, [AUGMENT]) == 6


@pytest.mark.parametrize(("spent", "bound"), [(70, 35), (43, 20)])
@pytest.mark.parametrize(
    ("name", "tally", "told_as"),
    [
        ("a.py(3): tally", "a.py(3): tally", "`tally` (a.py:3)"),
        ("copy.py(9): deepcopy in a.py(7): <module>", "copy.py(9): deepcopy", "`deepcopy` (copy.py:9)"),
        ("mix", "mix", "`mix`"),
    ],
)
def test_operators_of_a_function_that_is_taken_out_go_with_it(
    spent: int, bound: int, name: str, tally: str, told_as: str
) -> None:
    """All of 20 ms in each of two steps is Python of `tally`."""
    fact = f"{told_as} takes 35.0 ms per step with operators, which the bound counts"
    one = finding("host-busy-elsewhere", PYTHON, 20, "It idles while the CPU runs other code.")
    ledger = [(0, step, account, ms) for step in range(2) for account, ms in (("compute", 80), (PYTHON, 20))]
    known: dict[str, Any] = {"on_host": True, "spent_in": lambda names: spent * MS * (names == [tally])}
    (told,) = page(one, ledger=ledger, names=[(0, PYTHON, name, 40)], in_long_pauses=40 * MS, **known)
    assert (told.ns_per_step, told.size, told.edit == "none") == (bound * MS, 20 * MS, bound > 20)
    assert told.evidence[:1] == (fact,) * (bound > 20)


def test_python_of_an_autograd_function_is_told_although_its_row_is_an_operator(tmp_path: Path) -> None:
    """Its node has its class's name without a number, as its forward has."""
    took = [
        ("SlowBackward", 5),
        ("Slow", 3),
        ("AddmmBackward0", 9),
        ("CompiledFunctionBackward", 9),
        ("aten::mm", 9),
    ]
    kernels = [{"name": name, "start": 110, "end": 110 + ns, "thread": 7} for name, ns in took]
    kernels += [{"name": "SlowBackward", "start": 130, "end": 137, "thread": 8}]
    told = own_functions(run(tmp_path, kernels=kernels), COUNTED)
    assert told.rows() == [(0, "SlowBackward", 5), (0, "Slow", 3)]
    for ms, many in ((10, 1), (9, 0)):
        rows = pl.DataFrame([(0, "SlowBackward", ms * MS)], OWN_FUNCTIONS, orient="row")
        found = page(ledger=LEDGER, join=runs_own_functions, on_host=True, own_functions=rows)
        # Nothing tells Python from C++ that is no operator: it is no loss, and comes behind those.
        assert [(f.gain, f.ns_per_step, f.size) for f in found] == [("unknown", 0, 0)] * many
        assert all("5.00 ms per step" in f.evidence[0] for f in found)
    both = pl.DataFrame([(0, "SlowBackward", 6 * MS), (0, "Slow", 10 * MS)], OWN_FUNCTIONS, orient="row")
    (one,) = page(ledger=LEDGER, join=runs_own_functions, on_host=True, own_functions=both)
    assert one.claim.startswith("`Slow`, an autograd function of the job's own, is 8.0 % of a step")
    assert one.evidence[0] == "it counts as compute, 8.00 ms per step: 3.00 ms of it in the backward pass"
    two = [(rank, 0, "compute", 100) for rank in range(2)]
    assert not page(ledger=two, join=runs_own_functions, own_functions=rows)
