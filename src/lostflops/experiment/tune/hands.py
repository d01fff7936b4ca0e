"""What the loop does to the world: start the command, read a recording, run a proof. Tests have others."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from lostflops import causes, run_folder
from lostflops.capture.record import outcome
from lostflops.capture.record.recording import DEFAULT_WHAT, StepOn
from lostflops.errors import LostflopsError, shown
from lostflops.experiment.proof import starts
from lostflops.experiment.proof.proven import Proven
from lostflops.experiment.proof.running import command, loop
from lostflops.experiment.proof.running.command import Ended
from lostflops.experiment.proof.running.folder import ProofFolder
from lostflops.finding import Finding
from lostflops.ingest import job
from lostflops.remedies import REMEDIES
from lostflops.report.first_page.page import Page, page
from lostflops.report.remedy import RemedyForJob
from lostflops.session import Session, Skipped
from lostflops.store.trace import Trace

from . import reasons
from .candidates import SeenRun
from .changes import CHANGES, JobFacts

IN_FULL = ((10, 19),)
WITH_STACKS = ((10, 14),)  # their files are large
LOADING = "idle.data_loading"
UNSEEN = (
    "No step of the job was recorded in full, so nothing is known of where its time goes.",
    f"let it make more than {IN_FULL[0][1] + 2} steps, with PyTorch in the process that makes them.",
)


class CannotTune(LostflopsError):
    """A job that cannot be recorded, so that nothing is known of it."""


@dataclass(frozen=True)
class Hands:
    """Start with steps recorded in full, with call stacks too, for some steps; read a recording; prove."""

    record: Callable[[str, Path, StepOn | None, int, float], Ended]
    record_stacks: Callable[[str, Path, StepOn | None, int, float], Ended]
    try_out: Callable[[str, Path, StepOn | None, int, float], Ended]
    look: Callable[[Path, tuple[str, ...]], SeenRun]
    prove: Callable[[ProofFolder, Callable[[str], None], float], Proven]


def record(line: str, run: Path, step_on: StepOn | None, steps: int, until: float) -> Ended:
    """Raises CannotTune where the command ran, and no step of it was seen."""
    ended = command.run(line, run, step_on, steps, in_full=IN_FULL, until=until)
    if not ended.failed:
        try:
            starts.read(run)
        except starts.NoStepLog as error:
            why = command.without_steps(ended, step_on)
            raise CannotTune("No step of the command was seen.", f"{why}.") from error
    return ended


def record_stacks(line: str, run: Path, step_on: StepOn | None, steps: int, until: float) -> Ended:
    return command.run(
        line, run, step_on, steps, in_full=WITH_STACKS, what=(*DEFAULT_WHAT, "python"), until=until
    )


def try_out(line: str, run: Path, step_on: StepOn | None, steps: int, until: float) -> Ended:
    return command.run(line, run, step_on, steps, until=until)


def prove(folder: ProofFolder, say: Callable[[str], None], until: float) -> Proven:
    # Both sides have been started before.
    return loop.run(folder, say, rehearse=False, until=until)


def look(run: Path, words: tuple[str, ...]) -> SeenRun:
    """The first page of a recording, as the loop needs it."""
    if not list(run.glob(f"{run_folder.NODES}/[!.]*.pt.trace.json*")):
        raise _unseen(run)
    trace = job.open(run)
    session = Session(trace)
    with trace.reading():
        found = page(trace, session)
        if found.budget is None:
            raise _unseen(run)
        facts = _facts(found, run, words, session)
        findings = [one for one in found.findings if one.name not in causes.CHOSEN]
        beside = [*reasons.reasons(found, trace, session)]
        typed = _typed((*findings, *beside), trace)
        predicted = session.predicted(_edits((*findings, *beside), facts))
    step = round(found.budget.mean)
    return SeenRun(findings, step, found.verdict, facts, typed, predicted, beside)


def _unseen(run: Path) -> CannotTune:
    """Why nothing was recorded in full, as the first rank that lost it says."""
    for log in map(outcome.read_log, sorted(run.glob(run_folder.STEP_LOGS_OF_RUN))):
        for window in log.windows:
            if not window.get("file"):
                hint = outcome.WHAT_TO_DO.get(str(window.get("code")), "").removeprefix("Hint: ")
                why = shown(str(window.get("reason")))
                return CannotTune(
                    f"The steps to look at were not recorded: {why}.", f"{hint}." if hint else ""
                )
    return CannotTune(*UNSEEN)


def _edits(findings: Sequence[Finding], facts: JobFacts) -> list[str]:
    """What to replay for the changes that are told, with the numbers that a first one has."""
    names = dict.fromkeys(name for finding in findings for name in finding.remedies or ())
    changes = [CHANGES[name] for name in names if name in CHANGES and CHANGES[name].edit]
    options = [(change, change.options(facts, {})) for change in changes]
    made = [change.edit.format(**chosen) for change, chosen in options if chosen is not None]
    # What only the user can change is told with what it gains.
    theirs = [REMEDIES[name].edit for name in names if name not in CHANGES and REMEDIES[name].edit]
    return [*dict.fromkeys((*made, *theirs))]


def _typed(findings: Sequence[Finding], trace: Trace) -> dict[str, str]:
    names = dict.fromkeys(name for finding in findings for name in finding.remedies or ())
    told: dict[str, str] = {}
    for name in names:
        asked = RemedyForJob.asked(name, trace=trace)
        lines = [snippet.text for _, change in asked.changes for snippet in change.snippets]
        instead = [change.instead for _, change in asked.changes if change.instead]
        told[name] = "\n".join(lines or instead)
    return told


def _facts(found: Page, run: Path, words: tuple[str, ...], session: Session) -> JobFacts:
    assert found.budget is not None
    start = starts.read(run)
    passes = np.concatenate([rank.micro_steps for rank in start.ranks])
    loading = found.budget.of(LOADING)
    rest = found.budget.ns - loading
    return JobFacts(
        cores=len(os.sched_getaffinity(0)),
        ranks=len(start.ranks),
        passes=int(passes[0]) if len(passes) and (passes == passes[0]).all() else 0,
        loading=loading / rest if rest > 0 else float(found.budget.num_windows),
        words=words,
        **_sent(session),
    )


def _sent(session: Session) -> dict[str, int]:
    """Bytes that a rank sends in all-reduces per step, and those of the largest."""
    answer = session.run("communication-summary")
    if isinstance(answer, Skipped):
        return {}
    rows = answer.table.filter(pl.col("kind").cast(pl.String) == "all-reduce", pl.col("bytes") > 0)
    sent = (rows["bytes"] * rows["calls_per_step"]).sum()
    largest = rows["bytes"].max()
    return {"sent": round(sent), "largest": int(largest)} if isinstance(largest, int) else {}


HANDS = Hands(record, record_stacks, try_out, look, prove)
