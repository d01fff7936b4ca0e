"""A replayed job written as a run: the recording itself, or what the prediction says of an edit."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from test_edits_by_hand import GEMM, REDUCE, Launched, job
from test_replay_is_not_sure import asked, loop, replay

import lostflops
from lostflops.cli import main
from lostflops.errors import Refused
from lostflops.replay.edits import edit
from lostflops.replay.timeline import MOVED, replayed_run
from lostflops.session import Session
from lostflops.store.trace import REPLAYED, Trace

EXAMPLES = Path(__file__).parents[2] / "examples" / "runs"


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "store"))


def mean_step(trace: Trace) -> float:
    steps = trace.table("steps")
    assert steps is not None
    return float(
        steps.filter(pl.col("left_out").is_null())
        .select((pl.col("end") - pl.col("start")).mean())
        .collect()
        .item()
    )


def kernels(trace: Trace) -> pl.DataFrame:
    found = trace.table("kernels")
    assert found is not None
    return found.collect()


def test_without_an_edit_the_replayed_run_is_the_recorded_one(tmp_path: Path) -> None:
    trace = lostflops.open(EXAMPLES / "ddp")
    replayed_run(Session(trace).replay(), [], trace, tmp_path / "again")
    again = Trace.open(tmp_path / "again")
    for name in MOVED:
        before, after = trace.table(name), again.table(name)
        assert (before is None) == (after is None)
        if before is not None and after is not None:
            # Rows of a rank stay in their order.
            assert after.collect().equals(before.sort("rank", maintain_order=True).collect()), name


def test_rows_come_when_the_replay_says(tmp_path: Path) -> None:
    found = replay(tmp_path, loop(loader=1000))
    trace = lostflops.open(tmp_path / "rank0.json")
    replayed_run(found, [edit("loader=0ms")], trace, tmp_path / "fast")
    fast = Trace.open(tmp_path / "fast")
    (answer,) = asked(found, "loader=0ms")
    assert mean_step(fast) == pytest.approx(answer.predicted_ns, rel=0.001)
    was, now = (kernels(t) for t in (trace, fast))
    length = pl.col("end") - pl.col("start")
    assert now.select(length).equals(was.select(length))  # no kernel is shorter
    assert now.height == 150 and (now["launch_start"] <= now["start"]).all()
    assert [fact.text for fact in fast.manifest.quality if fact.name == REPLAYED] == ["loader=0ms"]
    assert fast.manifest.sources[0].identity != trace.manifest.sources[0].identity


def test_shorter_kernels_are_shorter_in_the_run(tmp_path: Path) -> None:
    found = replay(tmp_path, loop())
    trace = lostflops.open(tmp_path / "rank0.json")
    replayed_run(found, [edit("faster:gemm=2")], trace, tmp_path / "fast")
    rows = kernels(Trace.open(tmp_path / "fast"))
    assert (rows["end"] - rows["start"]).unique().to_list() == [20_000]


def test_kernels_that_overtake_others_keep_their_length(tmp_path: Path) -> None:
    """On a stream of their own reductions run beside the products that came after them."""
    work = [Launched(GEMM, 100), Launched(REDUCE, 50)] * 10 + [Launched(GEMM, 100)] * 6
    found = replay(tmp_path, job(work, gap=0))
    trace = lostflops.open(tmp_path / "rank0.json")
    replayed_run(found, [edit("own-stream:reduction")], trace, tmp_path / "beside")
    lengths = [
        kernels(t).group_by("name").agg((pl.col("end") - pl.col("start")).sum().alias("ns")).sort("name")
        for t in (trace, Trace.open(tmp_path / "beside"))
    ]
    assert lengths[0].equals(lengths[1])


def test_a_file_made_of_a_replayed_run_says_so_when_it_is_read_again(tmp_path: Path) -> None:
    found = replay(tmp_path, loop(loader=1000), loop(loader=1000))
    trace = lostflops.open([tmp_path / "rank0.json", tmp_path / "rank1.json"])
    replayed_run(found, [edit("loader=0ms")], trace, tmp_path / "fast")
    assert (
        main(["export", str(tmp_path / "fast"), "--to", "chrome", "--output", str(tmp_path / "again")]) == 0
    )
    again = lostflops.open(tmp_path / "again")
    assert {(fact.text, fact.level) for fact in again.manifest.quality if fact.name == REPLAYED} == {
        ("loader=0ms", "warning")
    }
    assert "Predicted: replayed with loader=0ms" in str(lostflops.why(tmp_path / "again"))
    assert mean_step(again) == pytest.approx(mean_step(Trace.open(tmp_path / "fast")), rel=0.001)


def test_what_is_not_predicted_is_not_written(tmp_path: Path) -> None:
    found = replay(tmp_path, loop())
    trace = lostflops.open(tmp_path / "rank0.json")
    with pytest.raises(Refused, match="no time on data loading"):
        replayed_run(found, [edit("loader=0ms")], trace, tmp_path / "fast")
    assert not (tmp_path / "fast").exists()


def test_pages_of_a_replayed_run_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, page, fast = str(EXAMPLES / "lora-workers-0"), tmp_path / "page.html", str(tmp_path / "fast")
    assert main(["whatif", run, "loader=0ms", "--html", str(page), "--output", fast]) == 0
    assert "loader=0ms" in page.read_text() and "Replayed: nothing here" in page.read_text()
    for words in (["why", fast], ["diff", run, fast], ["export", fast, "--output", str(tmp_path / "t.json")]):
        capsys.readouterr()
        assert main(words) == 0
        assert "replayed with loader=0ms" in " ".join(capsys.readouterr().out.split()).lower(), words
    assert main(["whatif", fast, "--output", fast]) == 2
