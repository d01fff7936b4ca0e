"""Where an event ends is found as by going through its text a sign at a time."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lostflops.ingest.kineto import event_texts
from lostflops.ingest.kineto.event_texts import event_end, is_too_deep, layout_of

# Short of every sign that matters.
TEXTS = st.text('"\\\\{}[]x,', max_size=30).map(str.encode)


def brackets(text: bytes) -> list[int]:
    """Those outside strings; a quote that nothing ends opens none."""
    found: list[int] = []
    at = 0
    while at < len(text):
        end = at + 1
        if text[at : at + 1] == b'"':
            while end < len(text) and text[end : end + 1] != b'"':
                end += 2 if text[end : end + 1] == b"\\" else 1
            at = end if end < len(text) else at
        elif text[at : at + 1] in (b"{", b"}", b"[", b"]"):
            found.append(at)
        at += 1
    return found


@given(TEXTS)
def test_an_event_ends_where_its_brackets_do(text: bytes) -> None:
    depth, end, deepest = 0, None, 0
    for at in brackets(text):
        depth += 1 if text[at : at + 1] in (b"{", b"[") else -1
        deepest = max(deepest, depth)
        if depth <= 0 and end is None:
            end = at + 1
    assert event_end(text, 0) == end
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_texts, "DEEPEST", 2)
        assert is_too_deep(text) == (deepest > 2)


def test_a_string_without_an_end_is_followed_once() -> None:
    """Each of the quotes in it would be followed to the end of the text: a million times a megabyte."""
    began = time.process_time()
    assert event_end(b'{"a": "' + b'\\"' * (1 << 20), 0) is None
    assert time.process_time() - began < 10


def test_what_is_nested_too_deep_has_no_end_however_much_follows() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_texts, "DEEPEST", 2)
        with pytest.raises(event_texts.TooDeep):
            layout_of(b"{[{}]}, {}")
        assert layout_of(b"{[{}]}, {}", ends=False) is None
    found = layout_of(b"{[{}]}, {}")
    assert found is not None and found.separator == b"}, {"
