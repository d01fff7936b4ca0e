"""What Perfetto's own engine reads of an export is what the tables say, to the nanosecond."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import lostflops
from compared import REAL, differences, in_tables, read_by_perfetto, samples_in_tables
from lostflops.lab.simulate import simulate
from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.strategy import strategy
from trace_processor import TraceProcessor

ROOT = Path(__file__).parents[2]
SOME = (
    "hta/critical_path__cuda_event_sync_multi_stream__event_sync_trace.json.gz",
    "kineto_tb/tb_plugin_gpu_metrics_input.json.gz",
    "deepseek/train.json.gz",
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "cache"))


def test_perfetto_reads_a_run_as_it_is(perfetto: TraceProcessor, tmp_path: Path) -> None:
    trace = lostflops.open(ROOT / "examples" / "runs" / "ddp")
    said = lostflops.write(trace, tmp_path / "run.pftrace")
    stats, amounts, counted = read_by_perfetto(
        perfetto,
        (tmp_path / "run.pftrace").read_bytes(),
        "select name from process where pid > 0 order by pid",
        "select name from slice where category = 'finding'",
        "select sum(dur) ns from slice where category = 'account'",
        "select sum(dur) ns from slice where category = 'step'",
    )
    assert stats == []
    assert differences(in_tables(trace), amounts) == []
    assert counted["flows"] == sum(said.drawn.flows.values()) == 1172
    names, findings, accounts, steps = counted["others"]
    assert [row["name"] for row in names] == [f"rank {rank}" for rank in range(4)]
    assert [row["name"] for row in findings] == [f.claim for f in lostflops.why(trace).findings]
    # Every instant of every step is in one account.
    assert accounts == steps


@pytest.mark.parametrize("name", SOME)
def test_perfetto_reads_real_traces_as_they_are(perfetto: TraceProcessor, tmp_path: Path, name: str) -> None:
    if not (REAL / "kineto" / name).exists():
        pytest.skip("the shared traces are not here")
    trace = lostflops.open(REAL / "kineto" / name)
    said = lostflops.write(trace, tmp_path / "run.pftrace")
    stats, amounts, counted = read_by_perfetto(perfetto, (tmp_path / "run.pftrace").read_bytes())
    assert stats == []
    assert differences(in_tables(trace), amounts) == []
    assert counted["flows"] == sum(said.drawn.flows.values())
    assert counted["samples"] == said.drawn.samples == samples_in_tables(trace)


def test_an_arrow_of_a_pipeline_leads_from_the_send_to_its_receive(
    perfetto: TraceProcessor, tmp_path: Path
) -> None:
    """Also where the receive begins first, as it does whenever a stage waits."""
    simulate(SimulatedJob(strategy("pp4-m8", 4), steps=2, layers=4), tmp_path / "made")
    trace = lostflops.open(tmp_path / "made")
    said = lostflops.write(trace, tmp_path / "run.pftrace")
    # The receive holds the point at which it ends.
    kinds = (
        "select a.name sends, b.name leads_to, p.name receives, count(*) n from flow "
        "join slice a on a.id = slice_out join slice b on b.id = slice_in "
        "left join slice p on p.id = b.parent_id "
        "where a.name in ('send', 'receive', 'arrives') group by 1, 2, 3"
    )
    stats, _, counted = read_by_perfetto(perfetto, (tmp_path / "run.pftrace").read_bytes(), kinds)
    assert stats == []
    assert counted["flows"] == sum(said.drawn.flows.values())
    operations = trace.table("collectives")
    assert operations is not None
    sent = operations.filter(pl.col("kind") == "send").collect().height
    assert sent > 20
    arrows = {"sends": "send", "leads_to": "arrives", "receives": "receive", "n": sent}
    assert counted["others"][0] == [arrows]
