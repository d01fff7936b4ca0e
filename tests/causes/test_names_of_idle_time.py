"""What idle time is called, and what is to be done about it, at the limits of each rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from by_hand import DATA, LAUNCHES, MS, PYTHON, SAVING, Rows, finding, page
from lostflops.causes.idle.named import _cheaper, own_code  # pyright: ignore[reportPrivateUsage]


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
