"""A small run is asked in memory, and the choice of the process is left as it was."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from lostflops.session import engine
from lostflops.store.trace import FORMAT, Manifest, Trace

CHOICE = "POLARS_ENGINE_AFFINITY"


@pytest.fixture(autouse=True)
def no_choice() -> Iterator[None]:
    before = os.environ.get(CHOICE)
    pl.Config.set_engine_affinity(None)
    yield
    pl.Config.set_engine_affinity(before)  # pyright: ignore[reportArgumentType]


def run(num_events: int) -> Trace:
    facts = Manifest(
        format=FORMAT,
        lostflops="0",
        clock="",
        origin_ns=0,
        sources=[],
        tables=[],
        num_events=num_events,
        quality=[],
    )
    return Trace(Path("run"), facts)


def test_a_small_run_is_asked_in_memory_until_the_last_has_asked() -> None:
    with engine.engine_for(run(3)):
        assert os.environ[CHOICE] == "in-memory"
        with engine.engine_for(run(4)):
            assert os.environ[CHOICE] == "in-memory"
        assert os.environ[CHOICE] == "in-memory"
    assert CHOICE not in os.environ


def test_an_error_takes_the_choice_back() -> None:
    with pytest.raises(ValueError, match="why"), engine.engine_for(run(3)):
        raise ValueError("why")
    assert CHOICE not in os.environ


def test_a_large_run_is_asked_as_the_process_asks() -> None:
    with engine.engine_for(run(engine.SMALL + 1)):
        assert CHOICE not in os.environ


def test_what_the_user_chose_stays() -> None:
    pl.Config.set_engine_affinity("streaming")
    with engine.engine_for(run(3)):
        assert os.environ[CHOICE] == "streaming"
    assert os.environ[CHOICE] == "streaming"
