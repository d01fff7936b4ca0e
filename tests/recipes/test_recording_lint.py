"""What `recording_lint` says of a recording is true of it."""

from __future__ import annotations

from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from lostflops.recipes import named
from lostflops.recipes.recording import checks
from lostflops.tables import TABLES
from lostflops.testing import example_table, on_example

RECIPE = named("recording_lint")
US = 10_000  # so long that no crossing is within the clock's error


def rows(**given: Any) -> list[dict[str, Any]]:
    return on_example(RECIPE, given).to_dicts()


def claims(**given: Any) -> list[str]:
    return [found.claim for found in RECIPE.findings(on_example(RECIPE, given))]


def steps(*lengths: int, first: int = 0, source: str = "profiler") -> list[dict[str, Any]]:
    made, at = [], 0
    for number, length in enumerate(lengths, first):
        made.append({"step": number, "start": at, "end": at + length, "complete": True, "source": source})
        at += length
    return made


def spans(*bounds: tuple[int, int], **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "start": US * a,
            "end": US * b,
            "name": f"{n}",
            "thread": 7,
            "nested": True,
            "complete": True,
            **more,
        }
        for n, (a, b) in enumerate(bounds)
    ]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 8)), max_size=7))
def test_ranges_that_are_said_to_cross_do_and_some_are_when_any_does(
    drawn: list[tuple[int, int]],
) -> None:
    bounds = [(start, start + length) for start, length in drawn]
    expected = {
        f"{n}" for n, (start, end) in enumerate(bounds) if any(a < start < b < end for a, b in bounds)
    }
    ranges = example_table(TABLES["ranges"], spans(*bounds)).with_columns(pl.col("name").cast(pl.String))
    found = set(checks.crossing(ranges.collect())["name"])
    assert found <= expected and bool(found) == bool(expected)


def test_ranges_that_cross_by_less_than_the_clock_tells_are_in_order() -> None:
    one = {"name": "a", "start": 0, "end": 50_000, "thread": 1, "nested": True, "complete": True}
    assert not rows(ranges=[one, {**one, "start": 10_000, "end": 50_900}], steps=[])
    assert rows(ranges=[one, {**one, "start": 10_000, "end": 51_100}], steps=[])


def test_a_range_around_the_call_that_ends_the_profilers_step_is_in_order() -> None:
    marks = [{**mark, "name": f"ProfilerStep#{n}"} for n, mark in enumerate(spans((0, 9), (9, 20)))]
    around = [{**own, "name": "train_step"} for own in spans((2, 11), (12, 18))]
    assert not rows(ranges=[*marks, *around], steps=[])
    assert rows(ranges=[*marks, *around, {**spans((5, 14))[0], "name": "load"}], steps=[])


def test_ranges_of_other_threads_ranks_and_kinds_do_not_cross() -> None:
    one = spans((0, 5))[0]
    other = spans((2, 9))[0]
    for change in ({"thread": 8}, {"rank": 1}, {"nested": False}, {"name": "gloo:all_reduce"}):
        assert not rows(ranges=[one, {**other, **change}], steps=[])
    assert rows(ranges=[one, other], steps=[])


def test_one_open_range_is_no_fault() -> None:
    assert not rows(ranges=spans((0, 5), (1, 5), complete=False), steps=[])
    assert claims(ranges=spans((0, 5), (1, 5), complete=False, name="epoch"), steps=[]) == [
        "2 ranges 'epoch' of one thread of rank 0 are open when the recording ends."
    ]


def test_a_first_step_is_slow_beside_all_others_and_not_beside_the_median() -> None:
    assert not rows(steps=steps(36, 10, 11, 30))
    assert [row["check"] for row in rows(steps=steps(46, 10, 11, 30))] == [checks.SLOW_FIRST]
    assert claims(steps=steps(46, 10, 11, 30)) == [
        "The first recorded step of rank 0 takes 46 ns, the median of the 3 whole ones after it 11 ns."
    ]


def test_a_first_step_that_the_recording_begins_in_may_be_slow_too() -> None:
    cut = steps(46, 10, 11, 30, 90)
    cut[0]["complete"] = cut[4]["complete"] = False
    assert claims(steps=cut) == [
        "The first recorded step of rank 0 takes 46 ns, the median of the 3 whole ones after it 11 ns."
    ]


def test_a_first_step_that_holds_earlier_work_is_not_compared() -> None:
    behind = steps(46, 10, 11, 30)
    behind[0]["left_out"] = "device was behind"
    assert not rows(steps=behind)
    # The next one is then the first.
    behind = steps(90, 46, 10, 11, 30)
    behind[0]["left_out"] = "device was behind"
    assert claims(steps=behind) == [
        "The first recorded step of rank 0 takes 46 ns, the median of the 3 whole ones after it 11 ns."
    ]


def test_steps_that_nobody_marked_are_not_counted() -> None:
    assert not rows(steps=steps(10, source="whole trace"))
    assert [row["found"] for row in rows(steps=steps(10, source="optimizer"))] == [1]
    assert claims(steps=[{**steps(10)[0], "complete": False}]) == ["No whole step of rank 0 was recorded."]


def busy(lengths: list[int], work: list[int]) -> dict[str, Any]:
    """Steps with a kernel of so long at the beginning of each."""
    made = steps(*lengths, first=5)
    kernels = [
        {"start": step["start"], "end": step["start"] + ns, "family": "gemm"}
        for step, ns in zip(made, work, strict=True)
    ]
    return {"steps": made, "kernels": kernels, "ranks": [{"device_kind": "gpu"}]}


def enough(lengths: list[int], work: list[int]) -> int:
    """From how many steps on no mean of a part of the step is further than 1 % of it from the last."""
    n = len(lengths)
    mean = sum(lengths) / n
    parts = [work, [length - w for length, w in zip(lengths, work, strict=True)]]
    for k in range(n, 0, -1):
        if any(abs(sum(part[:k]) / k - sum(part) / n) > 0.01 * mean for part in parts):
            return k + 1
    return 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(95, 105), st.integers(40, 60)), min_size=18, max_size=40))
def test_a_recording_is_longer_than_needed_when_a_quarter_of_it_says_the_same(
    drawn: list[tuple[int, int]],
) -> None:
    lengths, work = [1000 * a for a, _ in drawn], [1000 * b for _, b in drawn]
    ledger = pl.DataFrame(
        [
            {"rank": 0, "step": step, "start": step, "end": step + 1, "account": account, "ns": ns}
            for step, (whole, part) in enumerate(zip(lengths, work, strict=True))
            for account, ns in (("compute", part), ("idle.unexplained", whole - part))
        ],
        schema_overrides={"rank": pl.Int32},
    )
    found = checks.long_enough(ledger).to_dicts()
    k, n = max(enough(lengths, work), checks.FEWEST), len(drawn)
    assert [(row["found"], row["of"]) for row in found] == (
        [(k, n)] if n >= checks.MANY and 4 * k <= n else []
    )


def test_a_long_recording_is_said_with_its_numbers() -> None:
    (claim,) = claims(**busy([100] * 24, [61] * 24))
    assert claim == (
        "The first 3 of the 24 steps of rank 0 give the same mean step: "
        "no account is off by more than 1.0 % of it."
    )


def test_the_page_of_some_steps_tells_of_the_whole_recording() -> None:
    assert RECIPE.whole


def test_ranges_of_libraries_are_not_the_code_s_own() -> None:
    """NCCL marks each of its calls in a domain of its own, and nothing else is marked."""
    of_nccl = spans((0, 1), (4, 5), domain="NCCL")
    given = {"steps": steps(*[10 * US] * 3), "ranges": of_nccl}
    assert [row["check"] for row in rows(**given)] == []
    both = {**given, "ranges": of_nccl + spans((2, 5), domain="data")}
    assert [(row["check"], row["ns"]) for row in rows(**both)] == [("little covered", 3 * US)]
