"""What findings about idle time say and take in, by numbers that were worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from by_hand import DATA, EVEN, LAUNCHES, MS, PYTHON, SAVING, UNEXPLAINED, WAITS, Rows, finding, page
from lostflops.causes.given import Given
from lostflops.causes.host import waits_per_step
from lostflops.causes.idle.occurrence import on_some_ranks, told_once
from lostflops.causes.names import spoken
from lostflops.finding import Finding
from lostflops.naming import standing_still
from lostflops.recipes import stretch_names

# --- what idle time is called


def test_the_largest_names_of_a_mean_step_are_told_those_from_a_tenth_of_it_on() -> None:
    """Of four steps: 4 ms of `a`, 3 of `b`, 1 of `c`, a tenth of ten, and less of `d`."""
    names = [(0, PYTHON, "a", 10), (1, PYTHON, "a", 6), (0, PYTHON, "b", 12), (1, PYTHON, "c", 4)]
    names += [(0, PYTHON, "d", 3), (0, PYTHON, None, 90), (0, DATA, "e", 50)]
    (told,) = page(finding("other-finding", PYTHON, 10), names=names)
    assert told.contributors == ("`a` 4.00 ms", "`b` 3.00 ms", "`c` 1.00 ms")
    (told,) = page(finding("other-finding", PYTHON, 11), names=names)
    assert told.contributors == ("`a` 4.00 ms", "`b` 3.00 ms")
    # What is about no account of idle time has no names of it.
    (told,) = page(finding("other-finding", PYTHON, 10, recipe="another"), names=names)
    assert told.contributors == ()


def test_what_the_host_does_instead_is_named_in_the_claim() -> None:
    claim = "The GPU idles 10.0 ms per step while the CPU runs other code."
    names = [(0, PYTHON, "a.py(3): f", 24), (0, PYTHON, "g", 4), (1, PYTHON, "h", 4)]
    (told,) = page(finding("host-busy-elsewhere", PYTHON, 10, claim), names=names)
    assert told.claim == (
        "The GPU idles 10.0 ms per step while the CPU runs Python: `f` (6.00 ms) and `g` (1.00 ms)."
    )
    assert told.next.startswith("Make `f` (a.py:3) cheaper")
    (told,) = page(finding("host-busy-elsewhere", PYTHON, 11, claim), names=names)
    assert told.claim.endswith("runs Python: `f` (6.00 ms).")
    (told,) = page(finding("host-busy-elsewhere", PYTHON, 10, claim), names=names[1:])
    assert told.claim.endswith("runs other code: `g` (1.00 ms) and `h` (1.00 ms).")
    # Python is what the two largest names are of.
    last = [(0, PYTHON, "k", 25), (0, PYTHON, "j", 24), (0, PYTHON, "a.py(3): f", 23)]
    (told,) = page(finding("host-busy-elsewhere", PYTHON, 20, claim), names=last)
    assert told.claim.endswith("runs other code: `k` (6.25 ms) and `j` (6.00 ms).")
    second = [(0, PYTHON, "k", 25), (0, PYTHON, "a.py(3): f", 24)]
    (told,) = page(finding("host-busy-elsewhere", PYTHON, 10, claim), names=second)
    assert told.claim.endswith("runs Python: `k` (6.25 ms) and `f` (6.00 ms).")
    (told,) = page(finding("host-busy-elsewhere", PYTHON, 10, claim))
    assert (told.claim, told.next) == (claim, "n")
    (told,) = page(finding("other-finding", PYTHON, 10, claim), names=names)
    assert (told.claim, told.next) == (claim, "n")
    # A thread that waits or sleeps runs nothing that could be made cheaper.
    queue = "<built-in method acquire of _thread.lock object at 0x7f>"
    still = [(0, PYTHON, f"{stretch_names.spoken(queue)} in a.py(3): next_batch", 24)]
    (told,) = page(finding("host-busy-elsewhere", PYTHON, 10, claim), names=still)
    assert told.claim.endswith(
        "while the CPU waits for another thread or process: `_thread.lock.acquire` in `next_batch` (6.00 ms)."
    )
    assert told.next.startswith("Find what `_thread.lock.acquire` in `next_batch` (a.py:3) waits for")
    (told,) = page(
        finding("host-busy-elsewhere", PYTHON, 10, claim), names=[(0, PYTHON, "time.sleep in a.py(3): f", 24)]
    )
    assert told.claim.endswith("while the CPU sleeps: `time.sleep` in `f` (6.00 ms).")
    assert told.next == "Take `time.sleep` in `f` (a.py:3) out of the step."
    # What it does in a part of the time only is said of that part.
    for size, said in ((6, "per step while the CPU sleeps"), (10, "per step, mostly while the CPU sleeps")):
        slept = [(0, PYTHON, "time.sleep in a.py(3): f", 24)]
        (told,) = page(finding("host-busy-elsewhere", PYTHON, size, claim), names=slept)
        assert said in told.claim
    (told,) = page(finding("host-busy-elsewhere", PYTHON, 13, claim), names=slept)
    assert "per step, partly while the CPU sleeps: `time.sleep` in `f` (6.00 ms)." in told.claim
    # A comprehension is known by its function.
    inside = [(0, PYTHON, "a.py(5): <listcomp> in a.py(3): f", 24)]
    (told,) = page(finding("host-busy-elsewhere", PYTHON, 10, claim), names=inside)
    assert told.claim.endswith("while the CPU runs Python: `<listcomp>` in `f` (6.00 ms).")
    # Both are told of what runs and what waits, the first first.
    (told,) = page(
        finding("host-busy-elsewhere", PYTHON, 10, claim), names=[*still, (0, PYTHON, "a.py(9): f", 23)]
    )
    assert "while the CPU waits for another thread or process, or runs Python: `_thread" in told.claim
    sleeps = [(0, PYTHON, "a.py(9): f", 25), (0, PYTHON, "time.sleep in a.py(3): g", 24)]
    (told,) = page(finding("host-busy-elsewhere", PYTHON, 10, claim), names=sleeps)
    assert told.claim.endswith("runs Python, or sleeps: `f` (6.25 ms) and `time.sleep` in `g` (6.00 ms).")


@pytest.mark.parametrize(
    ("names", "edit"),
    [
        # In steps of 100 ms, of which 10 are other host work.
        ([("time.sleep in a.py(3): f", 36)], "host:other-host-work=10%"),
        ([("a.py(9): f", 24), ("_io.FileIO.write in a.py(3): g", 12)], "host:other-host-work=10%"),
        ([("a.py(9): f", 40)], "host:other-host-work=0%"),
        ([("a.py(9): f", 20)], ""),  # no more than half of it
        ([("_thread.lock.acquire in a.py(3): f", 36)], ""),  # whoever holds it decides
        ([("a.py(9): f", 24), ("aten::mm in a.py(9): f", 12)], ""),
        ([("torch/optim/adamw.py(80): _init_group in a.py(9): f", 36)], ""),
        ([("forward#Transformer", 36)], ""),
        ([("deepspeed/ops/adam/cpu_adam.py(9): step", 36)], ""),
    ],
)
def test_what_is_named_for_other_work_can_be_asked_to_go(names: list[tuple[str, int]], edit: str) -> None:
    ledger: Rows = [
        (rank, step, account, ms)
        for rank in range(2)
        for step in range(2)
        for account, ms in (("compute", 90), (PYTHON, 10))
    ]
    rows = [(0, PYTHON, name, ms) for name, ms in names]
    claim = "Nothing computes for 10 ms per step while the CPU runs other code."
    (told,) = page(finding("host-busy-elsewhere", PYTHON, 10, claim), ledger=ledger, names=rows)
    assert told.edit == edit


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("<built-in method acquire of _thread.lock object at 0x7f>", True),
        ("<built-in method acquire of _multiprocessing.SemLock object at 0x7f>", True),
        ("<built-in method get of _queue.SimpleQueue object at 0x7f>", True),
        ("<built-in method poll of select.poll object at 0x7f>", True),
        ("<built-in method recv_into of _socket.socket object at 0x7f>", True),
        ("<built-in function waitpid>", True),
        ("queue.py(154): get", True),
        ("<built-in method recv of zmq.backend.cython._zmq.Socket object at 0x7f>", True),
        ("zmq/sugar/socket.py(900): recv_pyobj", True),
        ("zmq/sugar/socket.py(900): send_pyobj", False),
        ("<built-in method get_objects of ray._raylet.CoreWorker object at 0x7f>", True),
        ("multiprocessing/connection.py(1136): wait", True),
        ("train.py(154): get", False),
        ("<built-in method get of dict object at 0x7f>", False),
        ("<built-in method join of str object at 0x7f>", False),
        ("mythreading.py(3): wait", False),
    ],
)
def test_what_waits_for_others_is_told_from_what_runs(row: str, said: bool) -> None:
    assert (standing_still.stands_still(stretch_names.spoken(row)) == standing_still.WAITS) is said


def test_a_disk_that_is_waited_for_is_no_python() -> None:
    rows = "<built-in function fsync>", "<built-in method flush of _io.BufferedWriter object at 0x7f>"
    inside = "in a.py(3): save_sample"
    told = [(0, PYTHON, f"{stretch_names.spoken(row)} {inside}", 24 - n) for n, row in enumerate(rows)]
    claim = "The GPU idles 12.0 ms per step while the CPU runs other code."
    (found,) = page(finding("host-busy-elsewhere", PYTHON, 12, claim), names=told)
    assert (
        "per step while the CPU reads or writes files: `os.fsync` in `save_sample` (6.00 ms)" in found.claim
    )
    assert found.next.startswith("Take `os.fsync` in `save_sample` (a.py:3) out of the step: read ahead on")
    other = "<built-in method write of _io.BytesIO object at 0x7f>", "train.py(4): open", "a.py(3): flush"
    assert not any(standing_still.stands_still(stretch_names.spoken(row)) for row in other)


def test_waits_of_anomaly_detection_are_advised_to_turn_it_off() -> None:
    calls = {"name": ["cudaStreamSynchronize"], "calls_in_steps": [100], "per_step": [9 * MS]}
    waits = finding("host-waits-for-device", WAITS, 9)
    on = Finding("anomaly-detection-on", "It checks gradients.", "unknown", (), "Turn it off.")
    for checks, told in ((50, ["host-waits-for-device"]), (49, ["host-waits-for-device", on.name])):
        tables = {
            "api_call_summary": pl.DataFrame(calls),
            "anomaly_detection": pl.DataFrame({"checks": [checks]}),
        }
        found = page(waits, on, tables=tables)
        assert [f.name for f in found] == told
        assert found[0].next == ("Turn it off." if len(told) == 1 else "n")
        assert ("It checks gradients" in found[0].evidence) == (len(told) == 1)


def test_what_a_cpu_did_after_a_wait_is_not_known_without_a_row() -> None:
    for ms, told in ((6, True), (5, False)):  # of 3 ms in a mean step of two ranks with two each
        names = [(0, WAITS, "cudaStreamSynchronize", 12), (0, WAITS, None, 2 * ms)]
        (found,) = page(finding("host-waits-for-device", WAITS, 3), names=names)
        fact = "for 3.00 ms of it only call stacks would tell what the CPU did after the wait"
        assert (fact in found.evidence) is told


def test_code_of_the_jobs_own_after_a_wait_is_told_as_that() -> None:
    """Of 3 ms in a mean step: a function that reports, and one that waits as `item` does."""
    waits = finding("host-waits-for-device", WAITS, 3)
    for name, told in (
        ("train.py(140): report", True),
        ("<built-in method item of Tensor object at 0x7f11dcef5090> in train.py(140): report", False),
        ("torch/utils/data/dataloader.py(9): f", False),
        ("train.py(1): <module>", False),
    ):
        (found,) = page(waits, names=[(0, WAITS, name, 8), (0, WAITS, "cudaStreamSynchronize", 4)])
        said = "`report` (train.py:140) runs after the wait: the GPU idles less if it takes less"
        assert (said in found.evidence) is told
    (found,) = page(waits, names=[(0, WAITS, "train.py(140): report", 5)])
    assert found.evidence == ()  # the least of it
    loop = "train.py(9): train"
    (found,) = page(waits, names=[(0, WAITS, loop, 8), (0, LAUNCHES, f"aten::add in {loop}", 1)])
    assert found.evidence == ()


def test_garbage_that_the_step_log_counts_is_told_where_nothing_else_is_known() -> None:
    ledger: Rows = [
        (0, n, account, ms)
        for n in range(2)
        for account, ms in (("compute", 60), ("idle.garbage_collection", 10), (UNEXPLAINED, 30))
    ]
    unknown = finding("idle-unexplained", UNEXPLAINED, 30, "The GPU idles 30.0 ms per step.")
    for share, told in ((0.2, True), (0.19, False), (None, False)):  # 10 of 100 ms are in the ledger
        tables = {
            "step_log_summary": pl.DataFrame(
                {"recorded_garbage_share": [share]}, {"recorded_garbage_share": pl.Float64}
            )
        }
        (found,) = page(unknown, ledger=ledger, tables=tables)
        assert ("Python collects garbage for 20.0 % of the recorded" in "".join(found.evidence)) is told
        assert found.next.startswith("Make fewer objects") is told


def blocked_page(
    ms: int, *findings: Finding, name: str = "a.py(9): main", on_host: bool = True, crowded: int = 0
) -> list[Finding]:
    """Findings where the training thread is blocked for so long in each of two steps of 80 ms."""
    counts = {"counted": [True, True, False], "blocked": [(ms - 1) * MS, (ms + 1) * MS, 90 * MS]}
    waits = {"counted": [True, True, False], "core_wait": [crowded * MS, crowded * MS, 70 * MS]}
    tables = {"step_log_off_core": pl.DataFrame(counts), "step_log_core_waits": pl.DataFrame(waits)}
    ledger: Rows = [(0, n, account, 40) for n in range(2) for account in (PYTHON, UNEXPLAINED)]
    return list(
        page(*findings, ledger=ledger, names=[(0, PYTHON, name, 80)], tables=tables, on_host=on_host,
             in_long_pauses=80 * MS)
    )  # fmt: skip


def blocked(ms: int, *findings: Finding, **more: Any) -> list[tuple[str, str, str]]:
    """What those findings say."""
    told = blocked_page(ms, *findings, **more)
    return [(found.claim, found.evidence[-1] if found.evidence else "", found.next) for found in told]


def test_a_thread_that_is_blocked_is_not_said_to_run_python() -> None:
    """`with lock:` has no row of its own: the function around it seems to run."""
    claim = "The GPU idles 40.0 ms per step while the CPU runs other code."
    other = finding("host-busy-elsewhere", PYTHON, 40, claim)
    ((said, fact, advice),) = blocked(20, other)
    assert said.endswith("while the CPU is in Python: `main` (40.0 ms).")
    assert fact.startswith("Linux counts 20.0 ms per step in which the training thread is blocked")
    assert advice.startswith("Find out what the training thread waits for: a lock (Python's own, which")
    ((said, fact, _),) = blocked(19, other)
    assert (said.endswith("while the CPU runs Python: `main` (40.0 ms)."), fact) == (True, "")
    for ms, told in ((60, True), (59, False)):  # 40 of the 80 ms may hide behind a GPU
        assert ("is in Python" in blocked(ms, other, on_host=False)[0][0]) is told
    for ms, told in ((27, True), (26, False)):  # an operator may wait for its threads for 7 ms
        assert ("is in Python" in blocked(ms, other, crowded=7)[0][0]) is told
    ((said, fact, _),) = blocked(40, other, name="time.sleep in a.py(9): main")  # that is why it is blocked
    assert (said.endswith("while the CPU sleeps: `time.sleep` in `main` (40.0 ms)."), fact) == (True, "")


def test_time_in_which_a_thread_is_blocked_is_told_once() -> None:
    claim = "The GPU idles {} ms per step {}."
    unknown = finding(
        "idle-unexplained", UNEXPLAINED, 30, claim.format(30, "for no reason"), next="Record call stacks: X"
    )
    other = finding("host-busy-elsewhere", PYTHON, 10, claim.format(10, "while the CPU runs other code"))
    told = blocked(25, unknown, other, name="backward")
    assert [fact[:12] for _, fact, _ in told] == ["Linux counts", ""]
    assert told[0][2].endswith("another process, or a sleep. Record call stacks: X")
    assert [fact[:12] for _, fact, _ in blocked(35, unknown, other, name="backward")] == ["Linux counts"] * 2


@pytest.mark.parametrize(
    "name",
    [
        "Optimizer.step#DeepSpeedCPUAdam.step",
        "PyCapsule.adam_update in train.py(3): main",
        "deepspeed/ops/adam/cpu_adam.py(140): step in train.py(3): main",
        "torchao/optim/cpu_offload.py(9): step in torchao/optim/x.py(3): CPUOffloadOptimizer",
    ],
)
def test_an_optimizer_on_the_cpu_is_no_python_that_a_thread_could_do(name: str) -> None:
    claim = "The GPU idles 10.0 ms per step while the CPU runs other code."
    (told,) = page(finding("host-busy-elsewhere", PYTHON, 10, claim), names=[(0, PYTHON, name, 40)])
    assert "10.0 ms per step while the optimizer runs on the CPU: " in told.claim
    assert told.next.startswith("Keep the optimizer's states on the GPU if they fit")


@pytest.mark.parametrize(
    ("names", "advice"),
    [
        (["collate"], "Make `collate` cheaper"),
        (["a.py(3): forward"], "Make `forward` (a.py:3) cheaper"),
        (
            ["torch/optim/adamw.py(9): _multi_tensor_adamw in a.py(3): f"],
            "That is the optimizer's own Python",
        ),
        (["aten::mul"], "Move the tensors of `aten::mul` to the GPU, or take it out of the step"),
        (["backward", "a.py(3): f"], "Do the same in fewer operators inside `backward`"),
        (["backward", "collate"], "`backward` is a whole phase. To see which Python runs in it"),
    ],
)
def test_the_advice_is_about_what_the_name_is_of(names: list[str], advice: str) -> None:
    told = [(0, PYTHON, name, 100 - n) for n, name in enumerate(names)]
    (found,) = page(finding("host-busy-elsewhere", PYTHON, 20), names=[*told, (1, DATA, None, 5)])
    assert found.next.startswith(advice)


@pytest.mark.parametrize(
    ("names", "name", "claim"),
    [
        ([("torch.save", 5), ("logging/__init__.py(1529): info", 4)], "saves", "saves a checkpoint."),
        ([("torch.save", 4), ("logging/__init__.py(1529): info", 4)], "logging-inside-step", "logs."),
        ([], "saves", "saves a checkpoint or logs."),
    ],
)
def test_saving_and_logging_are_told_apart_by_most_of_the_time(
    names: list[tuple[str, int]], name: str, claim: str
) -> None:
    parts = [(0, SAVING, of, 10 * ms) for of, ms in names]
    (told,) = page(finding("saves", SAVING, 20, "The CPU saves a checkpoint or logs."), names=parts)
    assert (told.name, told.claim) == (name, f"The CPU {claim}")
    assert told.next == ("Log less often." if name == "logging-inside-step" else "n")


def test_what_logs_goes_with_what_its_function_does_besides() -> None:
    one = finding("checkpoint-inside-step", SAVING, 10, "The CPU saves a checkpoint or logs.")
    logs = (0, SAVING, "logging/__init__.py(1): info in a.py(3): log", 40)
    builds = (0, PYTHON, "json/encoder.py(1): dumps in a.py(3): log", 8)  # 2 ms of each of four steps
    (told,) = page(one, names=[logs, builds])
    assert told.ns_per_step == 12 * MS
    assert told.evidence[-1] == "`log` (a.py:3) takes another 2.00 ms in which the GPU idles"
    (of_one,) = page(one, names=[logs, builds], ledger=[(0, 0, SAVING, 40), (0, 0, "compute", 60)])
    assert of_one.evidence[-1] == "`log` (a.py:3) takes another 8.00 ms in which the GPU idles"
    for names in (
        [logs],
        [logs, builds, (0, LAUNCHES, "aten::mul in a.py(3): log", 1)],  # it launches work
        [(0, SAVING, "logging/__init__.py(1): info", 40), builds],  # in whose function is not known
    ):
        (told,) = page(one, names=names)
        assert (told.ns_per_step, told.evidence) == (10 * MS, ())


def test_what_saves_is_not_advised_to_log_less() -> None:
    one = finding("checkpoint-inside-step", SAVING, 20, "The CPU saves a checkpoint or logs.")
    (told,) = page(one, names=[(0, SAVING, "torch.save", 50)], left=tuple)
    assert told.remedies == ("async-checkpoint",)


def test_only_a_job_that_loads_data_has_workers_that_could_do_it() -> None:
    one, names = finding("host-busy-elsewhere", PYTHON, 20), [(0, PYTHON, "collate", 100)]
    for ledger, said in ((EVEN, "step: onto a thread"), ([*EVEN, (0, 0, DATA, 5)], "into the loader's")):
        (told,) = page(one, ledger=ledger, names=names)
        assert said in told.next


def test_a_rank_with_nine_tenths_of_the_time_has_it_alone() -> None:
    def rank(*held: int) -> int | None:
        rows = [*EVEN, *((rank, step, DATA, ms) for rank, ms in enumerate(held) for step in range(2))]
        return page(finding("starves", DATA, 20), ledger=rows)[0].rank

    assert rank(1, 9) == 1
    assert rank(90, 10) == 0
    assert rank(11, 89) is None
    assert rank() is None
    alone: Rows = [(0, 0, "compute", 80), (0, 0, DATA, 20)]
    assert page(finding("starves", DATA, 20), ledger=alone)[0].rank is None


# --- once in several steps


def once(
    *by_step: tuple[float, ...], claim: str = "Idle 5.00 ms per step (9.1 %) here.", account: str = DATA
) -> str:
    """The claim where the ranks hold so much of an account in each step."""
    ledger = [
        (rank, n, account, round(ms * MS)) for n, held in enumerate(by_step) for rank, ms in enumerate(held)
    ]
    ledger += [(rank, n, "copy", 500 * MS) for n, held in enumerate(by_step) for rank in range(len(held))]
    given = Given({}, pl.DataFrame(ledger, ["rank", "step", "account", "ns"], orient="row"))
    return told_once(finding("starves", account, 5, claim), given).claim


def test_time_that_lies_in_one_step_comes_once_and_four_fifths_of_it_come_mostly_there() -> None:
    assert once((0, 0), (14, 15), (0, 0)) == (
        "Idle 15.0 ms once in 3 steps, in step 1 (5.00 ms per step, 9.1 %), here."
    )
    assert once((0, 0), (0, 30), (0, 0)) == (
        "Idle up to 30.0 ms once in 3 steps, in step 1 (5.00 ms per step, 9.1 %), here."
    )
    assert once((0,), (98,), (2,)).startswith("Idle 98.0 ms once in 3 steps, in step 1 (")
    # What the other steps have as well is not in what lies in that one: it would not add up to the mean.
    assert once((0,), (97,), (3,)) == "Idle 5.00 ms per step (9.1 %), mostly in step 1 (97.0 ms), here."
    assert (
        once((1, 1), (12, 12), (2, 2)) == "Idle 5.00 ms per step (9.1 %), mostly in step 1 (12.0 ms), here."
    )
    assert (
        once((1, 0), (3, 5), (1, 0))
        == "Idle 5.00 ms per step (9.1 %), mostly in step 1 (up to 5.00 ms), here."
    )
    # On all ranks nearly alike is not told of one: 105 % of their mean.
    assert "(10.5 ms)" in once((1, 1), (10.5, 9.5), (0, 0)) and "(up to 10.6 ms)" in once(
        (1, 1), (10.6, 9.4), (0, 0)
    )
    twice = "Idle 5.00 ms per step (9.1 %) here, as in others: 5.00 ms per step (9.1 %)."
    assert once((0,), (9,), (0,), claim=twice).endswith("here, as in others: 5.00 ms per step (9.1 %).")
    assert once((0, 0), (39, 40), (10, 10)) == "Idle 5.00 ms per step (9.1 %) here."
    assert once((1, 0), (3, 5)) == "Idle 5.00 ms per step (9.1 %) here."
    assert once((1, 0), (3, 5), (1, 0), claim="Idle 5.00 ms here.") == "Idle 5.00 ms here."
    plain = "Idle 5.00 ms per step (9.1 %) here."
    assert once((1, 0), (3, 5), (1, 0), account="compute") == plain
    rows = [(0, step, DATA, 15 if step == 1 else 0) for step in range(3)]
    given = Given({}, pl.DataFrame(rows, ["rank", "step", "account", "ns"], orient="row"))
    for unclaimed in (
        Finding("x", plain, "at most", (), "", accounts=("compute", DATA)),
        Finding("x", plain, "at most", (), ""),
        Finding("x", "", "at most", (), "", accounts=(DATA,)),
    ):
        assert told_once(unclaimed, given) is unclaimed


# --- on a CPU


def pauses(
    ms: int, *names: int, long: int = 0, on_host: bool = True, held: int | None = None
) -> list[tuple[str, str]]:
    """The claim and the advice where a CPU does other work for so long in each of two steps of 100 ms.

    `names` are of one step, `long` is what comes in long pauses in both.
    """
    spent = ms if held is None else held
    ledger: Rows = [
        (0, step, account, length)
        for step in range(2)
        for account, length in (("compute", 100 - spent), (PYTHON, spent))
        if length
    ]
    told = [(0, PYTHON, f"part {n}", 2 * length) for n, length in enumerate(names)]
    found = page(
        finding("host-busy-elsewhere", PYTHON, ms, "Other code."),
        ledger=ledger, names=told, on_host=on_host, in_long_pauses=long * MS,
    )  # fmt: skip
    return [(one.claim, one.next) for one in found]


def test_what_a_cpu_spends_in_short_pauses_under_many_names_is_what_operators_cost() -> None:
    claim = "Nothing computes for {0}.0 ms per step ({0}.0 %) in the short pauses between operators."
    advice = "Do the same in fewer operators: a larger batch, or `torch.compile`."
    assert pauses(16, 5, 5) == [(claim.format(16), advice)]
    assert pauses(15) == [(claim.format(15), advice)]
    assert pauses(14) == []
    assert pauses(16, on_host=False) == [("Other code.", "n")]
    assert pauses(16, held=0) == [("Other code.", "n")]
    # Half of it in long pauses, or under one name, is work.
    assert pauses(16, long=15) == [(claim.format(16), advice)]
    assert pauses(16, long=16) == [("Other code.", "n")]
    assert pauses(16, 7) == [(claim.format(16), advice)]
    assert pauses(16, 8)[0][0].startswith("Other code: `part 0`")


def test_short_pauses_that_are_mostly_of_one_function_are_told_with_it() -> None:
    """16 ms of 100 in two steps: 10 in `clip_each` under two names, 6 in the script itself."""
    inside, script = "a.py(6): clip_each", "a.py(9): <module>"
    names = [
        (0, PYTHON, f"norm in {inside}", 12),
        (0, PYTHON, inside, 8),
        (0, PYTHON, f"mul in {script}", 12),
    ]
    ledger = [(0, step, account, ms) for step in range(2) for account, ms in (("compute", 84), (PYTHON, 16))]
    other = finding("host-busy-elsewhere", PYTHON, 16, "Other code.")
    (told,) = page(other, ledger=ledger, names=names, on_host=True)
    assert told.claim.endswith("in the short pauses between operators, mostly in `clip_each`.")
    # Fewer operators also compute for less time.
    assert (told.gain, told.ns_per_step, told.size) == ("unknown", 0, 16 * MS)
    assert told.next.startswith("Do the same in fewer operators inside `clip_each` (a.py:6): a larger batch")
    for alike in ([names[0], (0, PYTHON, script, 14)], [(0, PYTHON, f"{n} in {inside}", 8) for n in "ab"]):
        (told,) = page(other, ledger=ledger, names=alike, on_host=True)
        assert told.claim.endswith("in the short pauses between operators.")


def test_a_copy_of_the_model_in_short_pauses_is_not_advised_to_be_fewer_operators() -> None:
    """`copy.deepcopy` runs its own Python between the operators that clone tensors."""
    ledger = [(0, step, account, ms) for step in range(2) for account, ms in (("compute", 80), (PYTHON, 20))]
    other = finding("host-busy-elsewhere", PYTHON, 20, "Nothing computes while the CPU runs other code.")
    names = [
        (0, PYTHON, "copy.py(227): _deepcopy_dict in a.py(8): snapshot", 14),
        (0, PYTHON, "copy.py(128): deepcopy in a.py(8): snapshot", 10),
        (0, PYTHON, "a.py(9): train_step", 8),
    ]
    (told,) = page(other, ledger=ledger, names=names, on_host=True)
    assert "runs Python: `_deepcopy_dict` in `snapshot` (7.00 ms)" in told.claim
    assert told.next.startswith("Make `_deepcopy_dict` (copy.py:227) in `snapshot` (a.py:8) cheaper")
    of_torch = [(0, PYTHON, f"torch/nn/{name.partition('/')[2] or name}", ns) for _, _, name, ns in names[:2]]
    (told,) = page(other, ledger=ledger, names=[*of_torch, names[2]], on_host=True)
    assert told.claim.endswith("in the short pauses between operators, mostly in `snapshot`.")


def test_a_phase_is_not_one_thing_that_short_pauses_are_spent_on() -> None:
    ledger = [(0, step, account, ms) for step in range(2) for account, ms in (("compute", 80), (PYTHON, 20))]
    other = finding("host-busy-elsewhere", PYTHON, 20, "The CPU runs other code.")
    for name, said in (("Optimizer.step#AdamW.step", "in the short pauses between operators."), ("f", "`f`")):
        (told,) = page(other, ledger=ledger, names=[(0, PYTHON, name, 30)], on_host=True)
        assert said in told.claim


def test_what_a_function_spends_under_many_names_is_told_with_its_own() -> None:
    """A copy in `sample` is spread over the functions of a library; `wait` only sleeps."""
    claim = "The GPU idles 10.0 ms per step while the CPU runs other code."
    copies = [(0, PYTHON, f"copy.py({n}): f in a.py(8): sample", 8) for n in range(3)]
    others = [(0, PYTHON, "backward", 10), (0, PYTHON, "time.sleep in a.py(3): wait", 6)]
    (told,) = page(finding("host-busy-elsewhere", PYTHON, 10, claim), names=copies + others)
    assert told.claim.endswith("while the CPU runs Python: `sample` (6.00 ms) and `backward` (2.50 ms).")
    assert told.contributors == (
        "`sample` (a.py:8) 6.00 ms",
        "`backward` 2.50 ms",
        "`time.sleep` in `wait` (a.py:3) 1.50 ms",
    )
    assert told.next.startswith("Make `sample` (a.py:8) cheaper")


def test_names_of_a_single_step_are_told_whole() -> None:
    (told,) = page(
        finding("other-finding", PYTHON, 10), ledger=[(0, 0, "compute", 100)], names=[(0, PYTHON, "a", 10)]
    )
    assert told.contributors == ("`a` 10.0 ms",)


# --- what is about the same gaps


def test_one_pause_is_told_by_its_cause() -> None:
    gaps = pl.DataFrame({"cause": [SAVING, DATA, SAVING], "counted": [False, True, True]})
    pause = finding("one-gap-is-most", "x", 9, "One pause.", recipe="gpu_gaps")
    cause = finding("starves", DATA, 5)
    (told,) = page(cause, pause, tables={"gpu_gaps": gaps})
    assert (told.name, told.evidence, told.ns_per_step) == ("starves", ("One pause",), 9 * MS)
    assert len(page(finding("saves", SAVING, 5), pause, tables={"gpu_gaps": gaps})) == 2
    assert len(page(cause, pause)) == 2
    assert len(page(cause, tables={"gpu_gaps": gaps})) == 1


def test_allocations_that_fail_are_why_the_allocator_stalls() -> None:
    stalls = finding("allocator-stalls", "idle.memory_allocator", 5)
    failing = [
        finding("api-calls-fail", "x", 0, "Calls fail.", recipe="r", evidence=(fact,))
        for fact in ("cudaMalloc returns 2", "cuDeviceGet returns 1")
    ]
    (told,) = page(stalls, failing[0])
    assert told.evidence == ("Calls fail",)
    assert len(page(stalls, failing[1])) == 2
    assert len(page(stalls)) == len(page(failing[0])) == 1


def test_a_loader_that_is_slow_outside_of_the_recording_too_is_one_finding() -> None:
    inside = finding("data-loading-starves-device", DATA, 5)
    outside = finding("data-wait-outside-window", "x", 7, "Waits outside.", recipe="r")
    (told,) = page(inside, outside)
    assert (told.name, told.evidence) == ("data-loading-starves-device", ("Waits outside",))
    assert len(page(inside)) == len(page(outside)) == 1


# --- a host that waits for its device again and again


def waiting(
    calls: int, held: int | None = 90, between: tuple[int, int] = (30, 50), outside: int = 0, **more: int
) -> list[Finding]:
    """Two ranks with two steps of 100 ms: per step 10 ms of waits, and 3 and 5 ms of launches and Python."""
    ledger: Rows = [
        (rank, step, account, ms)
        for rank in range(2)
        for step in range(2)
        for account, ms in (
            ("compute", 900 - sum(between)), (WAITS, 100), (LAUNCHES, between[0]), (UNEXPLAINED, between[1]),
        )
        if ms
    ]  # fmt: skip
    table = pl.DataFrame(
        [
            ("cudaStreamSynchronize", calls + outside, calls, None if held is None else held * MS),
            ("cudaLaunchKernel", 999, 999, 999 * MS),
            ("CUDADEVICESYNCHRONIZE", 0, 0, 70 * MS),
            ("cudaEventSynchronize", 0, 0, None),
        ],
        schema=["name", "calls", "calls_in_steps", "per_step"],
        orient="row",
    )
    found = [finding("host-waits-for-device", WAITS, 100, evidence=("e",))]
    found += [finding("launch-bound", LAUNCHES, 120)] if between[0] else []
    found += [finding("unexplained", UNEXPLAINED, 50)] if between[1] else []
    return page(*found, ledger=ledger, tables={"api_call_summary": table}, **more)


def test_what_lies_between_waits_that_come_often_is_part_of_them() -> None:
    (told,) = waiting(16)
    assert told.claim == (
        "The GPU idles 180 ms per step (18.0 %) because the CPU waits for it 4 times per step before it "
        "launches more work."
    )
    assert told.evidence == ("e", "80.0 ms of it is launches and Python that a CPU that runs ahead hides")
    assert told.accounts == (WAITS, LAUNCHES, UNEXPLAINED)
    assert (told.size, told.ns_per_step) == (180 * MS, 120 * MS)
    assert len(waiting(15)) == 3
    assert "waits for it 250 times" in waiting(1003)[0].claim


def test_long_pauses_of_which_nothing_is_known_are_no_launches_between_waits() -> None:
    """Between requests a server waits: the page had it launch work that a CPU that runs ahead hides."""
    told, untold = sorted(waiting(16, long_unexplained=4 * 40 * MS), key=lambda f: -f.size)
    assert told.evidence == ("e", "40.0 ms of it is launches and Python that a CPU that runs ahead hides")
    assert told.accounts == (WAITS, LAUNCHES) and told.size == 140 * MS
    assert (untold.accounts, untold.size) == ((UNEXPLAINED,), 50 * MS)


@pytest.mark.parametrize(
    ("call", "waits"),
    [
        ("hipMemcpyWithStream", True),  # what `.item()` calls on AMD's GPUs, with nothing that synchronises
        ("cudaMemcpy", True),
        ("cuMemcpyDtoH_v2", True),
        ("hipMemcpyAsync", False),
        ("cudaMemcpyPeer", False),
        ("cuMemcpyDtoD_v2", False),
    ],
)
def test_copies_that_return_when_done_are_waits(call: str, waits: bool) -> None:
    ledger: Rows = [(0, 0, "compute", 80), (0, 0, WAITS, 15), (0, 0, LAUNCHES, 5)]
    table = pl.DataFrame({"name": [call], "calls_in_steps": [4], "per_step": [15 * MS]})
    found = page(
        finding("host-waits-for-device", WAITS, 15), ledger=ledger, tables={"api_call_summary": table}
    )
    assert ("waits for it 4 times per step" in found[0].claim) is waits


def test_waits_that_promise_nothing_promise_nothing_together() -> None:
    ledger: Rows = [(0, 0, "compute", 80), (0, 0, WAITS, 15), (0, 0, LAUNCHES, 5)]
    table = pl.DataFrame({"name": ["cuCtxSynchronize"], "calls_in_steps": [4], "per_step": [15 * MS]})
    waits = finding("host-waits-for-device", WAITS, 0, cost_per_step=15 * MS)
    (told,) = page(waits, ledger=ledger, tables={"api_call_summary": table})
    assert (told.ns_per_step, told.size) == (0, 20 * MS)


def test_waits_that_are_shorter_than_what_lies_between_them_hide_nothing() -> None:
    """160 ms between them on two ranks: 90 and 70 ms in the calls are as much."""
    assert len(waiting(16)) == 1
    assert len(waiting(16, 89)) == 3
    assert len(waiting(16, None)) == 3
    assert (
        len(waiting(16, between=(0, 0))) == 1 and "launches more" not in waiting(16, between=(0, 0))[0].claim
    )


def test_calls_outside_of_the_steps_are_no_calls_per_step() -> None:
    """A warm-up that waits a thousand times says nothing of steps that wait three times."""
    assert len(waiting(12, outside=4000)) == 3
    (told,) = waiting(16, outside=4000)
    assert "waits for it 4 times per step" in told.claim


def test_waits_outside_the_steps_are_none_of_a_step() -> None:
    """Two ranks wait 30 times in all while they set up, and six times in four steps."""
    calls = pl.DataFrame(
        [("cudaDeviceSynchronize", 36, 6), ("cudaLaunchKernel", 400, 400)],
        ["name", "calls", "calls_in_steps"],
        orient="row",
    ).with_columns(per_step=pl.lit(MS))
    rows = pl.DataFrame(EVEN, ["rank", "step", "account", "ns"], orient="row").with_columns(
        start=pl.col("step")
    )
    answers: Any = {"api_call_summary": SimpleNamespace(table=calls, findings=())}
    assert waits_per_step(Given(answers, rows)) == 1.5
    assert waits_per_step(Given({}, rows)) == 0


def on_some(*ms: float, size: float = 0, **more: Any) -> tuple[tuple[str, ...], str]:
    """What is said of a finding about loading, of which each rank has so many ms in a mean step of two."""
    rows: Rows = [(rank, step, "compute", 100 * MS) for rank in range(len(ms)) for step in range(2)]
    rows += [(rank, 0, DATA, round(2 * each * MS)) for rank, each in enumerate(ms) if each]
    ledger = pl.DataFrame(rows, ["rank", "step", "account", "ns"], orient="row")
    given = Given({}, ledger.with_columns(start=1000 * pl.col("step")))
    one = finding("starves", DATA, 1, **({"next": "Look here."} | more))
    told = on_some_ranks(replace(one, ns_per_step=round((size or sum(ms) / len(ms)) * MS)), given)
    return told.evidence, told.next


def test_ranks_that_alone_have_an_idle_time_are_named_with_it() -> None:
    said = "rank 0 idles 10.0 ms per step for it, the other"
    assert on_some(10, 0) == ((f"{said} does not",), "On rank 0: look here.")
    assert on_some(10, 1)[0] == (f"{said} 1.00 ms",)
    assert on_some(10, 1.1) == ((), "Look here.")
    assert on_some(10, 0, 2) == ((), "Look here.")  # one of the others has some of it
    assert on_some(10, 0, 0)[0] == (f"{said}s do not",)
    assert on_some(10, 0, 1)[0] == (f"{said}s 500 µs",)
    assert on_some(10, 5, 0)[0] == ("ranks 0 and 1 idle 7.50 ms per step for it, the other does not",)
    assert on_some(10, 4.9, 0) == ((), "Look here.")
    assert on_some(10, 10) == ((), "Look here.")
    # What a finding costs beyond its idle time is others' waiting: told from a twentieth on.
    assert on_some(19, 0, size=10)[0][0].endswith("does not; ranks wait 500 µs per step for it")
    assert on_some(19, 0, size=9.9)[0][0].endswith("does not")
    assert on_some(20, 20, 0, 0, size=20)[0][0].endswith("do not; ranks wait 10.0 ms per step for them")
    # How the waiting came together is told by that, other facts stay.
    facts = ("4.00 ms of it waiting for other ranks", "mostly in step 1")
    assert on_some(10, 0, evidence=facts)[0] == (f"{said} does not", "mostly in step 1")
    # What it idles is its first account.
    both = {"accounts": (DATA, "compute")}
    assert on_some(10, 0, **both) == on_some(10, 0)
    for other in ({"recipe": "another"}, {"rank": 0}):
        assert on_some(10, 0, **other) == ((), "Look here.")


def test_short_pauses_between_operators_are_not_asked_to_go() -> None:
    """Of 40 ms in each step 27 are two functions': fewer operators shorten them, nothing takes them away."""
    ledger: Rows = [
        (0, step, account, ms) for step in range(2) for account, ms in (("compute", 60), (PYTHON, 40))
    ]
    names = [(0, PYTHON, "a.py(9): f", 30), (0, PYTHON, "b.py(3): g", 24)]
    claim = "Nothing computes for 40 ms per step while the CPU runs other code."
    one = finding("host-busy-elsewhere", PYTHON, 40, claim)
    for on_host, said, edit in (
        (True, "short pauses", ""),
        (False, "runs Python", "host:other-host-work=32%"),
    ):
        (told,) = page(one, ledger=ledger, names=names, on_host=on_host)
        assert said in told.claim
        assert told.edit == edit


@pytest.mark.parametrize(("ms", "doubted"), [(20, True), (26, True), (27, False), (19, False)])
def test_where_cores_are_crowded_a_thread_may_be_blocked(ms: int, doubted: bool) -> None:
    """Of 40 ms in `main` the thread may be blocked for 20, or operators for their own threads."""
    claim = "The GPU idles 40.0 ms per step while the CPU runs other code."
    other = finding("host-busy-elsewhere", PYTHON, 40, claim)
    told = blocked_page(ms, other, crowded=7)
    said = f"Linux counts {ms:.1f} ms per step in which the training thread is blocked: it may wait here"
    assert told[0].doubt.startswith(said) is doubted
    assert told[0].gain == "unknown" if doubted else told[0].ns_per_step == 40 * MS


def test_the_larger_of_two_pauses_may_hold_all_of_the_waiting() -> None:
    """A callback sleeps for 20 of 34 ms that nothing explains; the optimizer has 4 ms without a core."""
    ledger: Rows = [(0, 0, account, ms) for account, ms in ((UNEXPLAINED, 34), (PYTHON, 4), ("compute", 4))]
    unknown = finding("idle-unexplained", UNEXPLAINED, 34)
    other = finding("host-busy-elsewhere", PYTHON, 4, "Nothing computes while the CPU runs other code.")
    tables = {
        "step_log_off_core": pl.DataFrame({"counted": [True], "blocked": [20 * MS]}),
        "step_log_core_waits": pl.DataFrame({"counted": [True], "core_wait": [17 * MS]}),
    }
    names = [(0, PYTHON, "Optimizer.step#AdamW.step", 4)]
    told = page(unknown, other, ledger=ledger, names=names, tables=tables, on_host=True)
    assert all("it may wait here instead of running" in f.doubt for f in told)
    assert not any("is in" in f.claim or "Linux counts" in "".join(f.evidence) for f in told)


def test_what_linux_counts_is_told_beside_what_other_waits_may_be_of_it() -> None:
    """Of 30 ms in which the thread is blocked it may wait 21 for the loader, or for a core there."""
    ledger: Rows = [(0, 0, account, ms) for account, ms in (("compute", 42), (DATA, 21), (UNEXPLAINED, 17))]
    unknown = finding("idle-unexplained", UNEXPLAINED, 17)
    table = {"step_log_off_core": pl.DataFrame({"counted": [True], "blocked": [30 * MS]})}
    (told,) = page(unknown, ledger=ledger, tables=table, on_host=True)
    said = "Linux counts 30.0 ms per step in which the training thread is blocked, 9.00 ms of it beyond waits"
    assert told.evidence[-1].startswith(said)


def test_a_function_that_launches_piece_by_piece_is_one_cause_with_its_python() -> None:
    """Of a step of 100 ms it launches for 20, and runs its own Python for 10 between."""
    ledger: Rows = [(0, 0, account, ms) for account, ms in (("compute", 60), (LAUNCHES, 25), (PYTHON, 15))]
    ema, other = "train.py(55): update_ema", "train.py(9): prepare"
    names = [(0, LAUNCHES, f"aten::mul_ in {ema}", 12), (0, LAUNCHES, f"aten::add_ in {ema}", 8)]
    launches = finding("launch-bound", LAUNCHES, 25, "The GPU idles as the CPU launches work too slowly.")
    python = finding(
        "host-busy-elsewhere", PYTHON, 15, "The GPU idles 15.0 ms per step while the CPU runs other code."
    )
    (told,) = page(launches, python, ledger=ledger, names=[*names, (0, PYTHON, ema, 10)])
    assert told.claim == (
        "The GPU idles 40.0 ms per step (40.0 %) because the CPU launches work too slowly, mostly in "
        "`update_ema`."
    )
    assert told.evidence == ("15.0 ms of it is Python between the launches",)
    assert "`torch._foreach_mul_`" in told.next and told.accounts == (LAUNCHES, PYTHON)
    assert told.edit == "cuda-graph,host:other-host-work=33%"
    both = page(launches, python, ledger=ledger, names=[*names, (0, PYTHON, other, 10)])
    assert [found.size for found in both] == [25 * MS, 15 * MS]


def test_what_the_profiler_does_is_nothing_to_be_mended() -> None:
    """Of a step of 100 ms it works for 12 in pauses, where the job's code has 8, and for 3 in a call."""
    ledger: Rows = [
        (0, 0, account, ms) for account, ms in (("compute", 77), (PYTHON, 20), ("idle.long_call", 3))
    ]
    names = [(0, PYTHON, "Buffer Flush in train.py(9): f", 12), (0, PYTHON, "train.py(9): f", 8)]
    python = finding(
        "host-busy-elsewhere",
        PYTHON,
        20,
        "The GPU idles 20.0 ms per step (20.0 %) while the CPU runs other code.",
    )
    called = finding(
        "long-api-calls", "idle.long_call", 3, "The GPU idles 3.00 ms per step (3.0 %) in calls."
    )
    names += [(0, "idle.long_call", "Activity Buffer Request", 3)]
    own, rest = page(python, called, ledger=ledger, names=names)
    if own.name != "profiler-at-work":
        own, rest = rest, own
    assert own.claim == (
        "The GPU idles 15.0 ms per step (15.0 %) while the profiler itself works: `Buffer Flush` and "
        "`Activity Buffer Request`."
    )
    assert own.gain == "unknown" and own.ns_per_step == 0
    assert rest.claim.startswith("The GPU idles 8.00 ms per step (8.0 %)") and "`f` (8.00 ms)" in rest.claim
    few = [(0, PYTHON, "Buffer Flush", 2), (0, PYTHON, "train.py(9): f", 18)]
    assert [f.name for f in page(python, ledger=ledger, names=few)] == ["host-busy-elsewhere"]


def test_what_ends_a_recorded_step_is_the_profiler_s_work() -> None:
    """12 ms of 100 in `prof.step()`, which a script calls outside of functions, or in the recorder's hook."""
    python = finding("host-busy-elsewhere", PYTHON, 20, "The GPU idles 20.0 ms per step (20.0 %).")
    ledger: Rows = [(0, 0, account, ms) for account, ms in (("compute", 80), (PYTHON, 20))]
    recorder = "lostflops_recorder"
    for what, function in (
        ("torch/profiler/profiler.py(900): step", "step"),
        (f"{recorder}/windows/window.py(83): ended", recorder),
    ):
        names = [(0, PYTHON, f"{what} in train.py(9): <module>", 12), (0, PYTHON, "train.py(9): f", 8)]
        for on_host, said in ((False, "The GPU idles"), (True, "Nothing computes for")):
            found = page(python, ledger=ledger, names=names, on_host=on_host, in_long_pauses=20 * MS)
            own = next(f for f in found if f.name == "profiler-at-work")
            assert own.claim.startswith(f"{said} 12.0 ms per step (12.0 %) while the profiler itself works: ")
            assert f"`{function}`" in own.claim and "<module>" not in own.claim
            (rest,) = (f for f in found if f != own)
            assert rest.ns_per_step == (8 if on_host else 20) * MS


def test_a_function_whose_work_has_many_names_is_named_with_their_sum() -> None:
    """12 ms of 20 in `inspect`, under 8 names of which none has a tenth of the time."""
    python = finding(
        "host-busy-elsewhere",
        PYTHON,
        20,
        "The GPU idles 20.0 ms per step (20.0 %) while the CPU runs other code.",
    )
    ledger: Rows = [(0, 0, account, ms) for account, ms in (("compute", 80), (PYTHON, 20))]
    names = [(0, PYTHON, f"torch/nn/a.py({n}): f in train.py(9): inspect", 1) for n in range(12)]
    names += [(0, PYTHON, f"torch/nn/b.py({n}): f", 1) for n in range(8)]
    (found,) = page(python, ledger=ledger, names=names)
    assert found.claim.endswith("while the CPU runs Python: `inspect` (12.0 ms).")


def test_what_a_script_runs_outside_of_functions_is_told_by_its_line() -> None:
    assert spoken("isinstance in train.py(44): <module>") == "`isinstance` (train.py:44)"
    assert spoken("torch/optim/adam.py(214): step in train.py(44): <module>") == "`step` (adam.py:214)"


def test_passes_of_a_model_are_not_to_be_moved_into_the_loader_s_workers() -> None:
    loader = "idle.data_loading"
    ledger: Rows = [(0, 0, account, ms) for account, ms in (("compute", 77), (PYTHON, 20), (loader, 3))]
    for what, moves in (
        ("model.py(16): forward", False),
        ("net.py(31): training_step", False),
        ("backward in train.py(45): <module>", False),
        ("model.py(16): forward_fill", True),
    ):
        python = finding("host-busy-elsewhere", PYTHON, 20, "The GPU idles 20.0 ms per step (20.0 %).")
        names = [(0, PYTHON, what, 20), (0, PYTHON, "train.py(45): <module>", 0)]
        (found,) = page(python, ledger=ledger, names=names)
        assert ("into the loader's workers" in found.next) is moves, found.next
        assert moves or "fewer operators" in found.next


@pytest.mark.parametrize(
    ("waits_in", "told"), [("train.py(9): finite", True), ("train.py(80): report", False)]
)
def test_a_check_of_each_gradient_is_not_told_to_compile_the_model(waits_in: str, told: bool) -> None:
    """It launches for 12 ms of 15 and waits for 3: the model launches well."""
    ledger: Rows = [(0, 0, account, ms) for account, ms in (("compute", 82), (LAUNCHES, 15), (WAITS, 3))]
    names = [
        (0, LAUNCHES, "aten::eq in train.py(9): finite", 7),
        (0, LAUNCHES, "aten::all in train.py(9): finite", 5),
        (0, LAUNCHES, "aten::mm in model.py(3): forward", 3),
        (0, WAITS, f"cudaStreamSynchronize in {waits_in}", 3),
    ]
    launching = finding(
        "launch-bound",
        LAUNCHES,
        15,
        "The GPU idles 15.0 ms per step (15.0 %) because the CPU launches work too slowly.",
    )
    found = page(launching, finding("host-waits-for-device", WAITS, 3), ledger=ledger, names=names)
    one = next(f for f in found if f.name == "launch-bound")
    assert one.claim.endswith("slowly, mostly in `finite`, which reads values from it.") is told
    assert one.next.startswith("In `finite` (train.py:9) bring the values together on the GPU") is told
    assert (one.remedies == ()) is told


def test_a_call_that_only_asks_is_to_be_made_once() -> None:
    told = [
        page(finding("long-api-calls", "idle.long_call", 10), names=[(0, "idle.long_call", name, 40)])[0].next
        for name in ("cudaMemGetInfo", "cudaMemcpyAsync")
    ]
    assert told == [
        "Ask once, and keep what `cudaMemGetInfo` answers; or ask less often than in each step.",
        "n",
    ]
