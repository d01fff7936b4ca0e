"""The critical path on the rows: without a gap, as long as the steps, and on the rank that is late."""

from __future__ import annotations

from pathlib import Path

import pytest

import lostflops
from lostflops.session import Session
from lostflops.viewer import critical, timeline
from lostflops.viewer.critical import DrawnPath, in_window
from lostflops.viewer.timeline import RunTimeline
from viewed import browsing, stored

EXAMPLES = Path(__file__).parents[2] / "examples" / "runs"


@pytest.fixture(scope="module")
def ddp() -> RunTimeline:
    trace = lostflops.open(str(EXAMPLES / "ddp"))
    return timeline.opened(trace, Session(trace))


@pytest.fixture(scope="module")
def path(ddp: RunTimeline) -> DrawnPath:
    return critical.critical_path(ddp)


def test_it_has_no_gap_and_ends_with_the_last_counted_step(ddp: RunTimeline, path: DrawnPath) -> None:
    assert path.why_not == "" and len(path.start) > 1
    assert (path.start[1:] == path.end[:-1]).all() and (path.end > path.start).all()
    assert (path.track[1:] != path.track[:-1]).all()
    steps = ddp.session.replay().known.steps
    measured = ddp.session.replay().job.measured
    first, last = int(steps.begins(measured).min()), int(steps.ends(measured).max())
    assert int((path.end - path.start).sum()) == int(path.end[-1] - path.start[0])
    # It begins where something waited for nothing: here the start of the late rank.
    assert first <= path.start[0] < first + (last - first) / 100 and path.end[-1] == last


def test_it_runs_over_the_rank_for_which_the_others_wait(ddp: RunTimeline, path: DrawnPath) -> None:
    ns: dict[int, int] = {}
    for track, start, end in zip(path.track, path.start, path.end, strict=True):
        rank = ddp.kept.tracks[int(track)].rank
        ns[rank] = ns.get(rank, 0) + int(end - start)
    assert ns.get(2, 0) > 0.9 * sum(ns.values())


def test_a_window_gives_what_reaches_into_it_and_says_how_much_there_is(
    ddp: RunTimeline, path: DrawnPath
) -> None:
    whole = in_window(ddp, path, ddp.kept.zero, ddp.kept.end, 10_000)
    assert (whole["shown"], whole["total"]) == (len(path.start), len(path.start))
    for begin, end in zip(path.start.tolist(), path.end.tolist(), strict=True):
        one = in_window(ddp, path, begin, end, 10)
        assert one["start"] == [begin] and one["total"] == 1
    few = in_window(ddp, path, ddp.kept.zero, ddp.kept.end, 2)
    assert (few["shown"], few["total"]) == (2, len(path.start)) and few["start"] == whole["start"][:2]


def test_a_run_that_is_too_large_or_has_no_replay_says_why(
    ddp: RunTimeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(critical, "MOST_EVENTS", 10)
    why = critical.critical_path(ddp).why_not
    assert why.startswith("The critical path is not drawn: this run has ") and "takes minutes" in why
    stored(tmp_path / "run")
    browser, known = browsing(tmp_path / "run")
    answer = browser.get(f"/api/run/{known['id']}/critical").json()
    assert answer["lane"] == [] and answer["why_not"].endswith(".")
