"""How a watch reads logs that grow, shrink, vanish and begin anew; what it tells, runs and exits with."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as textfile

from lostflops import cli, run_folder
from lostflops.errors import NothingThere
from lostflops.watch import tailing
from lostflops.watch.alarm import Alarm
from lostflops.watch.job import NEW_LOGS_EVERY, PATIENCE, STALL_LEAST, Happened, Watch
from lostflops.watch.metrics import METRICS, PREFIX, exposition
from lostflops.watch.page import page

from .growing import MS, Job, even

ROOT = Path(__file__).parents[2]


def slow_rank(run: Path) -> Job:
    job = Job(run, 4)
    times = even(400, 4)
    times[300:, 2] *= 1.2
    job.grow(times)
    return job


def test_only_what_was_appended_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, 2)
    job.grow(even(100, 2))
    watch = Watch(tmp_path)
    watch.look()
    read: list[int] = []
    pread = os.pread

    def counted(file: int, size: int, offset: int) -> bytes:
        data = pread(file, size, offset)
        read.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", counted)
    line = job.step(0, 100 * MS)
    job.append(0, line)
    watch.look()
    assert read == [len(line)]
    assert watch.tails.by_rank[0].last == 100


def test_a_line_that_is_not_whole_yet_waits_for_its_rest(tmp_path: Path) -> None:
    job = Job(tmp_path, 1)
    job.grow(even(20, 1))
    line = job.step(0, 100 * MS)
    job.append(0, line[:25])
    watch = Watch(tmp_path)
    watch.look()
    assert watch.now().step == 19
    job.append(0, line[25:])
    watch.look()
    assert watch.now().step == 20
    assert watch.tails.by_rank[0].torn == 0


def test_a_damaged_line_is_counted_and_costs_itself_only(tmp_path: Path) -> None:
    job = Job(tmp_path, 1)
    job.grow(even(20, 1))
    job.append(0, '{"step":20,"end":1,"dur\n' + job.step(0, 100 * MS))
    watch = Watch(tmp_path)
    watch.look()
    assert watch.now().step == 20
    assert "1 lines of the logs are cut off" in watch.now().notes


def test_logs_that_shrink_vanish_or_are_replaced_are_said(tmp_path: Path) -> None:
    job = Job(tmp_path, 3)
    job.grow(even(50, 3))
    watch = Watch(tmp_path)
    watch.look()
    job.path(0).write_bytes(job.path(0).read_bytes()[:400])
    job.path(1).unlink()
    other = job.path(2).with_suffix(".new")
    other.write_bytes(job.path(2).read_bytes())
    other.rename(job.path(2))
    watch.look()
    notes = watch.now().notes
    assert "the log of rank 0 is shorter than it was: it is read from its beginning" in notes
    assert "the log of rank 1 is gone" in notes
    assert "the log of rank 2 was replaced: it is read from its beginning" in notes


def test_of_a_long_log_only_the_end_is_read_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tailing, "LEAST_BACK", 10_000)
    monkeypatch.setattr(tailing, "MOST_BACK", 10_000)
    Job(tmp_path, 2).grow(even(400, 2))
    watch = Watch(tmp_path)
    watch.look()
    first = watch.steps.first
    assert first is not None and 300 < first < 399
    assert f"steps before {first:,} are not looked at: the logs are long" in watch.now().notes
    assert watch.now().step == 399


def test_a_new_attempt_takes_the_place_of_the_last(tmp_path: Path) -> None:
    slow_rank(tmp_path)
    watch = Watch(tmp_path)
    watch.look(now=0)
    assert watch.slow()
    again = Job(tmp_path, 4, attempt=1)
    again.grow(even(10, 4))
    news = watch.look(now=NEW_LOGS_EVERY)
    assert [one.text for one in news] == ["attempt 1 of the job has begun"]
    assert (watch.now().step, watch.now().attempt, watch.slow()) == (9, 1, {})


def test_ranks_that_have_no_log_yet_are_counted(tmp_path: Path) -> None:
    job = Job(tmp_path, 4)
    job.grow(even(20, 2))
    watch = Watch(tmp_path)
    watch.look()
    assert "2 of 4 ranks have not finished a step yet" in watch.now().notes


def test_a_job_that_hangs_is_said_with_the_ranks_that_lack_its_last_step(tmp_path: Path) -> None:
    job = Job(tmp_path, 3)
    job.grow(even(60, 3))
    for rank in (0, 2):
        job.append(rank, job.step(rank, 100 * MS))
    watch = Watch(tmp_path)
    began = time.monotonic()
    watch.look(now=began)
    assert watch.look(now=began + STALL_LEAST - 10) == []
    (told,) = watch.look(now=began + STALL_LEAST + 30)
    assert (told.kind, told.bad) == ("stall", True)
    assert told.text.endswith("the last was step 60, which rank 1 never finished")
    job.append(1, job.step(1, 100 * MS))
    (back,) = watch.look(now=began + STALL_LEAST + 40)
    assert (back.text, back.bad) == ("the job goes on", False)


def test_a_job_that_ended_is_no_job_that_hangs(tmp_path: Path) -> None:
    job = Job(tmp_path, 2)
    job.grow(even(60, 2))
    (tmp_path / run_folder.RECORDING).write_text('{"kind":"start"}\n{"kind":"end","status":3}\n')
    job.end(0)
    watch = Watch(tmp_path)
    began = time.monotonic()
    assert watch.look(now=began) == []
    (told,) = watch.look(now=began + PATIENCE + 1)
    assert told.text == ("the command ended with status 3; rank 1 left no last line: killed, or still there")
    assert told.bad


def test_steps_go_on_without_a_rank_that_died(tmp_path: Path) -> None:
    job = Job(tmp_path, 3)
    job.grow(even(60, 3))
    job.grow(even(40, 2))
    watch = Watch(tmp_path)
    began = time.monotonic()
    watch.look(now=began)
    assert watch.now().step == 59
    watch.look(now=began + PATIENCE + 1)
    assert watch.now().step == 99


def test_the_other_ranks_are_followed_and_the_dead_one_is_named(tmp_path: Path) -> None:
    job = Job(tmp_path, 4)
    times = even(900, 4)
    times[700:, 2] *= 1.3
    for rank in range(4):
        job.append(rank, "".join(job.step(rank, one) for one in times[: 300 if rank == 3 else None, rank]))
    then = job.path(0).stat().st_mtime - 90
    os.utime(job.path(3), (then, then))
    watch = Watch(tmp_path)
    news = [one for one in watch.look() if one.bad]
    assert watch.now().step == 899
    assert [(one.kind, one.rank) for one in news] == [("rank", 2), ("stall", 3)]
    assert news[1].text == "rank 3 (node-0001) wrote no step for 90 s while others did, its last was 299"
    assert "behind      rank 3 (node-0001): no step for 90 s while others finish theirs" in str(
        page(watch.now(), "run", watch.happened)
    )
    assert not [note for note in watch.now().notes if "too late" in note]
    assert cli.main(["watch", str(tmp_path), "--once"]) == 1
    job.append(3, job.step(3, 100 * MS))
    assert [one.text for one in watch.look()] == ["rank 3 (node-0001) writes steps again"]


def test_ranks_whose_lines_are_longer_lose_none(tmp_path: Path) -> None:
    """A rank that tells more writes more, and less of its steps is read at a time."""
    job = Job(tmp_path, 2)
    job.grow(even(4000, 2), {1: [{"exception": "x" * 300}] * 4000})
    watch = Watch(tmp_path)
    watch.look()
    assert (watch.now().step, watch.steps.late, watch.now().notes) == (3999, 0, [])


def test_a_slow_rank_is_waited_for_as_its_steps_are_long(tmp_path: Path) -> None:
    """Steps of a minute, of which a rank takes 20 s more: longer than a step waits at first."""
    job = Job(tmp_path, 3)
    job.grow(even(300, 3, ms=60_000))
    watch = Watch(tmp_path)
    began = time.monotonic()
    watch.look(now=began)
    for step in range(60):
        for rank in (0, 1):
            job.append(rank, job.step(rank, 60_000 * MS))
        watch.look(now=began + 80 * step)
        watch.look(now=began + 80 * step + 19)
        job.append(2, job.step(2, 80_000 * MS))
        watch.look(now=began + 80 * step + 20)
    assert watch.steps.late == 0
    assert list(watch.slow()) == [2]


def test_a_nodes_clock_that_is_wrong_makes_no_job_hang(tmp_path: Path) -> None:
    job = Job(tmp_path, 4)
    job.began -= 30_000_000_000
    job.introduce(0)
    job.introduce(1)
    job.began -= 600_000_000_000
    job.grow(even(300, 4))
    watch = Watch(tmp_path)
    assert watch.look() == []


def test_what_is_found_at_the_only_look_runs_the_command_too(tmp_path: Path) -> None:
    """Steps that wait for a rank are taken at the end of `--once`."""
    run, job = tmp_path / "run", Job(tmp_path / "run", 4)
    times = even(400, 4)
    times[300:, 2] *= 1.2
    for rank in range(4):
        job.append(rank, "".join(job.step(rank, one) for one in times[: 250 if rank == 3 else None, rank]))
    told = tmp_path / "told"
    assert cli.main(["watch", str(run), "--once", "--when-slow", f'echo "$LOSTFLOPS_RANK" >> {told}']) == 1
    assert told.read_text() == "2\n"


def test_once_prints_the_page_and_ends_with_1_where_a_rank_is_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow_rank(tmp_path)
    assert cli.main(["watch", str(tmp_path), "--once"]) == 1
    page = capsys.readouterr().out
    assert "4 ranks on 2 nodes · step 399" in page
    assert "behind      rank 2 (node-0001): 20." in page or "behind      rank 2 (node-0001): 19." in page
    assert "rank 2 (node-0001) is 2" in page and "slower since step 300" in page
    healthy = tmp_path / "healthy"
    Job(healthy, 2).grow(even(100, 2))
    assert cli.main(["watch", str(healthy), "--once"]) == 0
    assert "behind" not in capsys.readouterr().out


def test_a_folder_that_is_not_there_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(NothingThere, match=r"nowhere'\.\nHint: give the folder that `lostflops record` made"):
        Watch(tmp_path / "nowhere")


def test_a_run_without_logs_says_so(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    watch.look()
    assert watch.now().step is None
    assert "no step log lies in it" in watch.now().notes[0]


def test_the_command_is_run_once_with_what_happened_in_its_environment(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = f'echo "$LOSTFLOPS_WHAT $LOSTFLOPS_RANK $LOSTFLOPS_NODE $LOSTFLOPS_STEP" >> {out}; echo done'
    alarm = Alarm(command, tmp_path)
    bad = Happened("rank", "rank 5 is slower", 0, 4210, 5, "node-0001", 0.12, bad=True)
    good = Happened("rank", "rank 5 is as fast as before", 0, 4900, 5, "node-0001", -0.1)
    job = Happened("job", "the job is slower", 0, 4209, bad=True)
    assert alarm.tell([good], now=0) is None
    assert alarm.tell([job, bad], now=0) == f"started `{command}`"
    assert alarm.tell([bad], now=1) is None
    assert (alarm.ended(wait=True) or "").endswith("ended with status 0: done")
    assert alarm.tell([bad], now=2) is None
    assert out.read_text() == "rank 5 node-0001 4210\n"


def test_prometheus_gets_every_metric_and_the_dashboard_asks_for_no_other(tmp_path: Path) -> None:
    slow_rank(tmp_path)
    watch = Watch(tmp_path)
    watch.look()
    families = {f.name: f for f in openmetrics(exposition(watch.now(), watch.counts, 1.5))}
    older = {f.name: f for f in textfile(exposition(watch.now(), watch.counts, 1.5, textfile=True))}
    assert set(families) - {"lostflops_watch"} == {PREFIX + name for name in METRICS}
    assert set(older) - {"lostflops_watch_info"} == {PREFIX + name for name in METRICS}
    lost = {s.labels["rank"]: s.value for s in families[f"{PREFIX}rank_slower_ratio"].samples}
    assert lost == {"0": 0, "1": 0, "2": pytest.approx(0.2, abs=0.02), "3": 0}
    (changed,) = [s for s in families[f"{PREFIX}changes"].samples if s.labels["kind"] == "rank"]
    assert changed.value == 1
    dashboard = json.loads((ROOT / "examples/grafana/lostflops-watch.json").read_text())
    asked = {t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", ())}
    known = {PREFIX + name + ("_total" if m.counts else "") for name, m in METRICS.items()}
    named = {name for expr in asked for name in re.findall(rf"{PREFIX}\w+", expr)}
    assert named <= known
    assert {f"{PREFIX}rank_slower_ratio", f"{PREFIX}steps_per_second"} <= named


def test_a_watch_follows_to_the_jobs_end_serves_metrics_and_runs_the_command(tmp_path: Path) -> None:
    run = tmp_path / "run"
    job = slow_rank(run)
    prom = tmp_path / "watch.prom"
    process = subprocess.Popen(
        [sys.executable, "-m", "lostflops", "watch", str(run), "--interval", "0.2", "--port", "0",
         "--textfile", str(prom), "--when-slow", f'echo "$LOSTFLOPS_RANK" > {tmp_path / "slow"}'],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    url = process.stderr.readline().removeprefix("metrics: ").strip()
    with urllib.request.urlopen(url, timeout=20) as response:
        assert response.headers["Content-Type"].startswith("application/openmetrics-text")
    for rank in range(4):
        job.end(rank)
    out, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "rank 2 (node-0001) is" in out and "the job ended" in out
    assert (tmp_path / "slow").read_text() == "2\n"
    assert "ended with status 0" in errors
    assert f"{PREFIX}rank_slower_ratio" in prom.read_text()
