"""First pages of exports whose times or texts are odd: what cannot be told from them is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kineto_files as kineto
import lostflops
from nsys_exports import call, copy, kernel, push, sqlite

MS, US = 1_000_000, 1000
HOUR = 3_600_000 * MS
STEPS = 6


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "store"))


def tables(pause: int = 0, named: str = "step {}") -> dict[str, list[dict[str, Any]]]:
    """Six steps of 10 ms, each with a kernel of 4 ms and one of 2 ms, and a pause after the third."""
    rows: dict[str, list[dict[str, Any]]] = {
        "CUPTI_ACTIVITY_KIND_KERNEL": [], "CUPTI_ACTIVITY_KIND_RUNTIME": [], "NVTX_EVENTS": []
    }  # fmt: skip
    for n in range(STEPS):
        at = n * 10 * MS + (pause if n >= 3 else 0)
        rows["NVTX_EVENTS"].append(push(at, at + 10 * MS, named.format(n)))
        for k, begins, length in ((1, 1, 4), (2, 6, 2)):
            launched = at + begins * MS - 20 * US
            rows["CUPTI_ACTIVITY_KIND_RUNTIME"].append(
                call(launched, launched + 9 * US, correlationId=2 * n + k)
            )
            rows["CUPTI_ACTIVITY_KIND_KERNEL"].append(
                kernel(at + begins * MS, at + (begins + length) * MS, correlationId=2 * n + k)
            )
    return rows


def test_a_pause_between_steps_is_told(tmp_path: Path) -> None:
    page = lostflops.why(sqlite(tmp_path / "job.sqlite", tables(pause=40 * MS)))
    told = [note for note in page.notes if "in no account" in note]
    assert told == ["No GPU work is recorded for 40.0 ms between steps 2 and 3: that time is in no account."]


def test_a_kernel_of_three_hours_takes_no_steps_away(tmp_path: Path) -> None:
    """Its step was left out, as if the recording ended in it, and those after it vanished."""
    rows = tables()
    rows["CUPTI_ACTIVITY_KIND_KERNEL"][4]["end"] = 3 * HOUR  # the first of step 2
    run = lostflops.open(sqlite(tmp_path / "job.sqlite", rows))
    steps, kernels = run.table("steps"), run.table("kernels")
    assert steps is not None and kernels is not None
    assert steps.collect()["step"].to_list() == [*range(STEPS)]
    assert steps.collect()["left_out"].null_count() == STEPS
    assert kernels.collect()["end"].to_list()[4] == 26 * MS  # where the next one begins
    (fact,) = [fact for fact in run.manifest.quality if fact.name == "kernels that outlast later ones"]
    assert "is recorded as running for 10,800.0 s, over later work" in fact.text and "gemm" in fact.text


def test_kernels_of_less_than_a_minute_and_several_take_no_steps_away(tmp_path: Path) -> None:
    """One of less than a minute was believed, and of several all but the longest."""
    for case, longer in enumerate([{4: 50_000}, {4: 70_000, 8: 90_000}, {2: 300}]):
        rows = tables()
        for at, ms in longer.items():
            rows["CUPTI_ACTIVITY_KIND_KERNEL"][at]["end"] += ms * MS
        run = lostflops.open(sqlite(tmp_path / f"{case}.sqlite", rows))
        steps, kernels = run.table("steps"), run.table("kernels")
        assert steps is not None and kernels is not None
        assert steps.collect().select("left_out").null_count().item() == STEPS
        ends = kernels.collect()["end"].to_list()
        assert [ends[at] for at in longer] == [(at // 2 * 10 + 6) * MS for at in longer]
    rows = tables() | {"CUPTI_ACTIVITY_KIND_MEMCPY": [copy(25 * MS, 50_000 * MS)]}
    steps = lostflops.open(sqlite(tmp_path / "copy.sqlite", rows)).table("steps")
    assert steps is not None and steps.collect().select("left_out").null_count().item() == STEPS


def test_nodes_of_a_graph_run_beside_each_other_however_long(tmp_path: Path) -> None:
    rows = tables()
    rows["CUPTI_ACTIVITY_KIND_KERNEL"][4].update(end=900 * MS, graphNodeId=3)
    kernels = lostflops.open(sqlite(tmp_path / "job.sqlite", rows)).table("kernels")
    assert kernels is not None and kernels.collect()["end"].to_list()[4] == 900 * MS


@pytest.mark.parametrize("away", [HOUR, -HOUR])
def test_kernels_that_ran_an_hour_from_their_launch_are_lost_work(tmp_path: Path, away: int) -> None:
    """Step 0 was said to take an hour, and the steps to be idle meanwhile."""
    rows = tables()
    for row in rows["CUPTI_ACTIVITY_KIND_KERNEL"][1::4]:
        row["start"], row["end"] = row["start"] + away, row["end"] + away
    page = lostflops.why(sqlite(tmp_path / "job.sqlite", rows))
    assert page.verdict == "Incompletely recorded: the GPU seems idle for 50.0 % of the 10.0 ms step."
    assert page.notes[0].startswith("3 of 12 kernel launches in the steps (25.0 %) have no kernel")
    (fact,) = [fact for fact in page.quality if fact.name == "kernels out of their stream's order"]
    assert (fact.count, fact.of) == (3, 12)


def test_work_that_ends_before_it_begins_puts_idle_time_in_doubt(tmp_path: Path) -> None:
    rows = tables()
    for row in rows["CUPTI_ACTIVITY_KIND_KERNEL"][::4]:
        row["end"] = row["start"] - 1000
    page = lostflops.why(sqlite(tmp_path / "job.sqlite", rows))
    assert page.verdict.startswith("Incompletely recorded: the GPU seems idle for ")  # not "is"
    assert any(
        note.startswith("3 of 12 rows of GPU work (25.0 %) end before they begin: how long they ran is not")
        for note in page.notes
    )
    idle = [finding for finding in page.findings if finding.name == "idle-unexplained"]
    assert idle and all("ends before it begins" in (finding.doubt or "") for finding in idle)


def test_kernels_of_no_duration_put_idle_time_in_doubt(tmp_path: Path) -> None:
    rows = tables()
    for row in rows["CUPTI_ACTIVITY_KIND_KERNEL"][::4]:
        row["end"] = row["start"]
    page = lostflops.why(sqlite(tmp_path / "job.sqlite", rows))
    assert page.verdict.startswith("Incompletely recorded: the GPU seems idle for ")
    assert page.notes[0].startswith("3 of 12 kernels (25.0 %) end as they begin: how long they ran is not")
    assert all("ends as it begins" in (finding.doubt or "") for finding in page.findings)


def test_kernels_of_no_duration_in_a_profile_of_nanoseconds_are_told(tmp_path: Path) -> None:
    """Older profiles count whole microseconds, and short kernels take none of those."""
    for fraction, told in ((0.5, 2), (0, 0)):
        events = [event for n in range(4) for event in kineto.one_step(1000 * n)]
        for n, event in enumerate(event for event in events if event["cat"] == "kernel"):
            event.update(ts=int(event["ts"]) + fraction, dur=0 if n < 2 else 40)
        path = kineto.written(tmp_path / f"{told}.json", kineto.trace(events))
        facts = [f for f in lostflops.open(path).manifest.quality if f.name == "kernels without a duration"]
        assert [(fact.count, fact.of) for fact in facts] == ([(2, 4)] if told else [])


def test_texts_that_are_kept_as_bytes_are_read(tmp_path: Path) -> None:
    """Both are NVTX's forms: the text itself, and a registered string."""
    rows = tables()
    for n, mark in enumerate(rows["NVTX_EVENTS"]):
        if n % 2:
            mark.update(text=None, textId=100 + n)
        else:
            mark["text"] = mark["text"].encode()
    rows["StringIds"] = [{"id": 100 + n, "value": f"step {n}".encode()} for n in range(STEPS)]
    steps = lostflops.open(sqlite(tmp_path / "job.sqlite", rows)).table("steps")
    assert steps is not None
    assert steps.collect()["source"].cast(str).unique().to_list() == ["range"]
    assert steps.collect()["step"].to_list() == [*range(STEPS)]


def test_a_range_that_is_the_step_says_nothing_of_its_idle_time(tmp_path: Path) -> None:
    rows = tables(named="step")
    page = lostflops.why(sqlite(tmp_path / "job.sqlite", rows))
    assert page.findings and "`step`" not in str(page)
