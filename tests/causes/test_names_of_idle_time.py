"""What idle time is called, and what is to be done about it, at the limits of each rule."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from by_hand import DATA, LAUNCHES, MS, PYTHON, SAVING, Rows, finding, page
from lostflops.causes.idle.named import _cheaper, own_code  # pyright: ignore[reportPrivateUsage]
from lostflops.recipes.host_steps import holds_passes, loops_over_steps
from made_runs import made


def test_a_call_that_only_asks_is_the_first_of_several_names() -> None:
    names = [(0, "idle.long_call", "cudaMemGetInfo", 30), (0, "idle.long_call", "cudaMemcpyAsync", 10)]
    (told,) = page(finding("long-api-calls", "idle.long_call", 10), names=names)
    assert told.next.startswith("Ask once, and keep what `cudaMemGetInfo` answers")


def test_a_function_that_launches_in_pieces_is_told_so_before_its_other_names() -> None:
    ema, other = "train.py(55): update_ema", "helpers.py(9): prepare"
    names = [(0, PYTHON, ema, 60), (0, PYTHON, other, 20), (0, LAUNCHES, f"aten::mul_ in {ema}", 30)]
    (told,) = page(finding("host-busy-elsewhere", PYTHON, 20), names=names)
    assert told.next.startswith("Give the GPU its work in fewer pieces in `update_ema` (train.py:55)")


def test_reading_fewer_values_saves_the_kernels_that_compute_them() -> None:
    ledger: Rows = [(0, 0, account, ms) for account, ms in (("compute", 85), (LAUNCHES, 15))]
    names = [
        (0, LAUNCHES, "aten::eq in train.py(9): finite", 12),
        (0, "idle.host_synchronisation", "cudaStreamSynchronize in train.py(9): finite", 3),
    ]
    launching = finding("launch-bound", LAUNCHES, 15)
    (told,) = page(launching, ledger=ledger, names=names, to_be_read=4 * MS)
    assert told.ns_per_step == 19 * MS and told.size == 15 * MS


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("train.py(3): tally", True),
        ("train.py(3): tally in helpers.py(4): all_of_them", True),
        ("torch/nn/modules/linear.py(3): forward", False),
        ("logging/__init__.py(1529): info", False),  # has a cause of its own
        ("train.py(3): <module>", False),
        ("aten::mm in train.py(3): tally", False),
        ("cudaStreamSynchronize", False),
    ],
)
def test_a_function_of_the_job_s_own_is_neither_pytorch_s_nor_a_script(name: str, own: bool) -> None:
    assert own_code(name) is own


def test_what_reads_from_somewhere_is_to_be_found() -> None:
    assert _cheaper("read", [], False).startswith("Find what `read` reads or writes: files can be read ahead")


@pytest.mark.parametrize(("besides", "told"), [(40, True), (44, False)])
def test_what_a_function_that_logs_does_besides_is_told_up_to_what_logging_costs(
    besides: int, told: bool
) -> None:
    """Of four steps that log for 10 ms."""
    one = finding("checkpoint-inside-step", SAVING, 10, "The CPU saves a checkpoint or logs.")
    names = [
        (0, SAVING, "logging/__init__.py(1): info in a.py(3): log", 40),
        (0, PYTHON, "json/encoder.py(1): dumps in a.py(3): log", besides),
        (0, DATA, None, 7),
    ]
    (found,) = page(one, names=names)
    assert (found.ns_per_step == 20 * MS) is told


def test_launching_and_python_of_one_function_gain_what_the_larger_bound_says() -> None:
    ema = "train.py(55): update_ema"
    names = [(0, LAUNCHES, f"aten::mul_ in {ema}", 60), (0, PYTHON, ema, 60), (0, DATA, "next", 1)]
    launches = finding("launch-bound", LAUNCHES, 15, "The CPU launches work too slowly.")
    python = finding("host-busy-elsewhere", PYTHON, 15, "The GPU idles while the CPU runs other code.")
    for first, second in ((20, 30), (30, 20)):
        bounds = {"launch-bound": first * MS, "host-busy-elsewhere": second * MS}
        (told,) = page(
            *(
                replace(one, ns_per_step=bounds[one.name], cost_per_step=15 * MS)
                for one in (launches, python)
            ),
            names=names,
        )
        assert (told.ns_per_step, told.size) == (30 * MS, 30 * MS)


def test_launching_is_compared_by_the_first_of_its_accounts() -> None:
    ema, other = "train.py(55): update_ema", "train.py(9): prepare"
    names = [(0, LAUNCHES, f"aten::mul_ in {ema}", 60), (0, PYTHON, ema, 60), (0, DATA, other, 60)]
    launches = finding("launch-bound", LAUNCHES, 15, "The CPU launches work too slowly.")
    python = finding("host-busy-elsewhere", PYTHON, 15, "The GPU idles while the CPU runs other code.")
    both = [replace(one, accounts=(*one.accounts, DATA)) for one in (launches, python)]
    (told,) = page(*both, names=names)
    assert "mostly in `update_ema`" in told.claim


SLEEP, LOOP, WORK = "time.sleep in a.py(3): f", "a.py(9): main", "a.py(8): crop"


@pytest.mark.parametrize(
    ("other", "most", "kept", "advice"),
    [
        (LOOP, 14, "30%", r"Take `time\.sleep` in `f` \(a\.py:3\) out of the step\."),
        ("a.py(7): forward", 14, "30%", r"Take `time\.sleep` in `f` \(a\.py:3\) out of the step\."),
        (LOOP, 6, "", r"`main` \(a\.py:9\) holds the training loop, and this is Python of its own lines .*"),
        (
            WORK,
            11,
            "0%",
            r"Take .* out of the step\. Make `crop` \(a\.py:8\) cheaper, or take it out .*",
        ),
        ("time.sleep in b.py(5): g", 11, "0%", r"Take .*:3\) and .*` in `g` \(b\.py:5\) out of the step\."),
    ],
)
def test_what_is_advised_is_what_the_prediction_takes_out(
    other: str, most: int, kept: str, advice: str
) -> None:
    """Of 20 ms in each step, `most` asleep: what a loop over steps or a whole phase does itself stays."""
    one = finding("host-busy-elsewhere", PYTHON, 20, "The GPU idles while the CPU runs other code.")
    for ranks in range(1, 3):
        each = [(rank, step) for rank in range(ranks) for step in range(2)]
        ledger = [(*at, account, ms) for at in each for account, ms in (("compute", 80), (PYTHON, 20))]
        names = [(rank, PYTHON, n, ms) for rank, _ in each for n, ms in ((SLEEP, most), (other, 20 - most))]
        (told,) = page(one, ledger=ledger, names=names, loops=frozenset({LOOP}))
        assert re.fullmatch(advice, told.next)
        # On several ranks each pause would keep a share of itself, and ranks wait for the longest.
        kept = kept if ranks == 1 or kept == "0%" else ""
        assert told.edit == (kept and f"host:other-host-work={kept}")


def test_a_function_of_which_a_call_holds_a_step_is_a_loop_over_steps(tmp_path: Path) -> None:
    """A call of `train` began before the step and ends in it, one of `epoch` begins with it."""
    rows = [("train", 0, 19), ("epoch", 10, 20), ("evaluate", 11, 30), ("main", 3, 40)]
    frames = [{"start": start, "end": end, "name": f"a.py(1): {name}"} for name, start, end in rows]
    steps = [{"step": n, "start": 10 * n + 5, "host_start": 10 * n, "end": 10 * n + 15} for n in (0, 1)]
    trace = made(tmp_path, {"frames": frames, "steps": steps, "ranks": [{"rank": 0}]})
    counted = pl.DataFrame({"rank": [0], "step": [1]}, {"rank": pl.Int32, "step": pl.Int64})
    assert set(loops_over_steps(trace, counted)["name"]) == {"a.py(1): main"}


def test_a_function_that_holds_a_backward_pass_is_not_to_be_taken_out_of_the_step(tmp_path: Path) -> None:
    """`closure` holds one, `tally` ends in one that another thread runs, `late` begins within it."""
    backward = "torch/_tensor.py(570): backward"
    rows = [("a.py(3): closure", 1, 9, 7), (backward, 4, 8, 7), ("a.py(4): late", 5, 8, 7)]
    rows += [("a.py(5): tally", 1, 9, 8), ("torch/optim/sgd.py(6): step", 0, 10, 7)]
    frames = [{"start": s, "end": e, "name": name, "thread": thread} for name, s, e, thread in rows]
    trace = made(tmp_path, {"frames": frames, "ranks": [{"rank": 0}]})
    passes = frozenset(holds_passes(trace)["name"])
    assert passes == {"a.py(3): closure"}
    one = finding("host-busy-elsewhere", PYTHON, 20, "The GPU idles while the CPU runs other code.")
    (told,) = page(one, names=[(0, PYTHON, "a.py(3): closure", 80)], passes=passes)
    assert told.next.startswith("`closure` (a.py:3) holds a backward pass") and not told.edit
    # On a CPU its operators stay, and its short pauses are what they cost.
    known: dict[str, Any] = {"on_host": True, "spent_in": lambda names: 400 * MS * bool(names)}
    ledger: Rows = [(0, n, account, ms) for n in range(4) for account, ms in (("compute", 80), (PYTHON, 20))]
    for long, bound in ((80, 20 * MS), (0, 0)):
        (told,) = page(
            one, ledger=ledger, names=[(0, PYTHON, "a.py(3): closure", 80)], passes=passes,
            in_long_pauses=long * MS, **known,
        )  # fmt: skip
        assert told.ns_per_step == bound
    assert told.claim.endswith("in the short pauses between operators.")
