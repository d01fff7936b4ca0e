"""Twenty seconds of `make fuzz` on one process, from the same numbers each time."""

from __future__ import annotations

from fuzz.run import SLOWEST, fuzzed

SECONDS = 20.0


def test_broken_recordings_are_refused_in_words_or_add_up() -> None:
    tally = fuzzed(SECONDS, workers=1, seed=0)
    assert tally.failures == []
    assert tally.tried > 10
    assert tally.slowest < SLOWEST
