"""What the profiler itself does while the GPU idles is told above the numbers, and is a doubt of findings."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from lostflops.finding import Finding
from lostflops.report.first_page.notes.profiler_overhead import (
    AT_WORK,
    doubting,
    own_work,
    profiler_at_work,
    with_profiler,
)

ROW = {"rank": 0, "domain": "overhead", "name": "Buffer Flush"}
STEPS = pl.DataFrame(
    {"rank": 0, "step": step, "start": 100 * step, "end": 100 * step + 100, "counted": step < 3}
    for step in range(4)
)
GAPS = pl.DataFrame(
    {"rank": 0, "step": step, "start": 100 * step + 40, "end": 100 * step + 100} for step in range(4)
)


def told(*spans: tuple[int, int], name: str = "Buffer Flush") -> list[str]:
    rows = pl.DataFrame([{**ROW, "name": name, "start": start, "end": end} for start, end in spans])
    return [*profiler_at_work(own_work(rows.lazy()), GAPS, STEPS)]


def test_idle_time_in_which_the_profiler_works_is_told_per_step() -> None:
    """Of 30 ns that it works in step 1, the GPU idles in 20; three steps count."""
    (said,) = told((130, 160))
    assert said == (
        "The profiler itself works (Buffer Flush) for 7 ns per step (6.7 %) in which the GPU idles: without "
        "it the job idles less, whatever these pauses are charged to below."
    )
    assert told((130, 148)) == []  # 2.7 %
    assert told((130, 160), name="Lazy Function Loading") == []  # the job's own


def test_a_pause_of_the_profiler_in_a_step_that_does_not_count_is_told_apart() -> None:
    (said,) = told((340, 400))
    assert said.startswith("In step 3 the profiler itself works (Buffer Flush) for 60 ns while the GPU idles")
    assert told((340, 385)) == []  # not half of the step


@pytest.mark.parametrize(
    ("name", "claim", "notes", "doubted"),
    [
        ("idle-unexplained", "The GPU idles.", ["The profiler itself works"], True),
        ("idle-unexplained", "The GPU idles.", ["In step 3 the profiler"], False),
        ("outlier-step", "Step 3 took 9 ms", ["In step 3 the profiler"], True),
        ("outlier-step", "Step 4 took 9 ms", ["In step 3 the profiler"], False),
        ("outlier-step", "Step 3 took 9 ms", [], False),
    ],
)
def test_findings_about_such_time_are_doubted(name: str, claim: str, notes: list[str], doubted: bool) -> None:
    idle = Finding(name, claim, "unknown", (), "n", accounts=("idle.unexplained",))
    assert (with_profiler(idle, notes).doubt == AT_WORK) is doubted
    busy = replace(idle, accounts=("compute",))
    assert with_profiler(busy, notes) == busy


def test_where_a_finding_is_about_the_profiler_the_others_are_about_the_rest() -> None:
    idle = Finding("idle-unexplained", "c", "unknown", (), "n", accounts=("idle.unexplained",))
    own = replace(idle, name="profiler-at-work", accounts=())
    note = ["The profiler itself works"]
    assert doubting([idle], note)[0].doubt == AT_WORK
    assert doubting([idle, own], note) == (idle, own)
