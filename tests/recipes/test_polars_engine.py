"""A small run is asked in memory and on the spot, and the choice of the process is left as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from threading import get_native_id
from typing import Literal, TypeVar

import polars as pl
import pytest

from lostflops.session import SMALL, Session
from lostflops.store.at_once import CHOICE, is_inside
from lostflops.store.trace import FORMAT, Manifest, Trace

T = TypeVar("T")


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


def asked(num_events: int, function: Callable[[], T]) -> T:
    return Session(run(num_events)).small(function)


def test_a_small_run_is_asked_in_memory_until_the_last_has_asked() -> None:
    def said() -> list[str | None]:
        before = os.environ.get(CHOICE)
        return [before, asked(4, lambda: os.environ.get(CHOICE)), os.environ.get(CHOICE)]

    assert asked(3, said) == ["in-memory"] * 3
    assert CHOICE not in os.environ


def test_an_error_takes_the_choice_back() -> None:
    def fails() -> None:
        raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        asked(3, fails)
    assert CHOICE not in os.environ
    assert not is_inside()


def test_a_large_run_is_asked_as_the_process_asks() -> None:
    assert asked(SMALL + 1, lambda: (os.environ.get(CHOICE), is_inside())) == (None, False)


@pytest.mark.parametrize("choice", ["streaming", "in-memory"])
def test_what_the_user_chose_stays(choice: Literal["streaming", "in-memory"]) -> None:
    pl.Config.set_engine_affinity(choice)
    assert asked(3, lambda: (os.environ.get(CHOICE), is_inside())) == (choice, False)
    assert os.environ[CHOICE] == choice


def test_what_is_asked_of_a_small_run_is_answered_on_the_spot() -> None:
    """Not by a thread that has to be woken for it."""

    def asking_and_answering() -> set[int]:
        threads, row = {get_native_id()}, pl.LazyFrame({"a": [1]})

        def seen(frame: pl.DataFrame) -> pl.DataFrame:
            threads.add(get_native_id())
            return frame

        pl.collect_all([row.map_batches(seen), row], engine="in-memory")
        return threads

    assert len(asking_and_answering()) == 2
    if pl.thread_pool_size() == 1:
        assert len(asked(3, asking_and_answering)) == 1


def test_context_variables_are_seen_and_what_is_set_inside_stays_there() -> None:
    variable = ContextVar("of the test", default="unset")
    variable.set("outside")

    def said() -> str:
        before = variable.get()
        variable.set("inside")
        return before

    assert asked(3, said) == "outside"
    assert variable.get() == "outside"


def test_another_thread_asks_on_its_own() -> None:
    """It might be one that the main thread waits for."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(lambda: asked(3, lambda: (os.environ.get(CHOICE), is_inside())))
        assert done.result(timeout=60) == ("in-memory", False)


def test_large_tables_that_are_written_at_once_do_not_wait_for_threads(tmp_path: Path) -> None:
    """One thread of Polars writes, and it is the one that waits."""
    code = f"""
from pathlib import Path
import polars as pl
from lostflops.ingest.part import write_tables
from lostflops.store.at_once import at_once
from lostflops.tables import TABLES
tables = {{name: TABLES[name].empty() for name in ("kernels", "launches")}}
at_once(lambda: write_tables(Path({str(tmp_path)!r}), tables))
"""
    subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "POLARS_MAX_THREADS": "1"}, timeout=60, check=True
    )
    assert sorted(file.name for file in tmp_path.iterdir()) == ["kernels.parquet", "launches.parquet"]


def test_ctrl_c_ends_what_is_asked() -> None:
    code = """
import os, signal, threading
import polars as pl
from lostflops.store.at_once import at_once
frame = pl.DataFrame({"a": range(1000)})
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
def asks_on():
    while True:
        frame.filter(pl.col("a") > 3)
try:
    at_once(asks_on)
except KeyboardInterrupt:
    print("stopped")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "stopped\n", done.stderr
