"""What a job on a CPU does between its operators: memory that is freed, and nodes that run no Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from by_hand import DATA, MS, PYTHON, UNEXPLAINED, WAITS, finding, page
from lostflops.accounts import ACCOUNTS
from lostflops.causes.idle.named import _cheaper  # pyright: ignore[reportPrivateUsage]
from lostflops.recipes.idle.costs import idle_costs_step_time
from lostflops.recipes.needless.given_back import GIVEN_BACK, given_back
from lostflops.recipes.steps.log_core_waits import a_core_is_missing
from made_runs import made

NODE = "autograd::engine::evaluate_function: "
ADAM = "torch/optim/adam.py(347): _single_tensor_adam in a.py(3): f"
RELU = "torch/nn/functional.py(9): relu in a.py(3): f"


@pytest.mark.parametrize(
    ("name", "python"),
    [
        ("EmbeddingBackward0", False),
        ("torch::autograd::AccumulateGrad", False),
        ("EmbeddingBackward0 in a.py(3): f", False),
        ("MyFnBackward", True),  # of a torch.autograd.Function of the job's own
    ],
)
def test_python_is_not_promised_in_a_node_of_autograd_in_c(name: str, python: bool) -> None:
    said = _cheaper(NODE + name, [], False)
    assert ("To see which Python runs in it" in said) is python
    assert ("in C++: no Python runs in it" in said) is not python


@pytest.mark.parametrize(
    ("name", "shape", "operators", "ms"),
    [
        (ADAM, "[[200000,64]]", 5, 4),
        (f"{NODE}EmbeddingBackward0 in a.py(3): f", "[[200000,64]]", 5, 4),
        (ADAM, "[[131071,64]]", 5, 0),  # 33.55 MB, which glibc learns to keep
        (ADAM, "[[200000,64]]", 500, 0),  # so many that Python around them takes as long
        ("a.py(3): f", "[[200000,64]]", 5, 0),
        (f"{NODE}MyFnBackward", "[[200000,64]]", 5, 0),
        ("Optimizer.step#Mine.step", "[[200000,64]]", 5, 0),
    ],
)
def test_pauses_are_of_freed_memory_in_pytorch_s_own_code_beside_large_tensors(
    tmp_path: Path, name: str, shape: str, operators: int, ms: int
) -> None:
    rows = [
        {"name": "aten::sqrt", "start": 50 * n, "end": 50 * n + 9, "shapes": shape, "dtypes": '["float"]'}
        for n in range(operators)
    ]
    steps = [{"step": 0, "start": 0, "end": 10 * MS, "host_start": 0, "host_end": 10 * MS}]
    tables: dict[str, Any] = {"ranks": [{"device_kind": "cpu"}], "steps": steps, "operators": rows}
    trace = made(tmp_path, tables)
    counted = pl.DataFrame({"rank": [0], "step": [0]}, {"rank": pl.Int32, "step": pl.Int64})
    pauses = [(PYTHON, name, 5 * MS, 9 * MS), (PYTHON, name, 9 * MS, 9_900_000), (DATA, name, 0, 5 * MS)]
    stretches = pl.DataFrame(pauses, ["account", "name", "start", "end"], orient="row").with_columns(
        rank=pl.lit(0, pl.Int32), step=pl.lit(0, pl.Int64)
    )
    told = given_back(trace, counted, stretches)
    assert told.rows() == ([(0, name, ms * MS, 51_200_000)] if ms else [])
    if ms:  # what other allocators do is not known
        versions = "torch 2.13.0, jemalloc 2"
        trace = made(tmp_path, tables | {"ranks": [{"device_kind": "cpu", "versions": versions}]})
        assert given_back(trace, counted, stretches).is_empty()


@pytest.mark.parametrize(
    ("name", "freed", "does"), [(ADAM, 40, "frees"), (RELU, 24, "mostly frees"), (ADAM, 20, "runs Python")]
)
def test_freed_memory_is_no_python_of_the_optimizer_s_and_has_no_bound(
    name: str, freed: int, does: str
) -> None:
    """Operators wait for new pages, too: what keeping memory gains is more than the pauses."""
    rows = pl.DataFrame([(0, name, freed * MS, 51_200_000)], GIVEN_BACK, orient="row")
    one = finding("host-busy-elsewhere", PYTHON, 10, "It idles while the CPU runs other code.")
    known: dict[str, Any] = {"on_host": True, "in_long_pauses": 40 * MS, "spent_in": lambda *_: 90 * MS}
    (told,) = page(one, names=[(0, PYTHON, name, 40)], given_back=rows, **known)
    assert f"the CPU {does}" in told.claim
    if does != "runs Python":
        assert "tensors take up to 51.2 MB" in told.evidence[0]
        assert (told.gain, told.ns_per_step, told.size) == ("unknown", 0, 10 * MS)
        assert "MALLOC_MMAP_MAX_=0" in told.next and not told.edit
        assert told.doubt.startswith("how memory is allocated was not recorded")


@pytest.mark.parametrize(
    ("name", "bounded"),
    [
        (ADAM, False),  # to be fused, which saves operators
        (f"{NODE}AddmmBackward0", False),
        ("a.py(3): forward", False),
        ("a.py(3): tally", True),
        ("time.sleep in a.py(3): forward", True),
    ],
)
def test_what_is_advised_to_be_fewer_operators_has_no_bound_on_a_cpu(name: str, bounded: bool) -> None:
    one = finding("host-busy-elsewhere", PYTHON, 10, "It idles while the CPU runs other code.")
    (told,) = page(one, names=[(0, PYTHON, name, 40)], on_host=True, in_long_pauses=40 * MS)
    assert (told.gain, told.ns_per_step, told.size) == (
        ("at most", 10 * MS, 10 * MS) if bounded else ("unknown", 0, 10 * MS)
    )
    assert bounded or told.edit == "none"


@pytest.mark.parametrize("name", ["host-busy-elsewhere", "idle-unexplained"])
def test_waiting_for_a_core_may_lie_in_pauses_that_nothing_explains(name: str) -> None:
    crowded = finding("waits-for-a-core", "", 7, recipe="step_log_core_waits", accounts=())
    sizes = ((15, "7.00"),) if name == "idle-unexplained" else ((12, "7.00"), (5, "5.00"))
    for size, up_to in sizes:
        _, pauses = page(crowded, finding(name, UNEXPLAINED, size), on_host=True)
        fact = f"up to {up_to} ms of it may be waiting for a core, which another finding tells"
        assert pauses.evidence == (fact,)


def test_pauses_that_waiting_for_a_core_may_explain_are_no_cause_beside_it() -> None:
    """As of a job in which another thread saves: neither knows what the other's time is."""
    crowded = finding("waits-for-a-core", "", 7, recipe="step_log_core_waits", accounts=())
    (told,) = page(crowded, finding("idle-unexplained", UNEXPLAINED, 14, "It idles."), on_host=True)
    assert told.name == "waits-for-a-core" and told.size == 7 * MS
    assert told.evidence == ("It idles: up to 7.00 ms of it may be this waiting",)
    # A thread that is blocked is not ready to run.
    off = pl.DataFrame({"blocked": [14 * MS], "counted": [True]})
    blocked = page(
        crowded, finding("idle-unexplained", UNEXPLAINED, 14), on_host=True, tables={"step_log_off_core": off}
    )
    assert [f.name for f in blocked] == ["waits-for-a-core", "idle-unexplained"]


def test_the_bound_of_a_loader_on_a_cpu_says_that_it_holds_operators_and_communication_has_none() -> None:
    row = {"step_share": [0.12], "steps": [3], "per_step": [12 * MS], "host_per_step": [32 * MS]}
    row |= {"most": [12 * MS], "most_on": [0], "on_host": [True]}
    for name, at_most, gain in ((DATA, 32 * MS, "at most"), (WAITS, None, "unknown")):
        account = ACCOUNTS[name]
        table = pl.DataFrame({**row, "account": [name], "at_most": [at_most]})
        (told,) = idle_costs_step_time(table, account, account.loss)  # pyright: ignore[reportArgumentType]
        assert (told.gain, told.ns_per_step, told.size) == (gain, at_most or 0, 12 * MS)
        wider = "upper limit: the CPU spends 32.0 ms per step on this, with the operators that it calls"
        assert (wider in told.evidence) is (at_most is not None)


def test_that_cores_save_no_more_than_the_step_is_no_bound() -> None:
    rows = {"counted": [True], "lost": [9], "step_time": [40], "core_wait": [9], "rank": [0]}
    for most, gain in ((40, ("unknown", 0)), (39, ("at most", 39))):
        (told,) = a_core_is_missing(pl.DataFrame({**rows, "most": [most]}))
        assert (told.gain, told.ns_per_step) == gain and told.size == 9
