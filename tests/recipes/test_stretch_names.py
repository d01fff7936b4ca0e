"""The names of idle stretches: the deepest row of at least half, the user's function, no lost nanosecond."""

from __future__ import annotations

import time
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lostflops.recipes.stretch_names import TELLING, is_users, named, says_nothing, spoken
from lostflops.tables import FRAMES, OPERATORS
from lostflops.testing import example_table

Row = tuple[int, int, str]
Part = tuple[int, int, str | None]


def names(stretches: list[tuple[int, int]], *tables: list[Row]) -> list[Part]:
    asked = pl.DataFrame(
        [{"rank": 0, "thread": 7, "start": start, "end": end} for start, end in stretches],
        {"rank": pl.Int32, "thread": pl.Int64, "start": pl.Int64, "end": pl.Int64},
    )
    rows = [
        example_table(table, [{"start": s, "end": e, "name": n, "thread": 7} for s, e, n in given]).collect()
        for table, given in zip((FRAMES, OPERATORS), tables, strict=False)
    ]
    return named(asked, rows).select("start", "end", "name").rows()


def test_a_sleep_is_named_with_the_user_s_function_around_it() -> None:
    frames = [
        (0, 1000, "train.py(80): <module>"),
        (1, 999, "train.py(16): step"),
        (3, 5, "torch/optim/adam.py(40): step"),
        (50, 990, "<built-in function sleep>"),
    ]
    assert names([(2, 995)], frames, [(3, 4, "aten::addcdiv_")]) == [
        (2, 995, "time.sleep in train.py(16): step")
    ]


def test_a_function_of_the_standard_library_is_named_and_not_what_it_calls_inside_its_file() -> None:
    frames = [
        (0, 1000, "train.py(3): remember"),
        (1, 999, "copy.py(119): deepcopy"),
        (2, 998, "copy.py(220): _deepcopy_dict"),
        (3, 997, "copy.py(119): deepcopy"),
        (4, 996, "copy.py(201): _deepcopy_list"),
    ]
    assert names([(10, 990)], frames) == [(10, 990, "copy.py(119): deepcopy in train.py(3): remember")]
    # Not where nobody of that file called it, nor in a library that names its ways of doing things so.
    alone = [(0, 1000, "train.py(3): remember"), (1, 999, "copy.py(201): _deepcopy_list")]
    assert names([(10, 990)], alone) == [(10, 990, "copy.py(201): _deepcopy_list in train.py(3): remember")]
    torchs = [
        (0, 1000, "torch/optim/adam.py(214): step"),
        (1, 999, "torch/optim/adam.py(347): _single_tensor_adam"),
    ]
    assert names([(10, 990)], torchs) == [(10, 990, "torch/optim/adam.py(347): _single_tensor_adam")]


def test_a_python_loop_keeps_the_name_of_its_function() -> None:
    """131 calls of an operator that take most of the time together, none of them a tenth."""
    frames = [(0, 1310, "train.py(5): main"), (0, 1310, "train.py(16): preprocess")]
    calls = [(10 * n, 10 * n + 9, "aten::randn") for n in range(131)]
    assert names([(0, 1310)], frames, calls) == [(0, 1310, "train.py(16): preprocess")]


def test_a_library_s_loop_is_named_by_the_user_s_function_that_it_calls() -> None:
    """A loader reads 20 samples, none of them a tenth: most of each is the user's augmentation."""
    frames = [
        (0, 1000, "train.py(40): main"),
        (0, 1000, "torch/utils/data/_utils/fetch.py(54): <listcomp>"),
        *((50 * n, 50 * n + 40, "train.py(9): __getitem__") for n in range(20)),
        *((50 * n + 1, 50 * n + 30, "PIL/Image.py(7): rotate") for n in range(20)),
    ]
    assert names([(0, 1000)], frames) == [(0, 1000, "train.py(9): __getitem__")]
    inner = [(50 * n + 2, 50 * n + 30, "train.py(12): augment") for n in range(20)]
    assert names([(0, 1000)], [*frames, *inner]) == [(0, 1000, "train.py(12): augment")]


def test_calls_that_are_less_than_half_of_their_loop_leave_it_its_name() -> None:
    frames = [
        (0, 1000, "train.py(40): main"),
        *((50 * n, 50 * n + 20, "train.py(9): encode") for n in range(20)),
    ]
    assert names([(0, 1000)], frames) == [(0, 1000, "train.py(40): main")]


def test_a_comprehension_is_named_with_the_function_that_it_stands_in() -> None:
    frames = [(0, 100, "train.py(3): tally"), (1, 99, "train.py(5): <listcomp>")]
    assert names([(0, 100)], frames) == [(0, 100, "train.py(5): <listcomp> in train.py(3): tally")]


def test_two_functions_that_share_a_stretch_are_named_apart() -> None:
    frames = [
        (0, 100, "train.py(5): main"),
        (5, 50, "train.py(16): preprocess"),
        (50, 95, "train.py(30): collate"),
    ]
    assert names([(0, 100)], frames) == [
        (0, 5, "train.py(5): main"),
        (5, 50, "train.py(16): preprocess"),
        (50, 95, "train.py(30): collate"),
        (95, 100, "train.py(5): main"),
    ]


def test_a_stretch_that_no_row_covers_is_cut_where_rows_change() -> None:
    operators = [(10, 40, "aten::mm"), (12, 30, "aten::empty"), (50, 52, "aten::add")]
    assert names([(0, 100)], [], operators) == [
        (0, 10, None),
        (10, 40, "aten::empty"),
        (40, 50, None),
        (50, 52, "aten::add"),
        (52, 100, None),
    ]


def test_what_every_call_passes_through_is_left_out() -> None:
    frames = [
        (0, 100, "train.py(9): step"),
        (1, 99, "torch/nn/modules/module.py(1773): _wrapped_call_impl"),
        (2, 98, "torch/utils/_contextlib.py(116): decorate_context"),
    ]
    assert names([(3, 90)], frames) == [(3, 90, "train.py(9): step")]
    inside = [*frames, (4, 89, "nn.Module: Linear_3")]
    assert names([(3, 90)], inside) == [(3, 90, "nn.Module: Linear_3 in train.py(9): step")]


@pytest.mark.parametrize("folder", ["", "steps/"])  # recordings of before and after the clock moved there
def test_what_records_is_not_what_the_job_does(folder: str) -> None:
    frames = [
        (0, 100, "train.py(9): keep"),
        (1, 99, f"lostflops_recorder/{folder}clock.py(201): counting"),
        (2, 98, "torch/serialization.py(943): save"),
    ]
    assert names([(3, 90)], frames) == [
        (3, 90, "torch/serialization.py(943): save in train.py(9): keep"),
    ]
    assert names([(3, 90)], frames[:2]) == [(3, 90, "train.py(9): keep")]
    # What it asks for itself is not the job's either, and what it calls for the job is.
    own = (1, 99, f"lostflops_recorder/{folder}clock.py(102): _passed")
    asks = [frames[0], own, (2, 98, "<built-in function thread_time_ns>")]
    assert names([(3, 90)], asks) == [(3, 90, f"{own[2]} in train.py(9): keep")]
    clock = (2, 98, "<built-in function monotonic_ns>")
    assert names([(3, 90)], [*frames[:2], clock]) == [(3, 90, f"{frames[1][2]} in train.py(9): keep")]
    assert names([(3, 90)], [frames[0], clock]) == [(3, 90, "monotonic_ns in train.py(9): keep")]
    thread = (2, 98, "threading.py(1168): ident")
    assert names([(3, 90)], [*frames[:2], thread]) == [(3, 90, f"{frames[1][2]} in train.py(9): keep")]
    mine = (2, 99, "train.py(3): wait")  # which the wrapper called for the job
    assert names([(4, 90)], [*frames[:2], mine, (3, 98, clock[2])]) == [
        (4, 90, "monotonic_ns in train.py(3): wait")
    ]
    calls = [frames[0], own, frames[2], (3, 97, "<built-in method write of _io.BufferedWriter object>")]
    assert names([(4, 90)], calls) == [(4, 90, "_io.BufferedWriter.write in train.py(9): keep")]


def test_a_row_that_outlives_the_one_it_began_in_is_not_lost() -> None:
    frames = [(0, 10, "train.py(3): enter"), (9, 200, "train.py(8): body")]
    assert names([(20, 180)], frames) == [(20, 180, "train.py(8): body")]


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("train.py(16): preprocess", True),
        ("src/model.py(3): forward", True),
        ("job.py(90): <module>", True),
        ("torch/nn/functional.py(3): relu", False),
        ("threading.py(324): wait", False),
        ("json/decoder.py(3): decode", False),
        ("transformers/trainer.py(3208): train", False),
        ("lostflops_recorder/hooks.py(57): outermost", False),
        ("nn.Module: Linear_3", False),
        ("<built-in function sleep>", False),
        ("<frozen importlib._bootstrap>(3): _load", False),
        ("<string>(1): __init__", False),
        ("aten::mm", False),
        ("cudaLaunchKernel", False),
        ("", False),
    ],
)
def test_the_user_s_functions_are_told_from_libraries(name: str, ours: bool) -> None:
    assert is_users(name) is ours


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("<built-in function sleep>", "time.sleep"),
        ("<built-in method item of Tensor object at 0x7f11dcef5090>", "Tensor.item"),
        ("<built-in method write of _io.BufferedWriter object>", "_io.BufferedWriter.write"),
        ("<built-in method run_backward of torch._C._EngineBase object at 0x7f>",
         "torch._C._EngineBase.run_backward"),
        ("<built-in method tensor of type object at 0x7f0>", "torch.tensor"),
        ("<built-in method fromkeys of type object at 0x7f0>", "fromkeys"),
        ("<function f at 0x7f00aa>", "<function f>"),
        ("aten::mm", "aten::mm"),
    ],
)  # fmt: skip
def test_a_row_is_called_as_people_call_it(name: str, said: str) -> None:
    assert spoken(name) == said


# -- an oracle that looks at every instant ------------------------------------------------------------------

USERS = ["a.py(1): f", "b.py(2): g", "c.py(3): h"]
LIBRARY = ["torch/x.py(4): k", "aten::mm"]


@st.composite
def trees(draw: st.DrawFn) -> list[Row]:
    """Rows that nest, as frames do."""
    rows: list[Row] = []

    def grow(start: int, end: int, depth: int) -> None:
        at = start
        while at < end and len(rows) < 25:
            begin = draw(st.integers(at, end))
            stop = draw(st.integers(begin, end))
            if stop > begin:
                rows.append((begin, stop, draw(st.sampled_from(USERS + LIBRARY))))
                if depth < 4 and draw(st.booleans()):
                    grow(begin, stop, depth + 1)
            at = max(stop, at + 1)

    grow(0, 60, 0)
    return rows


def with_calls_as_one(start: int, end: int, rows: list[Row]) -> list[Row]:
    """The rows, and one for the short calls of a function of the user's that are made from one place."""
    cut = [(max(s, start), min(e, end), name) for s, e, name in rows if s < end and e > start]
    long = [(e - s) * TELLING >= end - start for s, e, _ in cut]
    some = [i for i, (_, _, name) in enumerate(cut) if long[i] or name in USERS]
    order = sorted(some, key=lambda i: (cut[i][0], -cut[i][1], i))
    stack: list[int] = []
    places: dict[int, tuple[Any, ...]] = {}
    calls: dict[tuple[Any, ...], list[int]] = {}
    for i in order:
        while stack and cut[stack[-1]][1] <= cut[i][0]:
            stack.pop()
        around = places[stack[-1]] if stack else ()
        places[i] = (i,) if long[i] else (*around, cut[i][2])
        if not long[i]:
            calls.setdefault(places[i], []).append(i)
        stack.append(i)
    made: list[Row] = []
    for place, of in sorted(calls.items(), key=lambda item: len(item[0])):
        a, b = min(cut[i][0] for i in of), max(cut[i][1] for i in of)
        filled = 2 * sum(cut[i][1] - cut[i][0] for i in of) >= b - a
        if len(of) > 1 and filled and (b - a) * TELLING >= end - start:
            made.append((a, b, str(place[-1])))
    return rows + made


def expected(start: int, end: int, rows: list[Row]) -> list[str | None]:
    """The name of every instant of a stretch, by the rule as it is written."""
    rows = with_calls_as_one(start, end, rows)
    order = sorted(range(len(rows)), key=lambda i: (rows[i][0], -rows[i][1], i))
    parent: dict[int, int | None] = {}
    stack: list[int] = []
    for i in order:
        while stack and rows[stack[-1]][1] <= rows[i][0]:
            stack.pop()
        parent[i] = stack[-1] if stack else None
        stack.append(i)

    def shared(i: int, a: int, b: int) -> int:
        return max(min(rows[i][1], b) - max(rows[i][0], a), 0)

    tells = [i for i in order if any(shared(i, start, end) * TELLING >= end - start for _ in (0,))]

    def above(i: int | None) -> int | None:
        return None if i is None else parent[i] if parent[i] in (None, *tells) else above(parent[i])

    def word(i: int | None) -> str | None:
        if i is None:
            return None
        up: int | None = i
        while up is not None and rows[up][2] not in USERS:
            up = parent[up]
        return rows[i][2] if up in (None, i) else f"{rows[i][2]} in {rows[up][2]}"

    def cover(a: int, b: int, node: int | None, pool: list[int], answer: dict[int, str | None]) -> None:
        below = [
            i for i in pool if above(i) == node and shared(i, a, b) * TELLING >= b - a and shared(i, a, b)
        ]
        whole = sum(shared(i, a, b) for i in below)
        large = [
            i for i in below if 2 * shared(i, a, b) >= b - a and TELLING * (whole - shared(i, a, b)) < b - a
        ]
        if large:
            best = max(large, key=lambda i: (shared(i, a, b), -rows[i][0]))
            cover(a, b, best, pool, answer)
            return
        for t in range(a, b):
            answer[t] = word(node)
        if below and (node is None or 2 * sum(shared(i, a, b) for i in below) >= b - a):
            for i in below:
                cover(max(a, rows[i][0]), min(b, rows[i][1]), i, pool, answer)

    answer: dict[int, str | None] = {}
    whole = [i for i in tells if rows[i][0] <= start and rows[i][1] >= end]
    cover(start, end, whole[-1] if whole else None, tells, answer)
    small = [i for i in order if i not in tells]
    for t in range(start, end):
        if answer[t] is None:
            for i in small:
                if rows[i][0] <= t < rows[i][1]:
                    answer[t] = rows[i][2]
                    break
    return [answer[t] for t in range(start, end)]


@settings(max_examples=150, deadline=None)
@given(
    trees(), st.lists(st.integers(0, 60), min_size=2, max_size=2, unique=True), st.sampled_from([0, 10**18])
)
def test_every_instant_has_the_name_that_the_rule_gives(
    rows: list[Row], bounds: list[int], origin: int
) -> None:
    start, end = sorted(bounds)
    moved = [(s + origin, e + origin, n) for s, e, n in rows]
    parts = names([(start + origin, end + origin)], moved)
    assert sum(b - a for a, b, _ in parts) == end - start
    assert [name for a, b, name in parts for _ in range(a, b)] == expected(start, end, rows)


@settings(max_examples=60, deadline=None)
@given(trees(), st.lists(st.integers(0, 60), min_size=4, max_size=4, unique=True))
@example(
    [(0, 28, "a.py(1): f"), (0, 27, "b.py(2): g")], [0, 1, 25, 46]
)  # the inner one tells the first alone
def test_stretches_do_not_meddle_with_each_other(rows: list[Row], bounds: list[int]) -> None:
    a, b, c, d = sorted(bounds)

    def spread(*stretches: tuple[int, int]) -> list[str | None]:
        return [name for x, y, name in names(list(stretches), rows) for _ in range(x, y)]

    assert spread((a, b), (c, d)) == spread((a, b)) + spread((c, d))


def test_a_million_frames_take_no_long() -> None:
    many, deep = 30_000, 30
    start = pl.int_range(many * deep, eager=True)
    frames = pl.DataFrame(
        {
            "start": start // deep * 1000 + start % deep,
            "end": start // deep * 1000 + 990 - start % deep,
        }
    ).with_columns(
        rank=pl.lit(0, dtype=pl.Int32),
        thread=pl.lit(7, dtype=pl.Int64),
        name=pl.format("train.py({}): f", start % deep).cast(pl.Categorical),
    )
    asked = pl.DataFrame({"start": pl.int_range(many, eager=True) * 1000 + 100}).with_columns(
        end=pl.col("start") + 700, rank=pl.lit(0, dtype=pl.Int32), thread=pl.lit(7, dtype=pl.Int64)
    )
    began = time.perf_counter()
    table = named(asked, [frames])
    assert time.perf_counter() - began < 15
    assert table["name"].unique().to_list() == ["train.py(29): f"] and table.height == many


def test_a_step_and_a_wrapper_say_nothing() -> None:
    assert says_nothing("ProfilerStep#7") and says_nothing("contextlib.py(70): inner")
    assert not says_nothing("train.py(7): step")


def test_no_rows_leave_no_name() -> None:
    assert names([(3, 9)], []) == [(3, 9, None)]
    empty: list[Any] = []
    assert names(empty, [(0, 9, "aten::mm")]) == []
