"""What an expression looks for first, because it is soon known not to be there, leaves out no match of it."""

from __future__ import annotations

import json
import re
from random import Random

import pytest
from planted import PLANTED
from planted_anew import ANEW
from planted_in_jobs import IN_JOBS

from lostflops.privacy import encoded, secrets
from lostflops.privacy.patterns import named, spellings

BEFORE = {
    secrets.STRONG_BEGINS: 1,
    spellings.BELOW_BEGINS: 1,
    spellings.KEYS_BEGIN: 1,
    spellings.LOGINS_BEGIN: 1,
    rb"(?=-)": 3,
    rb"(?=[sEA])": 1,
    rb"(?=[A-Za-z0-9+/]{20})": 1,
}  # and how many begin with it, at least
SPELLINGS = [pattern for _, pattern in spellings.ONE_VALUE]
QUICK = [
    (before, pattern)
    for before in BEFORE
    for pattern in (secrets.STRONG, secrets.FLAG, secrets.WHO, encoded.BASE64, *named.JOBS, *SPELLINGS)
    if pattern.pattern.removeprefix(rb"(?P<before>").startswith(before)
]


@pytest.fixture(scope="module")
def texts() -> list[bytes]:
    """All that is planted, as it lies in files, in other letters, and pieces of it in a row."""
    planted = [text for _, text, _ in (*PLANTED, *ANEW, *IN_JOBS)]
    written = [
        (text, json.dumps({"a": json.dumps({"b": text})}), json.dumps("x\n" + text)) for text in planted
    ]
    found = [text.encode() for forms in written for text in forms]
    drawn = Random(7)

    def piece() -> bytes:
        text = drawn.choice(found)
        at = drawn.randrange(len(text))
        return text[at : at + drawn.randint(1, 60)]

    rows = [b"".join(piece() for _ in range(drawn.randint(2, 6))) for _ in range(1000)]
    return [*found, *(text.swapcase() for text in found), *rows]


def test_those_that_are_quick_are_known() -> None:
    for before, least in BEFORE.items():
        assert sum(one == before for one, _ in QUICK) >= least, before


@pytest.mark.parametrize(("before", "pattern"), QUICK, ids=range(len(QUICK)))
def test_what_stands_before_an_expression_leaves_out_no_match(
    before: bytes, pattern: re.Pattern[bytes], texts: list[bytes]
) -> None:
    whole = re.compile(pattern.pattern.replace(before, b"", 1))
    many = b"\n\0\n".join(texts)
    found = [match.span() for match in whole.finditer(many)]
    assert found, "nothing that is planted is found by it"
    assert [match.span() for match in pattern.finditer(many)] == found


def test_what_names_a_user_needs_what_is_said(texts: list[bytes]) -> None:
    for number, (needed, pattern) in enumerate(named.USERS):
        found = [text for text in texts if pattern.search(text)]
        assert found, number
        assert [text for text in found if not needed(text.lower())] == [], number
