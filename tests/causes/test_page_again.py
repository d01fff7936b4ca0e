"""A page that is asked again reads what was kept, and says the same."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from lostflops.errors import LostflopsError
from lostflops.report.first_page.page import page
from lostflops.session import Session
from lostflops.store.trace import Trace
from made_runs import Job, Work, made

STEPS = [[Work()] * 2 + [Work(loads=20)]] * 4


def test_a_page_that_is_asked_again_computes_nothing_of_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made(tmp_path, Job().run(STEPS)).path
    first = page(Trace.open(run), Session(Trace.open(run)))
    asked, make = list[str](), Session._made  # pyright: ignore[reportPrivateUsage]

    def counted(self: Session, wanted: object, options: object) -> object:
        asked.append(wanted.name)  # type: ignore[attr-defined]
        return make(self, wanted, options)  # type: ignore[arg-type]

    monkeypatch.setattr(Session, "_made", counted)
    again = page(Trace.open(run), Session(Trace.open(run)))
    assert {"device_runs", "idle_causes", "communication_waited_for"}.isdisjoint(asked)
    assert again.findings == first.findings and again.findings[0].name == "rank-arrives-last"


def test_what_could_not_be_folded_is_not_kept(tmp_path: Path) -> None:
    run = made(tmp_path, Job().run(STEPS)).path

    def fails() -> pl.DataFrame:
        raise LostflopsError("A worker was lost.")

    with pytest.raises(LostflopsError):
        Session(Trace.open(run)).folded("sums", fails)
    told = Session(Trace.open(run)).folded("sums", lambda: pl.DataFrame({"ns": [3]}))
    assert told["ns"].to_list() == [3]
    assert Session(Trace.open(run)).folded("sums", fails)["ns"].to_list() == [3]
