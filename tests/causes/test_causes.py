"""One finding per cause: what several recipes saw of one loss, joined and ranked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

import lostflops
from lostflops.causes import findings
from lostflops.causes.given import NAMES, Given
from lostflops.causes.host import join_host
from lostflops.causes.names import spoken
from lostflops.causes.own_time.together import Turns, turns
from lostflops.causes.page_findings import PageFindings
from lostflops.causes.waiting import join_waiting
from lostflops.finding import Finding
from lostflops.recipes import named
from lostflops.report.first_page.page import Page
from lostflops.session import Answer, Session
from made_runs import MS, THREAD, Job, Work, made

STEPS = 5


@pytest.fixture
def why(tmp_path: Path):
    def asked(steps: Sequence[Sequence[Work]], job: Job | None = None) -> Page:
        return lostflops.why(made(tmp_path, (job or Job()).run(steps)))

    return asked


def names(page: Page) -> list[str]:
    return [finding.name for finding in page.findings]


def first(page: Page) -> Finding:
    return page.findings[0]


def late(*, ranks: int = 2, **own: float) -> list[list[Work]]:
    """Steps in which the last rank does `own` and the others only compute."""
    return [[Work()] * (ranks - 1) + [Work(**own)] for _ in range(STEPS)]  # pyright: ignore[reportArgumentType]


def test_a_late_ranks_loader_is_the_first_and_only_finding(why) -> None:
    page = why(late(loads=30))
    assert names(page) == ["rank-arrives-last"]
    finding = first(page)
    assert finding.claim.startswith("Rank 1 is 30.0 ms late per step (41.7 %): 30.0 ms of data loading")
    assert "the others wait 30.0 ms for it" in finding.claim
    # Without it the transfer of 2 ms might run beside computing, too.
    assert (finding.rank, finding.cost_per_step, finding.ns_per_step) == (1, 30 * MS, 32 * MS)
    assert finding.accounts == ("idle.data_loading", "communication.wait")
    assert page.verdict.startswith("Waiting for rank 1: its data loader makes it 30.0 ms late")


def test_the_page_of_some_ranks_that_wait_for_another_blames_none_of_them(tmp_path: Path) -> None:
    run = made(tmp_path, Job().run(late(loads=30, ranks=3)))
    page = lostflops.why(run.select(frozenset({0, 1})))
    assert all(finding.rank not in (0, 1) for finding in page.findings)
    assert not any("NaN" in fact or "None" in fact for f in page.findings for fact in (f.claim, *f.evidence))


def test_the_function_that_makes_a_rank_late_is_named(why) -> None:
    finding = first(why(late(python=25, ranks=3)))
    assert finding.name == "rank-arrives-last"
    assert "25.0 ms of Python" in finding.claim and "`preprocess` (ddp.py:16)" in finding.claim
    assert finding.contributors == ("`preprocess` (ddp.py:16) 25.0 ms",)


def test_a_rank_whose_same_kernels_take_longer_has_a_slow_device(why) -> None:
    finding = first(why(late(computes=60)))
    assert finding.rank == 1 and finding.accounts[0] == "compute"
    assert "20.0 ms" in finding.claim
    assert any("1.5 times as long as the same kernels" in fact for fact in finding.evidence)
    assert "nvidia-smi" in finding.next


def test_ranks_that_are_slow_together_take_no_turns(why) -> None:
    # Neither is last by much, and which of them is differs from step to step.
    steps = [[Work(), Work(computes=60 + n % 2), Work(), Work(computes=61 - n % 2)] for n in range(STEPS)]
    finding = first(why(steps))
    # Of 63 ms two ranks wait 21 and one of the others 1.
    assert finding.claim.startswith(
        "The others wait 21.0 ms per step (33.3 %) for ranks 1 and 3, which compute 20.5 ms longer than the "
    )
    assert any("1.5 times as long as the same kernels" in fact for fact in finding.evidence)
    assert finding.next.startswith("On ranks 1 and 3: look at GPU clocks")
    collecting = [
        [Work(), Work(collects=30 + n % 2), Work(), Work(collects=31 - n % 2)] for n in range(STEPS)
    ]
    page = why(collecting)
    assert names(page) == ["garbage-collection-inside-step"]
    # Half of the ranks lose 30.5 ms to it, the others wait as long; 0.25 ms more for the later of two.
    assert first(page).cost_per_step == 31 * MS
    fact = "ranks 1 and 3 idle 30.5 ms per step for it, the others do not"
    assert f"{fact}; ranks wait 15.8 ms per step for them" in first(page).evidence
    assert first(page).next.startswith("On ranks 1 and 3: ")


def test_a_rank_that_logs_is_told_to_log_less(why) -> None:
    page = why(late(python=25, frame="logging/__init__.py(1529): info"))
    assert "25.0 ms of logging" in first(page).claim
    assert first(page).next.startswith("On rank 1: log every hundredth step")
    assert page.verdict.startswith("Waiting for rank 1: its logging makes it 25.0 ms late")


def test_a_rank_that_copies_pageable_memory_is_told_to_pin_it(tmp_path: Path) -> None:
    tables = Job().run(late(copies=30))
    for row in tables["copies"]:
        row["host_memory"] = "pageable"
    page = lostflops.why(made(tmp_path, tables))
    assert names(page)[0] == "rank-arrives-last" and "copies-pageable" not in names(page)
    assert first(page).next.startswith("On rank 1: pin the host's memory")


def test_a_rank_that_was_recorded_for_longer_does_not_run_more_kernels_per_step(tmp_path: Path) -> None:
    """Rank 0's recording begins two steps late, so these count on no rank."""
    tables = Job().run([[Work(), Work(computes=60)]] * 7)
    begins = next(row["start"] for row in tables["steps"] if row["step"] == 2)
    for name in ("steps", "kernels", "collectives"):
        tables[name] = [row for row in tables[name] if row["rank"] == 1 or row["start"] >= begins]
    for row in tables["steps"]:
        row["left_out"] = "left out on another rank" if row["step"] < 2 else None
    finding = first(lostflops.why(made(tmp_path, tables)))
    assert finding.rank == 1
    assert any("1.5 times as long as the same kernels" in fact for fact in finding.evidence), finding.evidence


def test_what_some_ranks_do_is_spread_over_all(tmp_path: Path) -> None:
    """Of four ranks one multiplies in fp32 for 40 of 60 ms, and one does not communicate for 20."""
    tables = Job(transfer=20, world_size=4).run([[Work()] * 4] * STEPS)
    for row in tables["kernels"]:
        if row["family"] == "gemm":
            row |= {"precision": "fp32", "tensor_cores": False} if row["rank"] == 0 else {"family": "norm"}
    tables["collectives"] = [row for row in tables["collectives"] if row["rank"] != 3]
    tables["kernels"] = [r for r in tables["kernels"] if r["rank"] != 3 or r["family"] != "communication"]
    trace = made(tmp_path, tables)
    page = lostflops.why(trace)
    claims = {f.name: f.claim for f in page.findings}
    assert "takes 10.0 ms per step (16.7 %)" in claims["fp32-without-tensor-cores"]
    assert "costs 15.0 ms per step (25.0 %)" in claims["communication-exposed"]
    answer = Session(trace).run("communication_exposed")
    assert isinstance(answer, Answer)
    assert "costs 15.0 ms per step (25.0 %)" in answer.findings[0].claim


@pytest.mark.parametrize("more", [{"calls": 6}, {"grid": 96}])
def test_a_rank_that_runs_more_or_larger_kernels_has_more_work(why, more: dict[str, int]) -> None:
    finding = first(why(late(computes=60, **more)))
    assert finding.rank == 1
    assert not any("times as long" in fact for fact in finding.evidence)
    assert "nvidia-smi" not in finding.next


def test_a_loader_that_starves_all_ranks_comes_before_the_waits_that_its_variation_causes(why) -> None:
    steps = [[Work(loads=20 + 6 * ((s + r) % 2)) for r in range(2)] for s in range(6)]
    page = why(steps)
    assert names(page) == ["data-loading-starves-device"]
    assert any("ranks 0 and 1 take turns being late because of it" in fact for fact in first(page).evidence)
    # 23 ms of loading, and 3 ms of waiting in the mean of both ranks.
    assert first(page).cost_per_step == 26 * MS


def test_a_loader_slow_on_all_ranks_and_slower_on_one_is_one_finding(why) -> None:
    page = why([[Work(loads=30), Work(loads=30), Work(loads=38)]] * STEPS)
    assert names(page) == ["data-loading-starves-device"]
    assert any("rank 2 has 8.00 ms more of it" in fact for fact in first(page).evidence)


def test_ranks_with_uneven_work_take_turns_being_late(why) -> None:
    steps = [[Work(computes=40 + 15 * ((s + r) % 3 == 0)) for r in range(3)] for s in range(6)]
    page = why(steps)
    assert names(page) == ["communication-waits"]
    assert "ranks 0, 1 and 2 take turns being late, mostly by compute" in first(page).claim
    assert "like sequence lengths" in first(page).next


def uneven(grids: Sequence[Sequence[int]]) -> list[list[Work]]:
    """Steps of ranks that compute for as many ms as their kernels have blocks."""
    return [[Work(computes=grid, grid=grid) for grid in step] for step in grids]


def test_a_rank_with_most_work_in_some_steps_is_not_the_cause_where_batches_are_uneven(why) -> None:
    page = why(uneven([[70, 40, 45, 40], [40, 44, 40, 66], [72, 40, 42, 40], [44, 68, 40, 40]]))
    assert names(page) == ["communication-waits"]
    assert first(page).rank is None
    assert "ranks 0, 1 and 3 take turns being late, mostly by compute" in first(page).claim
    assert first(page).edit == "even-work"
    assert first(page).evidence[0].startswith("rank 0: it runs other or larger kernels")


def test_a_rank_with_more_work_in_every_step_is_blamed(why) -> None:
    page = why(uneven([[40, 40, 70, 40], [44, 40, 71, 40], [40, 45, 70, 40]]))
    assert names(page) == ["rank-arrives-last"]
    assert first(page).rank == 2


def test_ranks_with_more_work_together_are_named_together(why) -> None:
    page = why(uneven([[70, 70, 40, 40], [90, 90, 40, 40], [55, 55, 40, 40]]))
    assert names(page) == ["communication-waits"]
    assert "for ranks 0 and 1, which compute 31.7 ms longer than the others" in first(page).claim
    assert first(page).edit == "even-work"


def test_one_rank_alone_takes_no_turns() -> None:
    """It does most in every step and arrives last in none: then its work is not what the others wait for."""
    ledger = pl.DataFrame(
        [
            {
                "rank": rank,
                "step": step,
                "start": 100 * step,
                "end": 100 * step + 100,
                "account": account,
                "ns": ns,
            }
            for step in range(4)
            for rank, computes in enumerate((60, 40))
            for account, ns in (("compute", computes), ("communication.wait", 100 - computes))
        ],
        schema_overrides={"rank": pl.Int32},
    )
    page = PageFindings(Given({}, ledger))
    assert turns(page.given) == Turns(10, "compute", 1.0, (0,))
    join_waiting(page)
    assert list(page.all()) == []


def test_ranks_that_are_equally_late_are_not_blamed(why) -> None:
    page = why([[Work(loads=30)] * 4] * STEPS)
    assert names(page) == ["data-loading-starves-device"]
    assert page.verdict.startswith("Input-bound")


def test_a_rank_that_was_late_once_was_late_once(why) -> None:
    steps = [[Work(), Work(loads=60 if s == 3 else 0)] for s in range(6)]
    finding = first(why(steps))
    assert "late once, in step 3" in finding.claim and "60.0 ms" in finding.claim


def test_exposed_transfer_is_the_communications_own(why) -> None:
    page = why(late(loads=10), Job(transfer=20))
    assert names(page) == ["communication-exposed", "rank-arrives-last"]
    assert first(page).cost_per_step == 20 * MS
    assert page.verdict.startswith("Communication-bound")


def test_a_late_rank_leaves_communication_no_more_than_its_transfer(why) -> None:
    page = why(late(loads=20), Job(transfer=5))
    assert names(page) == ["rank-arrives-last", "communication-exposed"]
    assert page.findings[1].cost_per_step == 5 * MS
    assert page.findings[1].ns_per_step == 5 * MS


def test_stages_of_a_pipeline_that_wait_for_each_other_are_a_bubble_not_a_late_rank(why) -> None:
    page = why([[Work(computes=30), Work(computes=40, calls=5)]] * STEPS, Job(kind="send"))
    assert "rank-arrives-last" not in names(page)
    assert names(page)[0] == "pipeline-bubble"
    assert first(page).claim.startswith("Rank 1 is the slowest pipeline stage: it computes 40.0 ms per step")
    assert "Move layers off that stage" in first(page).next


def test_stages_of_one_cost_have_a_bubble_and_no_one_to_blame(why) -> None:
    even = [[Work(computes=30 + 6 * ((s + r) % 2)) for r in range(2)] for s in range(6)]
    (bubble,) = [f for f in why(even, Job(kind="send")).findings if f.name == "pipeline-bubble"]
    assert bubble.rank is None and "microbatches" in bubble.next


def test_the_clocks_doubt_and_missing_ranks_are_told(why, tmp_path: Path) -> None:
    doubted = why(late(loads=30), Job(clock_error=9 * MS))
    assert "clocks are not aligned well enough" in first(doubted).doubt


def test_waits_that_the_clocks_alone_may_make_are_not_reported(why) -> None:
    told = why(late(loads=10), Job(clock_error=4 * MS, transfer=5))
    untold = why(late(loads=10), Job(clock_error=5 * MS, transfer=5))
    assert names(told)[0] == "rank-arrives-last"
    assert sorted(names(untold)) == ["communication-exposed", "data-loading-starves-device"]
    (exposed,) = [f for f in untold.findings if f.name == "communication-exposed"]
    assert "5.00 ms of it looks like waiting, which clocks known to 5.00 ms cannot tell" in exposed.doubt


def test_a_healthy_job_is_left_in_peace(why) -> None:
    steps = [[Work(computes=100 + (s * 7 + r * 3) % 4 / 4, loads=0.5) for r in range(4)] for s in range(6)]
    page = why(steps, Job(transfer=1))
    assert names(page) == []
    assert page.verdict.startswith("Compute-bound")


def test_copies_of_a_checkpoint_belong_to_the_checkpoint(why) -> None:
    one = Work(saves=30, copies=10, direction="device to host")
    page = why([[one]] * STEPS, Job(transfer=0))
    assert names(page) == ["checkpoint-inside-step"]
    assert first(page).cost_per_step == 30 * MS
    assert set(first(page).accounts) == {"idle.checkpoint_logging", "copy"}


@pytest.mark.parametrize(
    ("frame", "name", "does", "remedy"),
    [
        ("torch/serialization.py(943): save", "checkpoint-inside-step", "saves a checkpoint", "async_save"),
        ("logging/__init__.py(1529): info", "logging-inside-step", "logs", "every hundredth step"),
        ("<built-in function print>", "logging-inside-step", "logs", "every hundredth step"),
        ("wandb/sdk/wandb_run.py(1700): log", "logging-inside-step", "logs", "every hundredth step"),
    ],
)
def test_saving_and_logging_are_told_apart_by_what_ran(
    why, frame: str, name: str, does: str, remedy: str
) -> None:
    page = why([[Work(python=30, frame=frame)]] * STEPS, Job(transfer=0))
    (finding,) = page.findings
    assert (finding.name, finding.cost_per_step) == (name, 30 * MS)
    assert f"while the CPU {does}." in finding.claim and "or logs" not in finding.claim
    assert remedy in finding.next


def test_what_a_recording_lacks_comes_after_the_causes(why) -> None:
    page = why([[Work(loads=30)]] * 2, Job(transfer=0))
    assert names(page) == ["data-loading-starves-device", "few-whole-steps"]


def test_no_gain_exceeds_the_step(why) -> None:
    page = why([[Work(loads=90, computes=5)] * 2] * STEPS)
    assert all(f.ns_per_step <= page.budget.mean for f in page.findings)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("/home/me/ddp.py(16): preprocess", "`preprocess` (ddp.py:16)"),
        ("time.sleep in train.py(3): step", "`time.sleep` in `step` (train.py:3)"),
        ("<built-in function sleep>", "`sleep`"),
        ("<built-in method item of Tensor object at 0x7f11>", "`item`"),
        (
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
            "`_SingleProcessDataLoaderIter.__next__`",
        ),
        ("cudaFree", "`cudaFree`"),
        ("C:\\work\\train.py(7): f", "`f` (train.py:7)"),
        ("x" * 99, f"`{'x' * 59}…`"),
    ],
)
def test_a_host_rows_name_is_told_as_people_write_it(name: str, shown: str) -> None:
    assert spoken(name) == shown


def syncing(folder: Path, waits: int) -> Page:
    """Eight kernels of 5 ms a step with 1 ms of Python before each; the host waits after `waits` of them."""
    rows: dict[str, list[dict[str, object]]] = {name: [] for name in ("steps", "kernels", "launches")}
    now = 0
    for step in range(4):
        begin, host = now, now
        for number in range(8):
            host += MS
            start = max(host, now)
            now = start + 5 * MS
            call = {"thread": THREAD, "launch_start": host - 9, "launch_end": host}
            rows["kernels"].append({"start": start, "end": now, "family": "gemm", "name": "k", **call})
            rows["launches"].append(
                {"start": host - 9, "end": host, "thread": THREAD, "name": "cudaLaunchKernel"}
            )
            if number < waits:
                rows["launches"].append(
                    {"start": host, "end": now, "thread": THREAD, "name": "cudaStreamSynchronize"}
                )
                host = now
        rows["steps"].append({"step": step, "start": begin, "end": now, "source": "profiler"})
    rows["ranks"] = [{"end": now, "device_kind": "gpu", "main_thread": THREAD, "world_size": 1}]
    return lostflops.why(made(folder, rows))


def test_python_between_waits_in_each_layer_belongs_to_the_waits(tmp_path: Path) -> None:
    page = syncing(tmp_path, 8)
    assert names(page)[0] == "host-waits-for-device"
    assert "idle-unexplained" not in names(page)
    # All eight milliseconds of Python: the host, which waits 40 ms, would hide them.
    assert abs(first(page).cost_per_step - 8 * MS) < MS // 1000
    assert "waits for it 8 times per step" in first(page).claim


def test_what_exposed_transfer_can_save_does_not_count_the_waiting_that_a_late_rank_costs(why) -> None:
    page = why(late(ranks=3, saves=30), Job(transfer=6))
    blamed, exposed = page.findings
    assert page.verdict.startswith("Waiting for rank 2: its checkpoints make it 30.0 ms late")
    assert (blamed.name, exposed.name) == ("rank-arrives-last", "communication-exposed")
    assert (exposed.cost_per_step, exposed.ns_per_step) == (6 * MS, 6 * MS)
    assert not any("36.0 ms" in fact or "100.0 %" in fact for fact in exposed.evidence)


def test_a_trace_of_waiting_is_no_word_in_the_claim_of_exposed_transfer(why) -> None:
    steps = [[Work(), Work(computes=40.004)] for _ in range(STEPS)]
    finding = first(why(steps, Job(transfer=20)))
    assert finding.name == "communication-exposed"
    assert "waiting" not in finding.claim


def test_a_rank_whose_grouped_products_alone_take_longer_was_given_more_to_do(tmp_path: Path) -> None:
    tables = Job().run(late(computes=60))
    plain = [k for k in tables["kernels"] if k["family"] == "gemm"]
    for number, kernel in enumerate(plain):
        kernel["name"] = "sm90_gemm" if number % 4 == 0 else "cutlass_grouped_gemm"
    page = lostflops.why(made(tmp_path, tables))
    assert first(page).rank == 1
    assert "nvidia-smi" not in first(page).next


def test_one_pause_that_is_little_of_all_steps_is_no_finding(why) -> None:
    steps = [[Work(loads=5 if n == 0 else 0)] for n in range(12)]
    assert "one-gap-is-most" not in names(why(steps, Job(transfer=0)))
    steps = [[Work(loads=35 if n == 0 else 0)] for n in range(12)]
    assert [f.claim for f in why(steps, Job(transfer=0)).findings]


@pytest.mark.parametrize(
    ("per_step", "long", "names", "said"),
    [
        (8, 0, (3, 2, 3), None),
        (12, 0, (3, 4, 5), None),
        (16, 0, (4, 5, 7), "in the short pauses between operators."),
        (8, 4, (3, 2, 3), "while the CPU runs other code"),
        (8, 0, (4, 4), "while the CPU runs other code"),
    ],
    ids=["a little of each", "more of each", "much of each", "in one pause", "under one name"],
)
def test_what_operators_cost_around_them_is_no_work_of_the_job_s(
    per_step: int, long: int, names: tuple[int, ...], said: str | None
) -> None:
    """Two steps of 100 ms on a CPU; `long` and `names` are of one step, ms."""
    ledger = pl.DataFrame(
        [
            {"rank": 0, "step": step, "start": 100 * MS * step, "account": account, "ns": ms * MS}
            for step in range(2)
            for account, ms in (("compute", 100 - per_step), ("idle.other_host_work", per_step))
        ]
    )
    told = [
        {"rank": 0, "account": "idle.other_host_work", "name": f"part {n}", "ns": 2 * ms * MS}
        for n, ms in enumerate(names)
    ]
    page = PageFindings(
        Given({}, ledger, pl.DataFrame(told, schema=NAMES), on_host=True, in_long_pauses=2 * long * MS)
    )
    claim = f"Nothing computes for {per_step}.00 ms per step while the CPU runs other code."
    page.put(
        Finding(
            "host-busy-elsewhere", claim, "at most", (), "", per_step * MS, recipe="idle_summary",
            accounts=("idle.other_host_work",), cost_per_step=per_step * MS,
        )
    )  # fmt: skip
    join_host(page)
    assert [said in finding.claim for finding in page.all() if said] == ([True] if said else [])
    assert bool(list(page.all())) is bool(said)


def test_a_pause_at_the_end_of_one_ranks_step_is_one_finding_with_the_others_waiting(tmp_path: Path) -> None:
    """Rank 0 saves for 300 ms at the end of its step 5, so the others wait as long in step 6."""
    job = Job()
    tables = job.run([[Work(saves=300 if n == 6 and r == 0 else 0) for r in range(3)] for n in range(20)])
    saved = next(row["end"] for row in tables["ranges"])
    for row in tables["steps"]:
        row["left_out"] = "outlier" if row["step"] in (5, 6) else None
        if row["rank"] == 0:
            row["end"] = saved if row["step"] == 5 else row["end"]
            row["start"] = saved if row["step"] == 6 else row["start"]
    page = lostflops.why(made(tmp_path, tables))
    told = [f for f in page.findings if f.name == "outlier-step"]
    assert [f.claim[:13] for f in told] == ["Step 5 took 3"]
    assert "checkpoints" in told[0].claim
    assert any("step 6 is 300 ms longer elsewhere" in fact for fact in told[0].evidence)


@pytest.mark.parametrize(
    "name", ["data", "Data", "load data", "next_batch", "train/data", "fetch inputs", "data_time"]
)
def test_a_phase_called_data_is_data_loading(tmp_path: Path, name: str) -> None:
    tables = Job(transfer=0).run([[Work(python=30)] for _ in range(STEPS)])
    tables["ranges"] = [{**row, "name": name} for row in tables.pop("frames")]
    assert first(lostflops.why(made(tmp_path, tables))).name == "data-loading-starves-device"


@pytest.mark.parametrize("name", ["database", "input_norm", "batch_norm", "data parallel"])
def test_a_phase_that_only_has_the_word_in_it_is_not(tmp_path: Path, name: str) -> None:
    tables = Job(transfer=0).run([[Work(python=30)] for _ in range(STEPS)])
    tables["ranges"] = [{**row, "name": name} for row in tables.pop("frames")]
    assert first(lostflops.why(made(tmp_path, tables))).name != "data-loading-starves-device"


def test_a_pause_that_comes_once_says_in_which_step(why) -> None:
    steps = [[Work(saves=300 if s == 5 else 0, computes=60)] for s in range(10)]
    finding = first(why(steps, Job(transfer=0)))
    assert finding.claim == (
        "The GPU idles 300 ms once in 10 steps, in step 5 (30.0 ms per step, 33.3 %), while the CPU saves a "
        "checkpoint."
    )
    assert finding.cost_per_step == 30 * MS


def test_a_pause_that_comes_back_does_not_say_so(why) -> None:
    steps = [[Work(saves=100 if s % 3 == 2 else 0, computes=60)] for s in range(9)]
    assert "once" not in first(why(steps, Job(transfer=0))).claim


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("preprocess", "Make `preprocess` cheaper"),
        ("/home/me/a.py(3): forward", "Make `forward` (a.py:3) cheaper"),
        ("## backward ##", "record call stacks: `lostflops record --what cuda,shapes,python -- COMMAND`"),
        ("forward#LlamaForCausalLM", "record call stacks"),
        ("DistributedDataParallel.forward", "record call stacks"),
        ("backward_hook_of_mine_2x", "record call stacks"),
        ("stepwise_tokens", "Make `stepwise_tokens` cheaper"),
    ],
)
def test_a_range_around_a_phase_is_to_be_looked_into_and_not_to_be_made_cheaper(
    tmp_path: Path, name: str, advice: str
) -> None:
    tables = Job(transfer=0).run([[Work(python=30)] for _ in range(STEPS)])
    if ".py(" in name:
        tables["frames"] = [{**row, "name": name} for row in tables["frames"]]
    else:
        tables["ranges"] = [{**row, "name": name} for row in tables.pop("frames")]
    found = next(f for f in lostflops.why(made(tmp_path, tables)).findings if f.name == "host-busy-elsewhere")
    assert advice in found.next


@pytest.mark.parametrize("on_host", [True, False])
def test_an_operator_of_the_jobs_own_is_nothing_to_report_on_a_cpu(on_host: bool) -> None:
    unknown = Finding(
        "kernels-unclassified", "2.7 % of kernel time …", "unknown", (), "", recipe="kernel_families"
    )
    ledger = pl.DataFrame({"rank": [0], "step": [0], "start": [0], "account": ["compute"], "ns": [10]})
    answer = Answer(named("kernel_families"), pl.DataFrame(), (unknown,))
    page = Given({"kernel_families": answer}, ledger, on_host=on_host)
    assert [f.name for f in findings(page)] == ([] if on_host else ["kernels-unclassified"])


@pytest.mark.parametrize(("waits", "told"), [(24, True), (12, False)])
def test_a_late_rank_that_lacks_a_core_is_told_so(tmp_path: Path, waits: int, told: bool) -> None:
    """Rank 1 computes 20 ms longer; what its thread waits for a core beyond rank 0 is 21 or 9 of them."""
    tables = Job().run(late(computes=60))
    tables["ranks"] = [{**rank, "device_kind": "cpu"} for rank in tables["ranks"]]
    tables["step_log"] = [
        {"rank": rank, "step": step, "duration": 60 * MS, "core_wait": wait * MS, "recorded": True}
        for step in range(STEPS)
        for rank, wait in enumerate((3, waits))
    ]
    page = lostflops.why(made(tmp_path, tables))
    finding = next(f for f in page.findings if f.name == "rank-arrives-last")
    fact = f"its thread waits {waits - 3}.0 ms per step longer for a processor core than the others"
    assert (fact in finding.evidence) == told, finding.evidence


def test_an_operator_on_a_tensor_of_the_cpu_is_no_slow_launching(tmp_path: Path) -> None:
    tables = Job(transfer=0).run([[Work(python=30)] for _ in range(4)])
    tables["operators"] = [{**row, "name": "aten::sort"} for row in tables.pop("frames")]
    page = lostflops.why(made(tmp_path, tables))
    (found,) = page.findings
    assert found.claim == (
        "The GPU idles 30.0 ms per step (42.9 %) while the CPU runs operators on tensors of its own: "
        "`aten::sort` (30.0 ms)."
    )
    assert found.next.startswith("Move the tensors of `aten::sort` to the GPU")
    assert page.verdict.startswith("Host-bound")
