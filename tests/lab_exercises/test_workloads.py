"""The lab's workloads beside training: their checks hold for the real scripts, and fail where they must."""

from __future__ import annotations

import json
import random
import sys
from argparse import Namespace
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from lostflops.errors import LostflopsError
from lostflops.lab.exercises import running, shown
from lostflops.lab.exercises.exercise import Observed
from lostflops.lab.exercises.listed import exercises
from lostflops.lab.exercises.offered.workloads import dialogue, queries, recommender, services, streaming


def ran(name: str, place: Path, *words: str) -> Observed:
    """What the script of an exercise says of itself, run in this process."""
    place.mkdir(parents=True, exist_ok=True)
    truth = place / "truth.jsonl"
    module = import_module(f"{running.SCRIPTS}.workloads.{name}")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", [name, *words, "--truth", str(truth)])
        module.main()
    return Observed(place / "recording", json.loads(truth.read_text()))


def passed(name: str, *sides: Observed) -> list[bool]:
    check = exercises()[name].check
    assert check is not None
    return [one.passed for one in check(*sides)]


def but(seen: Observed, **truth: Any) -> Observed:
    return Observed(seen.run, {**deepcopy(dict(seen.truth)), **truth})


def test_a_resumed_dialogue_computes_what_is_new_in_it_and_answers_the_same(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    again, kept = (
        ran("dialogue", tmp_path / name, *words) for name, words in (("again", ()), ("kept", ("--keep",)))
    )
    assert passed("dialogue", again, kept) == [True] * 6
    assert dialogue.KEPT * 6 < dialogue.ALONE
    # A cache that is never asked computes everything, and other answers are no answers.
    report = {**kept.truth["cache"], "shared_bytes": 0, "evicted_bytes": 1}
    wrong = but(kept, turns=again.truth["turns"], dialogues={}, cache=report)
    assert passed("dialogue", again, wrong) == [False, True, False, False, False, True]


def test_a_streamed_model_moves_what_is_not_resident_once_per_pass(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    least = ran("streaming", tmp_path / "least", "--budgets", "0", "--passes", "3")
    more = ran("streaming", tmp_path / "more", "--budgets", "0.5,0.75,1", "--passes", "3")
    assert passed("streaming", least, more) == [True] * 6
    twice = deepcopy(least.truth["budgets"])
    twice[0]["report"]["bytes_in"] *= 2
    twice[0]["same"] = False
    assert passed("streaming", but(least, budgets=twice), more)[:2] == [False, False]
    assert not passed("streaming", more, least)[-1]
    assert streaming.EXERCISE.recorded is False


def test_queries_move_the_bytes_of_their_columns_and_two_engines_agree(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(queries, "ROWS", 5_000)
        words = ("--rows", "5000", "--repeats", "1")
        whole = ran("queries", tmp_path / "all", *words, "--columns", "all")
        needed = ran("queries", tmp_path / "needed", *words)
        assert passed("queries", whole, needed) == [True] * 7
        wrong = deepcopy(needed.truth["queries"])
        wrong[0] |= {"same": False, "result": [[1]]}
        assert passed("queries", needed, but(whole, queries=wrong))[:4] == [False, False, False, True]
        assert not any(passed("queries", needed, whole)[2:4])


def waits(candidates: list[float], worked: float) -> Observed:
    """Requests that wait so long in front of the second stage, and nowhere else."""
    count = len(candidates)
    other = {"waited": [0.1] * count, "worked": [5.0] * count}
    stages = {
        "features": other,
        "candidates": {"waited": candidates, "worked": [worked] * count},
        "ranking": other,
    }
    return Observed(
        Path(), {"stages": stages, "whole": [w + worked for w in candidates], "ranked": [[1]] * count}
    )


def test_a_stage_slower_than_requests_arrive_is_found_by_their_waits(tmp_path: Path) -> None:
    count = recommender.REQUESTS
    scan = waits([5.0 * n for n in range(count)], 30.0)
    index = waits([1.0] * count, 10.0)
    assert passed("recommender", scan, index) == [True] * 5
    assert passed("recommender", but(index, ranked=[]), scan) == [True, False, True, False, False]
    assert [recommender.percentile([3.0, 1.0, 2.0, 4.0], share) for share in (0.5, 0.51, 1.0)] == [2, 3, 4]
    # The processes pass each request on, in order, and all three answer it.
    real = ran("recommender", tmp_path, "--requests", "8", "--every-ms", "2", "--stage-ms", "0,6,0")
    assert len(real.truth["whole"]) == 8 and all(len(best) == 5 for best in real.truth["ranked"])
    assert recommender.slowest(real) == "candidates"


class QuietClock:
    """A replica's time, in which work takes what it asks for: a sleep ends up to 60 µs late."""

    def __init__(self, seed: int) -> None:
        self.now, self.late = 10**9, random.Random(seed)

    def monotonic_ns(self) -> int:
        self.now += 2_000  # so long a look takes
        return self.now

    time_ns = monotonic_ns

    def sleep(self, seconds: float) -> None:
        self.now += round(1e9 * seconds + 60_000 * self.late.random())


def served(place: Path, drift: int, seed: int) -> Observed:
    """What three replicas log of 200 requests each, and what they answer, where nothing slows them."""
    script = import_module(f"{running.SCRIPTS}.workloads.services")
    given = Namespace(replicas=3, ms=4.0, drift=drift, since=110, grows=0.01, most=0.5)
    chosen, done = random.Random(0), Queue[Any]()
    requests = [{"number": number, "value": chosen.random()} for number in range(600)]
    for replica in range(3):
        source = Queue[Any]()
        for request in [*requests[replica::3], None]:
            source.put(request)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(script, "time", QuietClock(10 * seed + replica))
            script.model(given, replica, source, done, place / "recording")
    answered = [one for one in done.queue if one is not None]
    answers = sorted(answered, key=lambda one: one["number"])
    ms = {str(replica): [one["ms"] for one in answers if one["replica"] == replica] for replica in range(3)}
    return Observed(
        place / "recording", {"answers": [one["answer"] for one in answers], "ms": ms, "since": given.since}
    )


@pytest.mark.parametrize("seed", range(3))
def test_the_watch_names_the_replica_that_drifts(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, known = services.watched, dict[Path, Any]()

    def once(seen: Observed) -> Any:
        """It is a process of its own; of the same logs it tells the same."""
        if seen.run not in known:
            known[seen.run] = watched(seen)
        return known[seen.run]

    monkeypatch.setattr(services, "watched", once)
    drifting, steady = served(tmp_path / "drift", services.DRIFTS, seed), served(tmp_path / "none", -1, seed)
    found = services.watched(drifting)
    assert found and {one.replica for one in found} == {services.DRIFTS}
    assert 110 <= found[0].request <= 150
    assert len(drifting.truth["answers"]) == 600
    assert passed("services", drifting, steady) == [True] * 5
    # With itself for the healthy side, the last check fails: a replica is named there, too.
    assert passed("services", drifting, drifting) == [True, True, True, True, False]


def test_three_services_pass_each_request_on_and_log_it(tmp_path: Path) -> None:
    words = ("--replicas", "3", "--ms", "4")
    real = ran("services", tmp_path, *words, "--drift", str(services.DRIFTS))
    # Who becomes slower on a busy machine is the machine's doing: what is answered is not.
    assert real.truth["answers"] == served(tmp_path / "quiet", -1, 0).truth["answers"]
    logs = sorted(real.run.rglob("*.jsonl"))
    steps = [
        [line for line in map(json.loads, log.read_text().splitlines()) if "step" in line] for log in logs
    ]
    assert [[line["step"] for line in log] for log in steps] == [list(range(200))] * 3
    for replica, log in enumerate(steps):
        asked = [
            4.0 * (1 + min(0.5, 0.01 * max(0, n - 110)) * (replica == services.DRIFTS)) for n in range(200)
        ]
        assert [line["duration"] / 1e6 for line in log] == real.truth["ms"][str(replica)]
        assert all(took >= least for took, least in zip(real.truth["ms"][str(replica)], asked, strict=True))


def test_an_exercise_that_measures_itself_runs_is_checked_again_and_has_nothing_to_compare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lostflops import cli

    truths = iter(("all", "needed"))

    def printed(words: list[str], logs: Path) -> str:
        at = Path(words[words.index("--truth") + 1])
        rows = [
            {"query": name, "bytes": queries.ROWS * sum(queries.ROW[c] for c in columns), "polars_s": 1.0}
            | {"duckdb_s": 2.0, "same": True, "result": [[1]]}
            for name, columns in queries.NEEDED.items()
        ]
        if next(truths) == "all":
            rows = [{**row, "bytes": queries.ROWS * sum(queries.ROW.values())} for row in rows]
        at.write_text(json.dumps({"queries": rows}) + "\n")
        return ""

    monkeypatch.setattr(running, "_printed", printed)
    monkeypatch.setattr(running, "find_spec", lambda name: name)
    assert cli.main(["lab", "queries", "--output", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "it measures itself, twice" in said and "7 of 7 observations are as expected" in said
    assert cli.main(["lab", "check", str(tmp_path / "queries")]) == 0
    assert cli.main(["lab", "compare", str(tmp_path / "queries")]) == 2
    assert "measures itself: there are no recordings to compare" in capsys.readouterr().err
    with pytest.raises(LostflopsError, match="is about the host"):
        shown.device(exercises()["services"], "cuda")
