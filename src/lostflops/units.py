"""Amounts, times, counts and ranges as people write them: one reader and one writer for the whole house.

    size("70 GiB"), size("1.5e9")     whole bytes; GB is 1e9, GiB and a bare G are 2**30
    seconds("300 ms"), seconds("2m")  seconds, which a number without a unit means too
    span("10-14"), spans("0,8-15")    whole numbers, both ends included
    count("1,000")                    a whole number

A reader raises BadOption, which says what was written and what is accepted. What a writer wrote, the reader
of its kind reads back, to the digits that are shown.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from decimal import Decimal

from lostflops.errors import BadOption, Refused, shown

_NUMBER = r"([0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:[eE]\+?([0-9]{1,2}))?"
_QUANTITY = re.compile(rf"\s*{_NUMBER}\s*([A-Za-zµμ]*)\s*", re.ASCII)
_COUNT = re.compile(r"\s*([0-9]{1,3}(?:[,_][0-9]{3})+|[0-9]{1,18})\s*")
_SPAN = re.compile(r"\s*([0-9]{1,18})\s*(?:(-)\s*([0-9]{1,18})?\s*)?")
_BINARY = {letter: 1 << 10 * power for power, letter in enumerate("KMGTP", 1)}
# A bare letter is binary, as in `docker run --memory 8G`, Slurm's `--mem=8G` and nccl-tests' `-b 8M`.
BYTES = (
    {"B": 1}
    | {f"{letter}{end}": whole for letter, whole in _BINARY.items() for end in ("", "I", "IB")}
    | {f"{letter}B": 1000**power for power, letter in enumerate(_BINARY, 1)}
)
SECONDS = {
    "ns": Decimal("1e-9"), "us": Decimal("1e-6"), "µs": Decimal("1e-6"), "μs": Decimal("1e-6"),
    "ms": Decimal("1e-3"), "s": Decimal(1), "m": Decimal(60), "min": Decimal(60), "h": Decimal(3600),
}  # fmt: skip
MOST_BYTES = 1 << 60
MOST_NUMBERS = 10**6
UP = 0.9995  # from this share of a unit on, three digits round to it


def size(text: str, flag: str = "", *, bare: str = "B", least: int = 1) -> int:
    """Whole bytes. `bare` is the unit of a number without one."""
    found = _quantity(text)
    unit = _bytes(found[1] or bare) if found else None
    value = round(found[0] * unit) if found and unit else -1
    if not least <= value <= MOST_BYTES:
        alone = "a number of bytes" if bare == "B" else f"a number of {bare}"
        raise BadOption(f"{_given(text, flag)} no amount of memory.", f"write '70 GiB', '512 MB' or {alone}.")
    return value


def _bytes(unit: str) -> int | None:
    """Of one unit. 'Gb' and 'Gib' would be bits, and are not read."""
    odd = unit.endswith("b") and not unit.islower()
    return None if odd else BYTES.get(unit.upper())


def bytes_of(amount: int | str) -> int:
    """Whole bytes of an argument in Python, a number or text. Raises Refused."""
    if not isinstance(amount, str):
        if amount < 0:
            raise Refused(f"{amount} bytes are no amount of memory", "give 0 or more, or text as in '70 GiB'")
        return int(amount)
    try:
        return size(amount, least=0)
    except BadOption as error:
        raise Refused(error.message.rstrip("."), error.hint.rstrip(".")) from error


def seconds(text: str, flag: str = "") -> float:
    """Seconds, zero or more."""
    found = _quantity(text, exponents=False)
    unit = SECONDS.get(found[1].lower() or "s") if found else None
    if not found or unit is None or found[0] >= 10**10:
        example = f"`{flag} 30`, `{flag} 300ms` or `{flag} 2m`" if flag else "30, '300 ms' or '2m'"
        raise BadOption(f"{_given(text, flag)} not a time.", f"write seconds or another unit: {example}.")
    return float(found[0] * unit)


def _quantity(text: str, exponents: bool = True) -> tuple[Decimal, str] | None:
    """A number, exactly, and what follows it."""
    found = _QUANTITY.fullmatch(text)
    if found and found[2] and not exponents:
        return None
    return (Decimal(found[1]).scaleb(int(found[2] or 0)), found[3]) if found else None


def _given(text: str, flag: str) -> str:
    return f"`{flag}` is '{shown(text)}', which is" if flag else f"'{shown(text)}' is"


def count(text: str, flag: str = "") -> int:
    """A whole number, with commas or underscores between thousands or without."""
    found = _COUNT.fullmatch(text)
    if not found and _COUNT.fullmatch(text.strip().removeprefix("-")):
        raise BadOption(f"{_given(text, flag)} below zero.", "count from 0 or 1 on.")
    if not found:
        raise BadOption(f"{_given(text, flag)} no whole number.", "write it in digits, as in 4096 or 4,096.")
    return int(found[1].replace(",", "").replace("_", ""))


def span(text: str, flag: str = "", noun: str = "numbers") -> tuple[int, int]:
    """'3-7' as (3, 7) and '3' as (3, 3)."""
    first, last = _span(text, text, flag, noun, several=False)
    if last is None:
        raise _no_span(text, flag, noun, several=False)
    return first, last


def spans(text: str, flag: str = "", noun: str = "numbers") -> tuple[tuple[int, int], ...]:
    """'0,8-15' as ((0, 0), (8, 15)), in the order of writing."""
    found: list[tuple[int, int]] = []
    for first, last in open_spans(text, flag, noun):
        if last is None:
            raise _no_span(text, flag, noun)
        found.append((first, last))
    return tuple(found)


def open_spans(text: str, flag: str = "", noun: str = "numbers") -> tuple[tuple[int, int | None], ...]:
    """As `spans`, where '10-' goes on without end: (10, None)."""
    return tuple(_span(part, text, flag, noun) for part in text.split(","))


def numbers(text: str, flag: str = "", noun: str = "numbers") -> frozenset[int]:
    """'0,2-4' as {0, 2, 3, 4}; at most a million."""
    found = spans(text, flag, noun)
    if sum(high - low + 1 for low, high in found) > MOST_NUMBERS:
        raise BadOption(f"'{shown(text)}' names more than a million {noun}.", "name fewer.")
    return frozenset(n for low, high in found for n in range(low, high + 1))


def _span(part: str, text: str, flag: str, noun: str, several: bool = True) -> tuple[int, int | None]:
    found = _SPAN.fullmatch(part)
    if not found:
        raise _no_span(text, flag, noun, several)
    first, last = int(found[1]), int(found[3] or found[1])
    if last < first:
        example = f"{last}-{first}"
        raise BadOption(
            f"The {noun} '{shown(part)}' end before they begin.",
            f"write `{flag} {example}`." if flag else f"write '{example}'.",
        )
    return first, None if found[2] and not found[3] else last


def _no_span(text: str, flag: str, noun: str, several: bool = True) -> BadOption:
    example = f"`{flag} 10-14`" if flag else "'10-14'"
    more = ", one number, or several with commas" if several else ", or one number"
    return BadOption(f"'{shown(text)}' names no {noun}.", f"write {example}{more}.")


# Writers.


def written(amount: float) -> str:
    """Bytes in text: three digits and a binary unit, '4.70 MiB'; whole amounts as such, '40 MiB'."""
    if abs(amount) < 1024:
        return f"{amount:,.0f} B"
    names = iter(("KiB", "MiB", "GiB", "TiB"))
    amount, unit = amount / 1024, next(names)
    while abs(amount) >= 999.5 and (larger := next(names, "")):
        amount, unit = amount / 1024, larger
    if amount == int(amount):
        return f"{amount:,.0f} {unit}"
    digits = next((n for n, most in enumerate((99.95, 9.995, 0.9995)) if abs(amount) >= most), 3)
    return f"{amount:,.{digits}f} {unit}"


def milliseconds(ns: float) -> str:
    """A duration in text: three significant digits, in s, ms, µs or ns."""
    for unit, one in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        value = abs(ns) / one
        if value >= UP:  # 999.6 µs are 1.00 ms: a number that rounds up to the next unit is told in it
            return f"{ns / one:.{0 if value >= 100 * UP else 1 if value >= 10 * UP else 2}f} {unit}"
    return f"{ns:.0f} ns"


def written_spans(of: Iterable[int]) -> str:
    """[0, 1, 2, 8] as '0-2,8'."""
    said: list[list[int]] = []
    for number in sorted(set(of)):
        if said and number == said[-1][1] + 1:
            said[-1][1] = number
        else:
            said.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in said)


def written_ranks(ranks: Collection[int]) -> str:
    """[3] as 'rank 3', [0, 1, 2, 8] as 'ranks 0-2,8'."""
    return f"rank{'s' * (len(ranks) != 1)} {written_spans(ranks)}"


def three_figures(value: float) -> str:
    """A rate as people read it, without an exponent: '2.00', '11.9', '262,000'."""
    if value >= 99.95:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:#.3g}"
