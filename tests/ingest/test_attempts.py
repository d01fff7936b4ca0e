"""Of a job that was started again, the last attempt is asked about."""

from __future__ import annotations

from pathlib import Path

import pytest

import lostflops
from lostflops.ingest.step_log import attempts
from recorded import record_script


def window(run: Path, rank: int, attempt: int, number: int = 0, process: str = "") -> Path:
    return run / "node-0000" / f"window-{rank:05d}-a{attempt}{process}-w{number:03d}.pt.trace.json.gz"


def test_windows_of_earlier_attempts_are_left_out(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    old = [window(run, 0, 0), window(run, 1, 2, 3, "-p71"), window(run, 2, 2)]
    new = [window(run, 0, 100), window(run, 1, 100, 1, "-p9-2")]
    rest = [window(other, 0, 1), run / "theirs.json", tmp_path / "a" / "b-00001-a1.json"]
    kept, said = attempts.last([*old, *new, *rest], given=[old[2]])
    assert kept == [old[2], *new, *rest]
    assert said == ["the job was started again: 2 files of earlier attempts left out, unless they are named"]
    assert attempts.last(new, given=[]) == (new, [])


def test_a_restarted_job_is_one_rank(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run = record_script(tmp_path, "train(8)").run
    (first,) = run.glob("node-*/window-*")
    again = first.with_name(first.name.replace("-a0-", "-a100-"))
    again.write_bytes(first.read_bytes())
    trace = lostflops.open(run)
    ranks, steps = trace.table("ranks"), trace.table("steps")
    assert ranks is not None and ranks.collect().height == 1
    assert steps is not None and steps.collect()["step"].to_list() == [3, 4, 5]
    assert "earlier attempt left out" in {fact.name for fact in trace.manifest.quality}
