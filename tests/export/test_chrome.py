"""What lostflops reads and writes as Chrome's JSON, it reads as the same tables; so do others."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import lostflops
from compared import REAL, as_profiled, in_profile, in_tables, read_by_perfetto
from compared import differences as missed
from lostflops.errors import CannotWrite
from same_tables import differences
from trace_processor import TraceProcessor

EXAMPLES = Path(__file__).parents[2] / "examples" / "runs"
SOME = (
    "hta/critical_path__cuda_event_sync_multi_stream__event_sync_trace.json.gz",
    "hta/mtia_inference_trace__mtia_inference_rank_0.json.gz",
    "param_dlrm8/worker0_step_12.1694128201545.pt.trace.json.gz",
    "tracelens/h100__gaunernst_bert-small-uncased__1016001.json.gz",
    "gen_torch213_cpu/tp_pp_rank0.pt.trace.json.gz",
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", SOME)
def test_a_real_trace_comes_back_as_the_same_tables(tmp_path: Path, name: str) -> None:
    if not (REAL / "kineto" / name).exists():
        pytest.skip("the shared traces are not here")
    trace = lostflops.open(REAL / "kineto" / name)
    lostflops.write(trace, tmp_path / "again.json.gz")
    assert differences(trace, lostflops.open(tmp_path / "again.json.gz")) == []


def test_a_run_of_several_ranks_is_a_folder_with_a_file_each(tmp_path: Path) -> None:
    trace = lostflops.open(EXAMPLES / "fsdp2")
    said = lostflops.write(trace, tmp_path / "again", to="chrome")
    assert sorted(f.name for f in (tmp_path / "again").iterdir()) == [
        f"rank{rank}.pt.trace.json.gz" for rank in range(said.num_ranks)
    ]
    assert differences(trace, lostflops.open(tmp_path / "again")) == []
    with pytest.raises(CannotWrite, match="something is there already"):
        lostflops.write(trace, tmp_path / "again", to="chrome")


def test_perfetto_reads_the_json_as_it_is(perfetto: TraceProcessor, tmp_path: Path) -> None:
    trace = lostflops.open(EXAMPLES / "ddp")
    lostflops.write(trace, tmp_path / "run.json", ranks=[2])
    stats, amounts, counted = read_by_perfetto(perfetto, (tmp_path / "run.json").read_bytes())
    assert stats == []
    assert missed(in_profile(in_tables(trace, [2])), as_profiled(amounts)) == []
    assert counted["flows"] > 100


def test_times_are_exact_and_hostile_names_stay_text(tmp_path: Path) -> None:
    name = 'a "quote", a \\ and \n\x1b[31m </script> ☃'
    event = {"ph": "X", "cat": "cpu_op", "pid": 7, "tid": 7, "dur": 0.999, "name": name}
    events = [{**event, "ts": 1700000000000000.123 + n, "name": f"{name}{n}"} for n in range(3)]
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": events}))
    trace = lostflops.open(tmp_path / "rank0.json")
    lostflops.write(trace, tmp_path / "again.json.gz")
    document = json.loads(gzip.decompress((tmp_path / "again.json.gz").read_bytes()))
    written = [e for e in document["traceEvents"] if e.get("cat") == "cpu_op"]
    assert [e["name"] for e in written] == [f"{name}{n}" for n in range(3)]
    assert differences(trace, lostflops.open(tmp_path / "again.json.gz")) == []
