"""Worker processes of a loader that are started anew in each epoch: more of them do not help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from by_hand import DATA, MS, PYTHON, finding, page
from lostflops.recipes.needless.started_workers import WORKERS, of_workers
from made_runs import made

LOADER = "enumerate(DataLoader)#"
TAKEN = f"{LOADER}_MultiProcessingDataLoaderIter.__next__"
CLAIM = "Nothing computes for 10.0 ms per step (10.0 %) waiting for the data loader."
LONG = "Step 10 took 73.1 ms, 3.1 times the others; most of it is data loading. It is left out of the mean."


def workers(*rows: tuple[int, int, int, int]) -> pl.DataFrame:
    """Of rank 0: step, how often workers are started, how many, ms."""
    told = [(0, step, times, many, ms * MS) for step, times, many, ms in rows]
    return pl.DataFrame(told, WORKERS, orient="row")


def test_steps_in_which_workers_start_are_told_from_those_that_use_them(tmp_path: Path) -> None:
    names = [(3, 7, f"{LOADER}start of 2 worker processes"), (8, 9, TAKEN), (12, 13, TAKEN)]
    names += [
        (22, 25, f"{LOADER}start of 1 worker process"),
        (26, 30, f"{LOADER}start of 3 worker processes"),
    ]
    names += [(31, 32, f"{LOADER}_SingleProcessDataLoaderIter.__next__"), (5, 6, "forward")]
    ranges = [{"start": start, "end": end, "name": name} for start, end, name in names]
    steps = [{"step": n, "host_start": 10 * n, "host_end": 10 * n + 10} for n in range(4)]
    trace = made(tmp_path, {"ranks": [{"rank": 0}], "steps": steps, "ranges": ranges})
    assert of_workers(trace).rows() == [(0, 0, 1, 2, 4), (0, 1, 0, 0, 0), (0, 2, 2, 3, 7)]


@pytest.mark.parametrize(("ms", "told"), [(16, True), (15, False)])
def test_loading_that_is_mostly_the_start_of_workers_is_told_so(ms: int, told: bool) -> None:
    """Of 30 ms in three steps that count; step 9 is none."""
    ledger = [
        (0, step, account, took) for step in range(3) for account, took in (("compute", 90), (DATA, 10))
    ]
    one = finding("data-loading-starves-device", DATA, 10, CLAIM)
    (found,) = page(one, ledger=ledger, workers=workers((1, 1, 2, ms), (2, 0, 0, 0), (9, 1, 2, 500)))
    assert (found.claim != CLAIM) is told


def test_a_start_in_some_steps_is_told_with_how_often() -> None:
    ledger = [
        (0, step, account, took) for step in range(2) for account, took in (("compute", 90), (DATA, 10))
    ]
    one = finding("data-loading-starves-device", DATA, 10, CLAIM)
    (found,) = page(one, ledger=ledger, workers=workers((1, 1, 2, 16), (0, 0, 0, 0)))
    assert found.claim == f"{CLAIM[:-1]}: 80.0 % of it starts 2 worker processes, in 1 of 2 steps."
    assert found.next.startswith("Keep the workers for the next epoch: `persistent_workers=True`")
    assert (found.remedies, found.edit) == ((), "none")


def outlier(**more: Any) -> Any:
    row = {"rank": [0, 0], "step": [10, 12], "longer": [50 * MS, 90 * MS]}
    of = more.pop("of", DATA)
    one = finding("outlier-step", of, 0, LONG, recipe="outlier_steps", next="Give it workers.")
    pause = finding(
        "pause-left-out", DATA, 9, "Every 5th step is 50.0 ms longer.", recipe="step_log_pauses", accounts=()
    )
    log = pl.DataFrame({"cause": ["data"], "recorded_step": [more.pop("at", 11)], "period": [5]})
    return page(pause, one, tables={"outlier_steps": pl.DataFrame(row), "step_log_pauses": log}, **more)


def test_a_long_step_that_starts_workers_is_not_told_to_have_some() -> None:
    assert outlier()[1].next == "Give it workers."  # nothing is known of any
    _, has = outlier(workers=workers((10, 1, 2, 9)))
    assert has.claim == LONG and has.next.startswith("This loader has worker processes.")
    _, python = outlier(workers=workers((10, 1, 2, 20)), of=PYTHON)
    assert python.next == "Give it workers."
    assert outlier(workers=workers((12, 1, 2, 20)))[1].next == "Give it workers."  # another long step's
    _, starts = outlier(workers=workers((10, 1, 2, 20), (12, 1, 2, 80)))
    assert "; 20.0 ms of it starts 2 worker processes of the loader. It is left out" in starts.claim
    assert starts.next.startswith("Keep the workers for the next epoch")


def test_the_first_step_of_each_epoch_is_one_cause() -> None:
    assert len(outlier(workers=workers((10, 1, 2, 9)), at=10)) == 2  # not for the start of its workers
    (told,) = outlier(workers=workers((10, 1, 2, 20)), at=10)
    assert told.claim.startswith("Every 5th step") and "Step 10 took 73.1 ms" in told.evidence[0]
    assert told.next.endswith("`--steps 10` shows one.") and told.remedies == ()


def test_a_pause_between_windows_is_not_told_to_give_workers_to_a_loader_that_has_some() -> None:
    """The window lies in the middle of an epoch: workers are used in it and start in no step."""
    used = workers((3, 0, 0, 0))
    for remedy, rows, kept in (
        ("loader-workers", used, False),
        ("loader-workers", workers(), True),
        ("gc-freeze", used, True),
    ):
        pause = finding(
            "pause-not-recorded", "", 9, recipe="step_log_pauses", accounts=(), remedies=(remedy,)
        )
        (told,) = page(pause, workers=rows)
        assert (told == pause) is kept
        assert kept or (told.remedies == () and told.next.startswith("This loader has worker processes: if"))
        assert told.next.endswith("n")  # the step to record


def test_a_loader_with_workers_that_waits_in_other_steps_may_start_them_there() -> None:
    elsewhere = finding("data-wait-outside-window", "", 0, accounts=(), next="Give it more workers.")
    (told,) = page(elsewhere, workers=workers((2, 0, 0, 0)))
    assert "if an epoch begins there, `persistent_workers=True`" in told.next and told.remedies == ()
    (told,) = page(elsewhere, workers=workers())
    assert told.next == elsewhere.next
