"""Amounts, times, counts and ranges: read as people write them, and written so that they are read back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lostflops import units
from lostflops.errors import BadOption, Refused

SIZES = {
    "70 GiB": 70 << 30,
    "8GB": 8 * 10**9,
    "8gb": 8 * 10**9,
    "8 G": 8 << 30,
    "8Gi": 8 << 30,
    "1.5MB": 1_500_000,
    "512 kB": 512_000,
    "64K": 64 << 10,
    "1.5e9": 1_500_000_000,
    "2e3 MiB": 2000 << 20,
    " 123 ": 123,
    ".5 TiB": 1 << 39,
    "9007199254740993": 9_007_199_254_740_993,  # a float would lose the last digit
}


@pytest.mark.parametrize(("text", "expected"), SIZES.items())
def test_a_size_is_read_as_it_is_written(text: str, expected: int) -> None:
    assert units.size(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "0.5",
        "-3 GB",
        "nan",
        "inf",
        "much",
        "5 Gib",
        "5 Gb",
        "9" * 30,
        "1e99",
        "1 GB\x1b",
        "1,5 GB",
        "٣ GB",
    ],
)
def test_what_is_no_size_is_refused_with_what_is_accepted(text: str) -> None:
    with pytest.raises(BadOption, match=r"`--budget` is .* no amount of memory") as refused:
        units.size(text, "--budget")
    assert "'70 GiB', '512 MB' or a number of bytes" in refused.value.hint
    assert "\x1b" not in str(refused.value)
    with pytest.raises(Refused, match="no amount of memory"):
        units.bytes_of(text if text != "0" and text != "0.5" else "-1")


def test_a_number_alone_has_the_unit_that_its_flag_says() -> None:
    assert units.size("256", bare="GB") == 256 * 10**9
    assert units.size("256 GiB", bare="GB") == 256 << 30
    with pytest.raises(BadOption, match=r"`--host-memory`") as refused:
        units.size("lots", "--host-memory", bare="GB")
    assert refused.value.hint == "write '70 GiB', '512 MB' or a number of GB."


SECONDS = {"90": 90, "1.5": 1.5, ".5": 0.5, "300 ms": 0.3, "200ms": 0.2, "2m": 120, "2 min": 120, "1h": 3600,
           "10us": 1e-5, "10 µs": 1e-5, "7ns": 7e-9, "0": 0}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), SECONDS.items())
def test_a_time_is_read_as_it_is_written(text: str, expected: float) -> None:
    assert units.seconds(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "-1", "1 d", "1:30", "1m30s", "1e3", "9" * 12, "nan"])
def test_what_is_no_time_is_refused_with_what_is_accepted(text: str) -> None:
    with pytest.raises(BadOption, match=r"`--duration` is .* not a time") as refused:
        units.seconds(text, "--duration")
    assert "`--duration 300ms`" in refused.value.hint
    with pytest.raises(BadOption, match="is not a time"):
        units.seconds(text)


def test_ranges_are_read_with_both_ends() -> None:
    assert units.span("10-14") == (10, 14)
    assert units.span(" 7 ") == (7, 7)
    assert units.spans("8 - 15, 0") == ((8, 15), (0, 0))
    assert units.open_spans("3,10-") == ((3, 3), (10, None))
    assert units.numbers("0,2-4,3") == {0, 2, 3, 4}


SEVERAL = "write `--steps 10-14`, one number, or several with commas."
WRONG: list[tuple[Callable[..., Any], str, str, str]] = [
    (units.span, "x", "'x' names no steps.", "write `--steps 10-14`, or one number."),
    (units.span, "10-", "'10-' names no steps.", "write `--steps 10-14`, or one number."),
    (units.span, "1,2", "'1,2' names no steps.", "write `--steps 10-14`, or one number."),
    (units.spans, "1,", "'1,' names no steps.", SEVERAL),
    (
        units.spans,
        "1,4-",
        "'1,4-' names no steps.",
        SEVERAL,
    ),
    (units.spans, "1,7-3", "The steps '7-3' end before they begin.", "write `--steps 3-7`."),
    (units.span, "-3", "'-3' names no steps.", "write `--steps 10-14`, or one number."),
    (units.numbers, "0-9999999", "'0-9999999' names more than a million steps.", "name fewer."),
]


@pytest.mark.parametrize(("reader", "text", "message", "hint"), WRONG)
def test_what_is_no_range_is_refused_in_words(
    reader: Callable[..., Any], text: str, message: str, hint: str
) -> None:
    with pytest.raises(BadOption) as refused:
        reader(text, "--steps", "steps")
    assert (refused.value.message, refused.value.hint) == (message, hint)


def test_counts_are_read_with_and_without_thousands() -> None:
    assert [units.count(text) for text in ("0", "4096", "4,096", "1_000_000")] == [0, 4096, 4096, 10**6]
    with pytest.raises(BadOption, match=r"`--gpus` is '-1,024', which is below zero"):
        units.count("-1,024", "--gpus")
    for wrong in ("", "--1", "1.5", "4,09", "1e3", "many"):
        with pytest.raises(BadOption, match=r"`--gpus` is .* no whole number"):
            units.count(wrong, "--gpus")


# What is written is read back.


@given(st.integers(0, 1 << 59))
def test_a_written_size_is_read_back_to_three_digits(amount: int) -> None:
    text = units.written(amount)
    assert units.size(text.replace(",", ""), least=0) == pytest.approx(amount, rel=0.005001, abs=0)
    assert "e" not in text.lower()


def test_a_read_size_is_the_nearest_whole_byte() -> None:
    assert units.size("1.12KiB") == 1147  # 1,146.88


@given(st.integers(0, 1 << 59), st.integers(0, 1 << 59))
def test_written_sizes_keep_their_order(one: int, other: int) -> None:
    low, high = (units.size(units.written(n).replace(",", ""), least=0) for n in sorted((one, other)))
    assert low <= high


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 B"),
        (1000, "1,000 B"),
        (1023, "1,023 B"),
        (1024, "1 KiB"),
        (5_000_000, "4.77 MiB"),
        ((1 << 20) - 1, "1.00 MiB"),
        (41 << 30, "41 GiB"),
        (41 * 2**30 + 5, "41.0 GiB"),
        (99_960 << 10, "97.6 MiB"),
        (1000 << 20, "0.977 GiB"),
        (5 << 50, "5,120 TiB"),
    ],
)
def test_a_size_is_written_with_three_digits_and_a_binary_unit(amount: int, text: str) -> None:
    assert units.written(amount) == text


@given(st.integers(0, 10**15))
def test_a_written_time_is_read_back_to_three_digits(ns: int) -> None:
    assert units.seconds(units.milliseconds(ns)) == pytest.approx(ns / 1e9, rel=0.00501)


@given(st.frozensets(st.integers(0, 5000), min_size=1))
def test_written_ranges_are_read_back(numbers: frozenset[int]) -> None:
    assert units.numbers(units.written_spans(numbers)) == numbers


@given(st.integers(0, 10**17))
def test_a_count_is_read_back_with_commas_and_underscores(number: int) -> None:
    assert units.count(f"{number:,}") == units.count(f"{number:_}") == units.count(str(number)) == number


@given(st.text(max_size=30))
def test_no_text_breaks_a_reader(text: str) -> None:
    for reader in (units.size, units.seconds, units.count, units.span, units.spans, units.numbers):
        try:
            reader(text, "--flag")
        except BadOption as refused:
            assert refused.hint and "\n" not in refused.message


def test_a_rate_has_three_figures_and_no_exponent() -> None:
    rates = 0.0417, 1.99668, 11.94, 99.94, 99.96, 1234.5, 262_144.0
    assert [units.three_figures(rate) for rate in rates] == [
        "0.0417", "2.00", "11.9", "99.9", "100", "1,230", "262,000"
    ]  # fmt: skip
