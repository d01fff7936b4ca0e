"""The sentence at the top of the page, and that it names no cause but the first finding's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import lostflops
from lostflops.accounts import ACCOUNTS
from lostflops.causes import ABOUT_THE_RECORDING, OF_THE_RECORDING, verdicts
from lostflops.finding import Finding
from lostflops.report.first_page.budget import Budget, budget
from lostflops.report.first_page.page import LEDGER
from lostflops.report.first_page.verdict import BOUND_PER_MILLE, NAMES, verdict

TRACES = Path(__file__).parents[3] / "shared" / "traces"
FP32 = "fp32-without-tensor-cores"


def spent(**parts: int) -> Budget:
    """One step whose accounts hold these times, ns."""
    total = sum(parts.values())
    rows = [
        {"rank": 0, "step": 0, "start": 0, "end": total, "account": a.replace("__", "."), "ns": ns}
        for a, ns in parts.items()
    ]
    found = budget(pl.DataFrame(rows, schema=LEDGER))
    assert found is not None
    return found


def about(*accounts: str, cost: int, rank: int | None = None, name: str = "a-cause") -> Finding:
    return Finding(name, "", "at most", (), "", cost_per_step=cost, accounts=accounts, rank=rank)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (
            {
                "compute": 569,
                "communication__wait": 240,
                "communication__transfer": 71,
                "idle__unexplained": 120,
            },
            "Waiting for late ranks: 31.1 % of the 1.00 µs step is exposed communication.",
        ),
        (
            {"compute": 600, "idle__data_loading": 300, "idle__dependency": 60, "idle__launch_bound": 40},
            "Partly idle: the GPU is idle for 40.0 % of the 1.00 µs step.",
        ),
        (
            {"compute": 30, "copy": 970},
            "Copy-bound: 97.0 % of the 1.00 µs step is copies that nothing hides.",
        ),
        (
            {"compute": 960, "communication__exposed": 33, "idle__unexplained": 7},
            (
                "Compute-bound: kernels run for 96.0 % of the 1.00 µs step; "
                "the largest loss is exposed communication, 3.3 %."
            ),
        ),
        ({"compute": 1000}, "Compute-bound: kernels run for 100.0 % of the 1.00 µs step."),
        (
            {"compute": 640, "communication__wait": 159, "communication__transfer": 201},
            "Communication-bound: 36.0 % of the 1.00 µs step is exposed communication.",
        ),
    ],
)
def test_without_a_finding_the_verdict_tells_what_is_lost(parts: dict[str, int], said: str) -> None:
    assert verdict(spent(**parts)) == said


def test_a_late_rank_is_named_with_what_makes_it_late() -> None:
    found = spent(compute=300, communication__wait=400, idle__data_loading=250, copy=50)
    late = about("idle.data_loading", "communication.wait", cost=450, rank=7)
    assert verdict(found, first=late) == (
        "Waiting for rank 7: its data loader makes it 450 ns late in the 1.00 µs step (45.0 %)."
    )
    # It meets some of the ranks only, or is late in one step of many.
    is_late = (
        "is 900 ns late per step (81.0 %)",
        "is 900 ns late once, in step 2",
        "makes a step 450 ns longer",
    )
    for so in is_late:
        of_some = replace(late, claim=f"Rank 7 {so}.")
        assert verdict(found, first=of_some) == (
            "Waiting for rank 7: its data loader costs 450 ns of the 1.00 µs step (45.0 %)."
        )
    starved = about("idle.data_loading", "communication.wait", cost=650)
    assert verdict(found, first=starved) == "Input-bound: the GPU is idle for 25.0 % of the 1.00 µs step."


@pytest.mark.parametrize(
    ("parts", "first", "said"),
    [
        (
            {"compute": 650, "idle__data_loading": 220, "idle__launch_bound": 130},
            about("compute", cost=430, name=FP32),
            "Bound by fp32 compute: 43.0 % of the 1.00 µs step is matrix work in fp32 without tensor cores.",
        ),
        (
            {"compute": 950, "idle__data_loading": 50},
            about("compute", cost=110, name=FP32),
            (
                "Compute-bound: kernels run for 95.0 % of the 1.00 µs step; "
                "the largest cause is matrix work in fp32 without tensor cores, 11.0 %."
            ),
        ),
        # What costs too little to name the step is told as the largest cause, and no other is named.
        (
            {"compute": 300, "communication__wait": 400, "idle__data_loading": 250, "copy": 50},
            about("copy", cost=50),
            (
                "Communication-bound: 40.0 % of the 1.00 µs step is exposed communication; "
                "the largest cause is exposed copies, 5.0 %."
            ),
        ),
        # Idle time of many causes leads, where a single cause is a small part of what is lost.
        (
            {"compute": 40, "idle__other_host_work": 340, "idle__unexplained": 460, "copy": 160},
            about("copy", cost=160),
            (
                "Mostly idle: the GPU is idle for 80.0 % of the 1.00 µs step; "
                "the largest cause is exposed copies, 16.0 %."
            ),
        ),
        # A finding about the recording names nothing, and neither does an account without a finding.
        (
            {"compute": 800, "idle__other_host_work": 200},
            about(cost=0, name="few-whole-steps"),
            "Partly idle: the GPU is idle for 20.0 % of the 1.00 µs step.",
        ),
        (
            {"compute": 500, "communication__wait": 400, "communication__transfer": 100},
            about("communication.wait", cost=400, rank=2, name="pipeline-bubble"),
            "Bubble-bound: 40.0 % of the 1.00 µs step is waiting between pipeline stages.",
        ),
        (
            {"compute": 930, "communication__wait": 70},
            about("idle.data_loading", "communication.wait", cost=60, rank=2),
            (
                "Compute-bound: kernels run for 93.0 % of the 1.00 µs step; "
                "the largest cause is waiting for rank 2, 6.0 %."
            ),
        ),
    ],
)
def test_no_cause_is_in_the_verdict_but_that_of_the_first_finding(
    parts: dict[str, int], first: Finding, said: str
) -> None:
    assert verdict(spent(**parts), first=first) == said


def named(said: str) -> set[str]:
    """The accounts, or findings, after which a verdict calls the job: not those of a whole group."""
    causes = {of: name for of, name in NAMES.items() if "." in of}
    causes |= {of: own.job for of, own in verdicts().items() if own.job not in causes.values()}
    head = said.partition(":")[0]
    groups = {"Communication-bound", "Copy-bound", "Compute-bound"}
    return {of for of, name in causes.items() if name == head and head not in groups}


@pytest.mark.parametrize("cost", [50, 160, 300, 900])
def test_a_first_finding_of_any_size_is_the_only_cause_in_the_verdict(cost: int) -> None:
    mixed = spent(
        compute=300, copy=100, communication__transfer=300, idle__launch_bound=200, idle__dependency=100
    )
    for account in ACCOUNTS:
        said = verdict(mixed, first=about(account, cost=cost))
        assert named(said) <= {account} and not said.startswith(":")
    for finding in verdicts():
        said = verdict(mixed, first=about("compute", cost=cost, name=finding))
        assert named(said) <= {finding, "idle.pipeline_bubble"}  # one name, as it is one cause


def test_without_the_device_the_verdict_only_tells_of_the_host() -> None:
    found = spent(compute=989, idle__unexplained=11)
    assert verdict(found, on_host=True, unseen="nothing of the GPU was recorded") == (
        "What bounds this job is not in the recording: nothing of the GPU was recorded. On the CPU, "
        "operators compute for 98.9 % of the 1.00 µs step."
    )


REAL = (
    "kineto_tb/resnet50_num_workers_0__worker0.1623143566756.pt",
    "kineto_tb/resnet50_num_workers_4__worker0.1623212756351.pt",
    "hta/trace_filter__sampled_rank-0",
    "hta/rank_unavailable__rank_not_found",
    "param_dlrm8/worker0_step_12.1694128201545.pt",
    "param_dlrm8/worker2_step_12.1694128201554.pt",
    "tracelens/h100__Qwen_Qwen1.5-0.5B-Chat__1016005",
    "tracelens/mi300__resnet_act_checkpoint",
    "gen_torch213_cpu/ddp_rank0.pt",
    "deepseek/train",
)


@pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not here")
@pytest.mark.parametrize("name", REAL)
def test_on_a_real_trace_the_verdict_and_the_first_finding_name_one_cause(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path))
    (path,) = TRACES.glob(f"kineto/{name}*.json.gz")
    page = lostflops.why(path)
    causes = [
        finding
        for finding in page.findings
        if finding.recipe not in OF_THE_RECORDING and finding.name not in ABOUT_THE_RECORDING and finding.size
    ]
    if not causes:
        assert not named(page.verdict)
        return
    first = causes[0]
    assert named(page.verdict) <= {first.name, *first.accounts}
    assert page.budget is not None
    if 1000 * first.size >= BOUND_PER_MILLE * page.budget.mean:
        own = verdicts().get(first.name)
        called = own.job if own else NAMES.get(first.accounts[0])
        group = NAMES.get(first.accounts[0].partition(".")[0])
        head = page.verdict.partition(":")[0]
        assert head in (called, group) or "; the largest cause is " in page.verdict


def test_a_pause_outside_the_recorded_steps_is_no_share_of_them() -> None:
    pause = about(cost=1400, name="pause-not-recorded")
    assert verdict(spent(compute=1000), first=pause) == (
        "Held up outside the recorded steps: pauses that the recorded steps lack add 1.40 µs per step to the "
        "1.00 µs step."
    )


def test_a_schedule_that_is_most_of_what_is_exposed_is_not_called_late_ranks() -> None:
    found = spent(compute=836, communication__wait=145, communication__transfer=19)
    waits = replace(about("communication.wait", cost=145), name="pipeline-bubble")
    assert verdict(found, first=waits) == (
        "Bubble-bound: 14.5 % of the 1.00 µs step is waiting between pipeline stages."
    )
    # Where messages have lost their other ends, it may be transfer as well.
    found = spent(compute=836, communication__exposed=164)
    waits = replace(about("communication.exposed", cost=164), name="pipeline-bubble")
    assert verdict(found, first=waits) == (
        "Bubble-bound: 16.4 % of the 1.00 µs step is waiting or transfer between pipeline stages."
    )


def test_a_pause_that_others_wait_for_is_not_said_to_make_its_rank_late() -> None:
    """Another rank may be nearly as late: what the pause alone costs is not known."""
    found = spent(compute=500, communication__wait=250, idle__data_loading=250)
    paused = replace(
        about("idle.data_loading", "communication.wait", cost=450, rank=7), recipe="idle_summary"
    )
    assert "late" not in verdict(found, first=paused)


def test_what_is_lost_is_not_said_to_be_its_own_cause() -> None:
    """Part of it waits, and no part is most of it."""
    found = spent(compute=820, communication__wait=70, communication__transfer=50, communication__exposed=60)
    moved = about("communication.transfer", "communication.exposed", cost=110)
    assert verdict(found, first=moved) == (
        "Communication-bound: 18.0 % of the 1.00 µs step is exposed communication."
    )


def test_graphs_that_list_no_kernels_are_not_said_to_compute() -> None:
    """They may hold all communication, and the waiting in it."""
    unknown = "of kernel time is in CUDA graphs that list no kernels."
    busy, lossy = spent(compute=970, idle__launch_bound=30), spent(compute=600, idle__launch_bound=400)
    assert verdict(busy, in_graphs=0.98) == f"What bounds this job is not in the recording: 98.0 % {unknown}"
    some = verdict(busy, in_graphs=0.2)
    assert some == f"Mostly compute: kernels run for 97.0 % of the 1.00 µs step; 20.0 % {unknown}"
    assert verdict(busy, in_graphs=0.02) == verdict(busy)
    assert verdict(lossy, in_graphs=0.98) == verdict(lossy), "a loss that is known leads"
