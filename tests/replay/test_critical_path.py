"""The critical path: what it is made of, worked out by hand, and that slack is what it says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import lostflops
from kineto_files import call, head, kernel, operator, span, step, trace, written
from lab.test_simulated_truth import a_job
from lostflops import cli
from lostflops.ingest import job as ingest_job
from lostflops.lab.simulate.faults import with_fault
from lostflops.lab.simulate.writing import simulate
from lostflops.replay.critical_path import BY, CriticalPath
from lostflops.replay.edits import edit
from lostflops.replay.whatif import Replay
from lostflops.session import Session


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "store"))


def parts(path: CriticalPath, by: str) -> dict[str | None, tuple[int, int, int | None]]:
    return {row[1]: row[2:] for row in path.of(by).iter_rows()}  # type: ignore[misc]


def two_streams() -> list[dict[str, object]]:
    """A step: 10 µs on the host, 60 on stream 7 and 40 beside it on stream 9, and a wait for both.

    `Linear_1` launches the long one, `Linear_2` the short one.
    """
    events = list[dict[str, object]]()
    for n in range(30):
        at = 1000 + 100 * n
        events += [
            step(n, at, 100),
            span("python_function", "nn.Module: Linear_1", at + 1, 6, **{"Python id": 4 * n + 1}),
            span("python_function", "nn.Module: Linear_2", at + 8, 6, **{"Python id": 4 * n + 2}),
            operator("aten::mm", at + 2, 4),
            call(at + 2, 2, 3 * n + 1),
            kernel(at + 10, 60, 3 * n + 1, "ampere_sgemm_long"),
            operator("aten::add", at + 9, 4),
            call(at + 9, 2, 3 * n + 2),
            kernel(at + 17, 40, 3 * n + 2, "elementwise_kernel", 9),
            call(at + 20, 55, 3 * n + 3, "cudaDeviceSynchronize"),
        ]
    return events


def replayed(place: Path, events: list[dict[str, object]]) -> Replay:
    file = written(place / "rank0.json", trace(events, head(0, 1)))  # type: ignore[arg-type]
    return Session(lostflops.open(file)).replay()


def test_of_two_streams_the_longer_is_critical_and_the_other_has_the_difference(tmp_path: Path) -> None:
    """60 µs of each 100 are the long kernel's. The short one ends 13 µs earlier: its slack."""
    path = replayed(tmp_path, two_streams()).critical_path
    operators, modules = parts(path, "operator"), parts(path, "module")
    n = path.steps
    assert operators["aten::mm"][0] >= n * 60_000
    assert operators["aten::add"][0] == 0
    assert operators["aten::add"][2] == 13_000
    assert modules["Linear_1"][0] >= n * 60_000
    assert modules["Linear_2"][0] == 0 and modules["Linear_2"][1] >= n * 40_000
    accounts = parts(path, "account")
    assert accounts["compute"][:2] == (n * 60_000, n * 100_000)


@pytest.mark.parametrize(
    ("text", "fault"), [("pp2-m4", "garbage-collection"), ("ddp", "slow-rank"), ("tp2-dp2", None)]
)
def test_shares_add_up_and_slack_is_what_may_be_added(text: str, fault: str | None, tmp_path: Path) -> None:
    ranks = 2 if "pp" in text else 4
    job = a_job(text, ranks, layers=2, steps=2)
    planted = with_fault(job, fault) if fault else None
    simulate(planted.job if planted else job, tmp_path / "run", fault=planted)
    found = Session(ingest_job.open(tmp_path / "run")).replay()
    path, recorded, steps = found.critical_path, found.job, found.known.steps
    whole = int(recorded.measured[steps.end].max() - steps.begins(recorded.measured).min())
    for by in BY:
        assert path.of(by)["path"].sum() == path.length
        assert (path.of(by)["path"] <= path.of(by)["time"]).all()
    assert path.length == pytest.approx(whole, rel=1e-3)
    assert path.length <= whole
    # Whatever is off the path: by its slack it may be longer, and by no more.
    lags, end = recorded.lags(), int(recorded.measured[steps.end].max())
    bound = np.full(len(recorded.measured), 3 * end, np.int64)
    bound[steps.end] = end
    latest = recorded.graph.latest(lags, bound)
    slack = latest[recorded.edges.target] - lags - recorded.measured[recorded.edges.source]
    some = np.flatnonzero((slack > 1_000) & (latest[recorded.edges.target] <= end))
    for edge in np.random.default_rng(1).choice(some, 3, replace=False).tolist():
        for more, later in ((slack[edge], False), (slack[edge] + 500, True)):
            longer = lags.copy()
            longer[edge] += more
            ends = recorded.replayed(longer)[steps.end].max()
            assert (ends > end) == later
    if planted and planted.culprit.ranks:
        slow = str(planted.culprit.ranks[0])
        assert parts(path, "rank")[slow][0] > 0.8 * path.length


def test_what_is_off_the_path_is_never_credited(tmp_path: Path) -> None:
    """Three of four ranks have slack: none of them gains anything by being faster."""
    planted = with_fault(a_job("ddp", 4, layers=2, steps=3), "slow-rank")
    simulate(planted.job, tmp_path / "run", fault=planted)
    found = Session(ingest_job.open(tmp_path / "run")).replay()
    (slow,) = planted.culprit.ranks
    for rank in range(4):
        answer = found.predicted([edit(f"even-ranks:{rank}")])
        assert answer.predicted_ns is not None
        gain = 1 - answer.predicted_ns / found.trust.measured_ns
        assert (gain > 0.05) == (rank == slow)


def test_without_a_question_the_page_shows_the_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path / "rank0.json", trace(two_streams(), head(0, 1)))  # type: ignore[arg-type]
    assert cli.main(["whatif", str(file), "--html", str(tmp_path / "page.html")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for said in ("runs through rank 0", "aten::mm", "aten::add", "13.0 µs", "Linear_1"):
        assert said in text
        assert said in (tmp_path / "page.html").read_text()
    assert cli.main(["whatif", str(file), "--json", "-"]) == 0
    told = json.loads(capsys.readouterr().out)["replay"]["path"]
    assert sum(row["path_ns"] for row in told["by"]["account"]) == told["ns"]
    assert sum(row["share"] for row in told["by"]["rank"]) == pytest.approx(1)
    assert cli.main(["whatif", str(file), "faster:gemm=2", "--json", "-"]) == 0
    assert "path" not in json.loads(capsys.readouterr().out)["replay"]
