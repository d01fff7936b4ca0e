"""The terminal, JSON, HTML, recipes and `whatif` say one thing about one run, to the nanosecond."""

from __future__ import annotations

import html as entities
import json
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from lostflops.ingest import job as ingest
from lostflops.lab.simulate import SimulatedJob, simulate
from lostflops.lab.simulate.faults import with_fault
from lostflops.lab.simulate.strategy import strategy
from lostflops.report.document import document
from lostflops.report.first_page.page import Page, page
from lostflops.report.html import html
from lostflops.report.notebook import text
from lostflops.report.predicted.whatif import WhatIf
from lostflops.report.terminal import gain, headline
from lostflops.session import Answer, Session

RUNS = Path(__file__).parents[2] / "examples" / "runs"


def simulated(text: str, ranks: int, fault: str = "") -> Callable[[], Path]:
    def written() -> Path:
        folder = Path(mkdtemp())
        job = SimulatedJob(strategy(text, ranks), steps=3, warmup=1)
        faulty = with_fault(job, fault) if fault else None
        simulate(job, folder, fault=faulty)
        return folder

    return written


JOBS: dict[str, Callable[[], Path]] = {
    **{name: (lambda name=name: RUNS / name) for name in ("ddp", "fsdp2", "lora-workers-0")},
    "slow rank": simulated("ddp", 4, "slow-rank"),
    "slow link": simulated("fsdp2", 4, "slow-link"),
    "starved": simulated("zero3", 4, "data-starvation"),
    "pipeline": simulated("pp4-m8", 4),
    "synchronised": simulated("tp2-dp2", 4, "host-sync"),
}


@dataclass(frozen=True)
class Told:
    page: Page
    session: Session
    json: dict[str, Any]
    terminal: str
    html: str


@cache
def told(name: str) -> Told:
    trace = ingest.open(JOBS[name]())
    session = Session(trace)
    with trace.reading():
        found = page(trace, session)
    return Told(
        found,
        session,
        json.loads(document(found)),
        # One line a paragraph, so that a sentence can be looked for.
        " ".join(text(found).split()),
        " ".join(entities.unescape(re.sub(r"<[^>]+>", " ", html(found))).split()),
    )


def counted(job: Told) -> dict[tuple[int, int], int]:
    """Length of the steps that count, ns, as the JSON document has them."""
    return {
        (row["rank"], row["step"]): row["end"] - row["start"] for row in job.json["steps"] if row["counts"]
    }


@pytest.mark.parametrize("name", JOBS)
def test_the_step_and_its_accounts_are_the_same_everywhere(name: str) -> None:
    job = told(name)
    spent = job.page.budget
    assert spent is not None
    steps = counted(job)
    assert len(steps) == spent.num_windows and sum(steps.values()) == spent.ns
    accounts: dict[str, int] = defaultdict(int)
    for row in job.json["ledger"]:
        if (row["rank"], row["step"]) in steps:
            accounts[row["account"]] += row["ns"]
    leaves = {line.account: line.ns for line in spent.lines if line.depth or not spent.parts(line.account)}
    assert accounts == leaves
    assert job.json["mean_step"] == {
        "steps": spent.num_windows,
        "ns": round(spent.mean),
        "sum_ns": spent.ns,
        "sum_ns_by_account": leaves,
    }
    answer = job.session.run("step_ledger")
    assert isinstance(answer, Answer)
    asked = answer.table
    assert asked.select("rank", "step", "account", "ns").to_dicts() == job.json["ledger"]
    for line in spent.visible:
        amount = f"{line.label} {line.shown} {spent.unit.name}"
        assert amount in job.terminal and f"{line.shown} {spent.unit.name} {line.share}" in job.html, line
    assert f"step {spent.shown} {spent.unit.name} 100.0 %" in job.terminal


@pytest.mark.parametrize("name", JOBS)
def test_findings_are_the_same_everywhere(name: str) -> None:
    job = told(name)
    assert job.json["verdict"] == job.page.verdict
    assert job.page.verdict in job.html and job.page.verdict in job.terminal
    for note in job.page.notes:
        assert note in job.json["notes"] and note.replace("`", "") in job.html.replace("`", "")
    for finding, written in zip(job.page.findings, job.json["findings"], strict=True):
        assert written["cost_per_step"] == finding.size
        assert (written["ns_per_step"], written["gain"]) == (finding.ns_per_step, finding.gain)
        claimed = headline(finding)
        saved = gain(finding, job.page.budget)
        assert " ".join(claimed.split()) in job.html.replace("  ", " ")
        assert saved in job.html
        if finding in job.page.findings[:5]:
            assert claimed in job.terminal and saved in job.terminal


@pytest.mark.parametrize("name", JOBS)
def test_what_a_page_predicts_is_what_whatif_answers(name: str) -> None:
    job = told(name)
    assert job.page.budget is not None
    for finding in job.page.findings:
        known = finding.predicted
        if known is None or known.refused:
            continue
        answer = WhatIf.asked(job.session, [finding.edit]).to_json()
        assert answer["replay"]["measured_ns"] == round(job.page.budget.mean)
        (asked,) = answer["edits"]
        assert known.ns == answer["replay"]["measured_ns"] - asked["predicted_ns"]
        assert known.low_ns == answer["replay"]["measured_ns"] - asked["high_ns"]
        assert known.error == answer["replay"]["error"]
