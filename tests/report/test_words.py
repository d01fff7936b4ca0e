"""What the page says of amounts: three digits in the unit that they round to, and shares of what is named."""

from __future__ import annotations

from pathlib import Path

import pytest

import kineto_files
import lostflops
from lostflops.finding import milliseconds


@pytest.mark.parametrize(
    ("ns", "said"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (999.6, "1.00 µs"),
        (9_996, "10.0 µs"),
        (99_951, "100 µs"),
        (999_499, "999 µs"),
        (999_950, "1.00 ms"),
        (-999_950, "-1.00 ms"),
        (999_600_000, "1.00 s"),
        (60_000_000_000, "60.0 s"),
    ],
)
def test_a_duration_has_three_digits_in_the_unit_that_it_rounds_to(ns: float, said: str) -> None:
    assert milliseconds(ns) == said


def two_streams(folder: Path, **more: str) -> Path:
    """Two steps of 100 µs with kernels of 80 and of 70 µs side by side."""
    name = more.get("name", "ampere_sgemm_128x64_nn")
    events: list[kineto_files.Event] = []
    for number in range(3):
        at = 1000 + 100 * number
        events += [kineto_files.step(number, at, 100), kineto_files.operator("aten::mm", at + 1, 9)]
        for place, (stream, length) in enumerate(((7, 80), (13, 70))):
            launch = 10 * number + place + 1
            events += [
                kineto_files.call(at + 2 + 3 * place, 2, launch),
                kineto_files.kernel(at + 10, length, launch, name, stream),
            ]
    return kineto_files.written(folder / "trace.json", kineto_files.trace(events))


def test_kernels_side_by_side_are_shares_of_kernel_time_and_not_of_compute(tmp_path: Path) -> None:
    page = lostflops.why(two_streams(tmp_path))
    assert page.budget is not None and page.budget.of("compute") == 3 * 80_000
    assert "150 µs (100.0 % of kernel time, some side by side)  ampere_sgemm" in str(page)


def test_a_kernels_name_that_is_cut_says_so(tmp_path: Path) -> None:
    text = str(lostflops.why(two_streams(tmp_path, name="ampere_sgemm_" + "x" * 300)))
    assert [line[-3:] for line in text.splitlines() if "ampere_sgemm_xx" in line] == ["xx…"]
