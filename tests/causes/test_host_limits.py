"""From where on findings about idle time say what they say: cases on either side of each limit."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from by_hand import DATA, EVEN, LAUNCHES, MS, PYTHON, SAVING, UNEXPLAINED, WAITS, Rows, finding, given, page
from lostflops.causes.between_steps.collected import collects_elsewhere
from lostflops.causes.declared import NO_EDIT
from lostflops.causes.given import NAMES, Given
from lostflops.causes.host import waits_per_step
from lostflops.causes.idle.first_runs import COMPILING
from lostflops.causes.idle.named import _by_function, names_of  # pyright: ignore[reportPrivateUsage]
from lostflops.causes.idle.occurrence import told_once
from lostflops.causes.page_findings import PageFindings

IDLES = "The GPU idles 9.00 ms per step (9.0 %)."


def beside(saving: list[int], pauses: list[float]) -> list[str]:
    """Names of the findings of steps of 100 ms: another thread saves, and the first pauses, for so long."""
    ledger: Rows = [
        (0, n, account, ms)  # type: ignore[misc]
        for n, long in enumerate(pauses)
        for account, ms in ((LAUNCHES, long), ("compute", 100 - long))
    ]
    saves = [{"rank": 0, "step": n, "ns": ms * MS, "name": "save"} for n, ms in enumerate(saving) if ms]
    one = finding("launch-bound", LAUNCHES, 0, IDLES, cost_per_step=int(sum(pauses) * MS) // len(pauses))
    return [found.name for found in page(one, ledger=ledger, saving=pl.DataFrame(saves))]


@pytest.mark.parametrize(
    ("saving", "pauses", "told"),
    [
        # 12 ms more in one of four steps are 3 % of the mean step.
        ([50, 10, 0, 0], [22, 10, 10, 10], True),
        ([50, 10, 0, 0], [21.9, 10, 10, 10], False),
        ([49, 10, 0, 0], [22, 10, 10, 10], False),  # it saves for less than half of the step
        ([50, 11, 0, 0], [22, 60, 10, 10], True),  # a step in which it saves as well is none of the others
        ([50, 10, 0, 0], [22, 60, 10, 10], False),
        ([50, 0, 0, 0], [40, 20, 20, 20], False),  # twice as long, and not more
        ([50, 0, 0, 0], [41, 20, 20, 20], True),
        ([50, 50, 0, 0], [21, 21, 10, 10], True),
    ],
)
def test_steps_beside_a_thread_that_saves_are_told_from_these_lengths_on(
    saving: list[int], pauses: list[float], told: bool
) -> None:
    assert ("saving-slows-launches" in beside(saving, pauses)) is told


def test_what_other_steps_pause_as_well_stays_with_the_larger_of_its_causes() -> None:
    """Launches take 20 ms, and 50 in the one step of four in which a thread saves; Python 10 and 40."""
    ledger: Rows = [
        (0, n, account, (long if n else beside))
        for n in range(4)
        for account, beside, long in ((LAUNCHES, 50, 20), (PYTHON, 40, 10), ("compute", 10, 70))
    ]
    saves = pl.DataFrame([{"rank": 0, "step": 0, "ns": 90 * MS, "name": "save"}])
    claim = "The GPU idles {} ms per step ({} %), says {}, 1.00 ms per step (1.0 %)."
    small = finding(
        "host-busy-elsewhere", PYTHON, 90, claim.format("17.5", "17.5", "one"), cost_per_step=17 * MS
    )
    large = finding(
        "launch-bound", LAUNCHES, 20, claim.format("27.5", "27.5", "other"), cost_per_step=28 * MS
    )
    told = {found.name: found for found in page(small, large, ledger=ledger, saving=saves)}
    assert set(told) == {"saving-slows-launches", "launch-bound"}
    saving, left = told["saving-slows-launches"], told["launch-bound"]
    assert (saving.size, saving.ns_per_step, saving.recipe) == (15 * MS, 90 * MS, "idle_summary")
    assert saving.accounts == (LAUNCHES, PYTHON)
    assert left.size == 30 * MS
    assert left.claim == "The GPU idles 30.0 ms per step (30.0 %), says other, 1.00 ms per step (1.0 %)."
    # Findings that promise less than that cost promise that.
    none = [replace(one, ns_per_step=0) for one in (small, large)]
    told = {found.name: found for found in page(*none, ledger=ledger, saving=saves)}
    assert told["saving-slows-launches"].ns_per_step == 15 * MS
    # On a CPU the thread that saves slows operators as well.
    told = {found.name: found for found in page(small, ledger=ledger, saving=saves, on_host=True)}
    saving = told["saving-slows-launches"]
    assert (saving.gain, saving.ns_per_step, saving.size) == ("unknown", 0, 15 * MS)
    assert (
        saving.claim.startswith("Nothing computes for 15.0 ms") and "between operators" in saving.evidence[0]
    )


def test_one_fact_about_allocating_is_enough() -> None:
    stalls = finding("allocator-stalls", "idle.memory_allocator", 20)
    for facts, names in (
        (("cudaMalloc failed twice", "once in step 3"), ["allocator-stalls"]),
        (("cudaLaunchKernel failed twice", "once in step 3"), ["allocator-stalls", "api-calls-fail"]),
    ):
        told = page(stalls, finding("api-calls-fail", DATA, 0, evidence=facts))
        assert sorted(found.name for found in told) == names


def test_waits_are_those_of_a_mean_step() -> None:
    rows = pl.DataFrame([(0, 0, "compute", 9)], ["rank", "step", "account", "ns"], orient="row")
    rows = rows.with_columns(start=pl.col("step"))
    calls = pl.DataFrame({"name": ["cudaStreamSynchronize"], "calls_in_steps": [3], "per_step": [MS]})
    answers: Any = {"api_call_summary": SimpleNamespace(table=calls, findings=())}
    assert waits_per_step(Given(answers, rows)) == 3
    assert waits_per_step(Given({}, rows.clear())) == 0


@pytest.mark.parametrize("account", [DATA, WAITS, "communication.all_reduce"])
def test_time_that_waits_already_explains_no_other_pause(account: str) -> None:
    """Of 20 or 39 ms in which the thread is blocked 20 are a wait that has its account."""
    claim = "The GPU idles 40.0 ms per step while the CPU runs other code."
    for ms, told in ((40, True), (39, False)):
        tables = {"step_log_off_core": pl.DataFrame({"counted": [True], "blocked": [ms * MS]})}
        ledger: Rows = [(0, n, of, ms) for n in range(2) for of, ms in ((PYTHON, 40), (account, 20))]
        other = finding("host-busy-elsewhere", PYTHON, 40, claim)
        (found, *_) = page(
            other, ledger=ledger, names=[(0, PYTHON, "a.py(9): main", 80)], tables=tables, on_host=True,
            in_long_pauses=80 * MS,
        )  # fmt: skip
        assert ("is in Python" in found.claim) is told


def test_garbage_of_a_twentieth_of_the_step_is_told() -> None:
    ledger: Rows = [
        (0, n, account, ms) for n in range(2) for account, ms in (("compute", 70), (UNEXPLAINED, 30))
    ]
    unknown = finding("idle-unexplained", UNEXPLAINED, 30, "The GPU idles 30.0 ms per step.")
    for share, told in ((0.05, True), (0.049, False)):
        tables = {"step_log_summary": pl.DataFrame({"recorded_garbage_share": [share]})}
        (found,) = page(unknown, ledger=ledger, tables=tables)
        assert found.next.startswith("Make fewer objects") is told
    more = finding("host-busy-elsewhere", "idle.other_host_work", 20, "The GPU idles 20.0 ms per step.")
    tables = {"step_log_summary": pl.DataFrame({"recorded_garbage_share": [0.05]})}
    told_of = [
        f.name for f in page(more, unknown, ledger=ledger, tables=tables) if "garbage" in "".join(f.evidence)
    ]
    assert told_of == ["idle-unexplained"]


def test_what_followed_a_wait_in_a_single_step_is_that_of_a_mean_step() -> None:
    ledger: Rows = [(0, 0, "compute", 90), (0, 0, WAITS, 10)]
    for ms, told in ((5, True), (4, False)):
        (found,) = page(
            finding("host-waits-for-device", WAITS, 10), ledger=ledger, names=[(0, WAITS, None, ms)]
        )
        assert [fact[:10] for fact in found.evidence] == ["for 5.00 m"] * told


def test_two_names_of_half_a_function_each_keep_theirs() -> None:
    claim = "The GPU idles 10.0 ms per step while the CPU runs other code."
    halves = [(0, PYTHON, f"{part} in a.py(3): f", 20) for part in ("copy.py(1): h", "copy.py(9): g")]
    for names, said in (
        (halves, "`h` in `f` (5.00 ms) and `g` in `f` (5.00 ms)"),
        ([*halves, (0, PYTHON, "copy.py(5): k in a.py(3): f", 1)], "`f` (10.2 ms)"),
    ):
        (told,) = page(finding("host-busy-elsewhere", PYTHON, 10, claim), names=names)
        assert told.claim.endswith(f"runs Python: {said}.")


def test_what_runs_beside_other_python_is_not_all_that_runs() -> None:
    claim = "The GPU idles 10.0 ms per step while the CPU runs other code."
    names = [(0, PYTHON, "deepspeed/ops/cpu_adam.py(9): step", 25), (0, PYTHON, "a.py(3): f", 24)]
    (told,) = page(finding("host-busy-elsewhere", PYTHON, 12, claim), names=names)
    assert "while the CPU runs Python: " in told.claim
    names = [(0, PYTHON, "aten::mul", 25), (0, PYTHON, "a.py(3): f", 24)]
    (told,) = page(finding("host-busy-elsewhere", PYTHON, 12, claim), names=names[:1])
    assert "while the CPU runs operators on tensors of its own: `aten::mul` (6.25 ms)." in told.claim
    (told,) = page(finding("host-busy-elsewhere", PYTHON, 12, claim), names=names)
    assert "while the CPU runs Python: " in told.claim


def test_what_is_half_of_the_time_is_a_part_of_it() -> None:
    claim = "The GPU idles 10.0 ms per step while the CPU runs other code."
    names = [(0, PYTHON, "time.sleep in a.py(3): f", 24)]  # 6 ms of each step
    for size, said in ((11, ", mostly"), (12, ", partly")):
        (told,) = page(finding("host-busy-elsewhere", PYTHON, size, claim), names=names)
        assert f"{said} while the CPU sleeps" in told.claim
    for ms, said in ((36, "per step while"), (35, "per step, mostly while")):  # 9 of 10 ms are nearly all
        names = [(0, PYTHON, "time.sleep in a.py(3): f", ms)]
        (told,) = page(finding("host-busy-elsewhere", PYTHON, 10, claim), names=names)
        assert said in told.claim


def test_names_come_the_longest_first() -> None:
    rows = [
        (0, PYTHON, name, 4 * ms)
        for ms, name in ((2, "f"), (9, "b"), (5, "e"), (7, "c"), (5, "d"), (11, "a"))
    ]
    known = pl.DataFrame(rows, NAMES, orient="row")
    ledger = pl.DataFrame(EVEN, ["rank", "step", "account", "ns"], orient="row")
    given = Given({}, ledger.with_columns(start=pl.col("step")), known)
    assert [name for name, _ in names_of(PageFindings(given), PYTHON)] == ["a", "b", "c", "d", "e", "f"]


def test_names_that_cost_as_much_stand_in_their_order_within_a_function_or_not() -> None:
    parts = [(f"{name}.py(1): f", 5) for name in ("c", "a", "b")]
    assert [name for name, _ in _by_function([*parts, ("a.py(2): g", 9)])] == [
        "a.py(2): g", "a.py(1): f", "b.py(1): f", "c.py(1): f"
    ]  # fmt: skip


def test_a_wait_in_a_function_is_no_part_of_the_python_that_it_runs() -> None:
    """As of a loop that waits for the threads of a pool, and launches between."""
    loop = "jobs.py(3): train"
    calls = ("copy.py(9): copy", 20), ("json/encoder.py(8): encode", 20), ("torch/optim/sgd.py(8): step", 15)
    parts = [("_thread.lock.acquire", 45), *calls]
    rows = [(0, PYTHON, f"{name} in {loop}", 4 * ms) for name, ms in parts]
    claim = "The GPU idles 100 ms per step while the CPU runs other code."
    (told,) = page(finding("host-busy-elsewhere", PYTHON, 100, claim), names=rows)
    assert told.claim == (
        "The GPU idles 100 ms per step while the CPU runs Python, or waits for another thread or process: "
        "`train` (55.0 ms) and `_thread.lock.acquire` in `train` (45.0 ms)."
    )


def test_a_pause_is_told_once_of_what_is_idle_first() -> None:
    rows: Rows = [(0, step, account, 20) for step in range(8) for account in ("compute", "copy")]
    rows += [(0, 5, SAVING, 80)]
    one = finding("x", "copy", 30, "The GPU idles 30.0 ms per step.", accounts=("copy", SAVING))
    assert told_once(one, given(rows)) == one
    both = replace(one, accounts=(SAVING, "copy"), claim="The GPU idles 30.0 ms per step (30.0 %).")
    claim = told_once(both, given([row for row in rows if row[2] != "copy"])).claim
    assert claim == "The GPU idles 80 ns once in 8 steps, in step 5 (30.0 ms per step, 30.0 %)."


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("on_host", [True, False])
def test_steps_that_compile_could_be_as_short_as_those_that_do_not(others: int, on_host: bool) -> None:
    """On a CPU 2 of 5 steps take 100 ms, of which they compile for 83; the shortest other takes 8."""
    ledger: Rows = [(0, step, "compute", 17 if step < 2 else 6 + step) for step in range(5)]
    ledger += [(0, step, COMPILING, 83 if step < 2 else others) for step in (0, 1, 4)]
    one = finding("compilation-inside-step", COMPILING, 34, "Nothing computes for 34.0 ms per step.")
    (told,) = page(one, ledger=ledger, on_host=on_host)
    wider = on_host and not others
    assert (told.ns_per_step, told.size) == ((2 * (100 - 8) * MS // 5 if wider else 34 * MS), 34 * MS)
    assert ("as long as the shortest other: 8.00 ms" in str(told.evidence)) is wider


@pytest.mark.parametrize(("ms", "computes"), [(5, True), (4, False)])
def test_a_loader_on_a_cpu_that_calls_operators_computes(ms: int, computes: bool) -> None:
    """Half of the 10 ms in which batches are made are operators, or less."""
    claim = "Nothing computes for 10.0 ms per step (10.0 %) waiting for the data loader."
    resize = "aten::resize in a.py(3): load"
    names = [(0, DATA, resize, 4 * ms), (0, DATA, "a.py(3): load", 4 * (10 - ms))]
    one = finding("data-loading-starves-device", DATA, 10, claim)
    (told,) = page(one, names=names, on_host=True)
    said = f"The data loader takes 10.0 ms per step (10.0 %), mostly in operators: `{resize[:12]}`"
    assert told.claim == (f"{said} in `load`." if computes else claim)
    (told,) = page(one, names=names)
    assert told.claim == claim


@pytest.mark.parametrize(
    ("outside", "here", "told"), [(0.5, 0.1, True), (0.5, 0.11, False), (0.04, 0.0, False)]
)
def test_garbage_that_is_collected_outside_of_the_recorded_steps_is_told(
    outside: float, here: float, told: bool
) -> None:
    """Of steps of 40 ms that were not recorded it takes 20, and 10 of recorded ones of 100."""
    shares = {"garbage_share": outside, "recorded_garbage_share": here}
    tables = {"step_log_summary": pl.DataFrame([{"rank": 0, "mean": 40 * MS, **shares}])}
    found = page(join=collects_elsewhere, tables=tables)
    said = "Collections of garbage that the recorded steps lack take 10.0 ms per step: 50.0 % of step time "
    assert [f.claim for f in found] == [f"{said}outside of them, 10.0 % in them."] * told
    assert all(f.size == 10 * MS for f in found)
    pause = finding("pause-left-out", "", 9, "Every 6th step is longer (collecting garbage).")
    pause = replace(pause, recipe="step_log_pauses")
    assert page(pause, join=collects_elsewhere, tables=tables) == [pause]


def test_where_every_step_compiles_nothing_bounds_that() -> None:
    """Of 780 ms, 740 at it or what it calls, a step without took 3: first runs are longer as well."""
    ledger: Rows = [
        (0, step, account, ms) for step in range(3) for account, ms in (("compute", 49), (COMPILING, 731))
    ]
    fact = "upper limit: the CPU spends 740 ms per step on this, with the operators that it calls"
    one = finding("compilation-inside-step", COMPILING, 740, "Nothing computes for 731 ms per step.",
                  cost_per_step=731 * MS, evidence=(fact,))  # fmt: skip
    (told,) = page(one, ledger=ledger, on_host=True)
    assert (told.gain, told.size, told.evidence, told.edit) == ("unknown", 731 * MS, (), NO_EDIT)
    assert told.doubt.startswith("Every recorded step compiles")
    (on_gpu,) = page(one, ledger=ledger)
    assert on_gpu.gain == "at most"
