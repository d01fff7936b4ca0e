"""What lacks a table is skipped before anything that it reads is computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from lostflops.ingest import job
from lostflops.recipes import of_the_page
from lostflops.session import Session, Skipped, asking

RUN = Path(__file__).parents[2] / "examples" / "runs" / "lora-workers-4"


def test_a_recipe_that_lacks_a_table_computes_none_of_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(job.open(RUN))
    made: list[str] = []
    answered = asking.answered

    def noted(wanted: asking.Recipe, *more: object) -> object:
        made.append(wanted.name)
        return answered(wanted, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(asking, "answered", noted)
    assert [needed.name for needed in of_the_page()["copies_by_cause"].inputs][-1] == "copies"
    assert not session.trace.has("copies")
    said = session.run("copies_by_cause")
    assert said == Skipped("copies_by_cause", session.trace.absence("copies"))
    assert not made
