"""The monitor as a process: what it writes, how it ends, what it says, what Prometheus gets."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as textfile

import lostflops
from lostflops import cli
from lostflops.errors import BadOption, CannotWrite, LostflopsError
from lostflops.machine.monitor import process as monitor
from lostflops.machine.monitor.metrics import METRICS, MetricValue
from lostflops.machine.monitor.openmetrics import exposition
from lostflops.store.trace import Trace
from monitored import HOST, INFINIBAND, Named, left, stub_nvml, tree
from recorded import record_script


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "store"))


def until(true: Callable[[], object], patience: float = 20) -> None:
    end = time.monotonic() + patience
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def started(run: Path, **more: object) -> monitor.Monitor:
    wanted = monitor.Sampling(run, **{"interval": 0.1, **more})  # pyright: ignore[reportArgumentType]
    running = monitor.start(wanted)
    running.wait_ready()
    return running


def latest(trace: Trace, device: int | None) -> dict[str, float]:
    table = trace.table("counters")
    assert table is not None
    rows = table.filter(pl.col("device").eq_missing(device), pl.col("instance").is_null()).sort("end")
    return dict(rows.select(pl.col("metric").cast(pl.String), "value").collect().rows())


def test_gpus_are_read_through_nvml_and_what_it_lacks_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = stub_nvml(tmp_path / "stub")
    if stub is None:
        pytest.skip("needs a C compiler: apt-get install gcc")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stub))
    monkeypatch.setenv("STUB_PID", "70")
    root = tree(tmp_path / "root", HOST)
    (root / "proc/70/fd").mkdir(parents=True)
    (root / "proc/70/fd/3").symlink_to("/dev/nvidia0")
    running = started(tmp_path / "run", root=root)
    (tail,) = (tmp_path / "run").glob("node-*/monitor/tail.jsonl")
    until(lambda: tail.read_bytes().count(b'"m":') > 4)
    running.stop()
    assert running.ending["ended"] and not running.ending["missing"]
    trace = lostflops.open(tmp_path / "run")
    first, second = latest(trace, 0), latest(trace, 1)
    assert first.pop("gpu_energy") > 0 and first.pop("gpu_nvlink_tx") > 0
    assert first == {
        "gpu_utilisation": 97,
        "gpu_memory_utilisation": 31,
        "gpu_memory_used": 600,
        "gpu_memory_total": 1000,
        "gpu_power": 412.5,
        "gpu_power_limit": 700,
        "gpu_sm_clock": 1980,
        "gpu_memory_clock": 2619,
        "gpu_temperature": 61,
        "gpu_sm_active": 12.5,
        "gpu_pcie_tx_rate": 2 << 20,
    }
    assert "gpu_power" not in second and "gpu_sm_active" not in second and "gpu_utilisation" in second
    table = trace.table("counters")
    assert table is not None
    named = table.filter(pl.col("device") == 0, pl.col("instance").is_not_null())
    several = {
        (metric, instance): value
        for metric, instance, value in named.select(pl.col("metric", "instance").cast(pl.String), "value")
        .collect()
        .iter_rows()
    }
    held = {instance for (metric, instance), v in several.items() if metric == "gpu_clock_reason" and v}
    assert held == {"power cap", "software thermal"}
    assert several["gpu_nvlink_errors", "replay"] == 0, "counted, and none was added"
    assert {("gpu_nvlink_link_tx", "0"), ("gpu_nvlink_link_tx", "1")} < set(several)
    told = [json.loads(line) for line in (tmp_path / "run").glob("*/monitor/facts.jsonl").__next__().open()]
    assert {"kind": "processes", "device": 0, "pids": [70]} in told
    assert not any(t["kind"] == "processes" and 71 in t["pids"] for t in told), (
        "no process of that number here"
    )
    assert any(t["kind"] == "device" and t["gpu"] == "Stub GPU" and t["memory"] == 1000 for t in told)


def test_prometheus_gets_what_was_read_last(tmp_path: Path) -> None:
    root = tree(tmp_path / "root", HOST, INFINIBAND)
    running = started(tmp_path / "run", root=root, port=0, textfile=tmp_path / "node.prom")
    try:
        url = f"http://127.0.0.1:{running.beginning['port']}"
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
            content = response.headers["Content-Type"]
            families = {family.name: family for family in openmetrics(response.read().decode())}
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{url}/other", timeout=10)
        with socket.socket() as other:
            other.settimeout(2)
            assert other.connect_ex(("127.0.0.2", running.beginning["port"])) != 0, "loopback address alone"
        until((tmp_path / "node.prom").exists)
        old = {family.name: family for family in textfile((tmp_path / "node.prom").read_text())}
    finally:
        running.stop()
    assert content == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    for found in (families, old):
        (total, per_core) = found["lostflops_cpu_user_seconds"], found["lostflops_cpu_busy_seconds"]
        assert total.type == "counter" and total.samples[0].value == 3.2
        assert {s.labels["core"]: s.value for s in per_core.samples} == {"0": 1.42, "1": 2.53}
        (sample,) = found["lostflops_nic_speed_bits_per_second"].samples
        assert sample.value == 4e11 and sample.labels == {"port": "mlx5_0:1"}
    assert families["lostflops_cpu_user_seconds"].unit == "seconds"
    assert families["lostflops_cpu_user_seconds"].samples[0].name == "lostflops_cpu_user_seconds_total"


def test_every_metric_can_be_offered_to_prometheus() -> None:
    readings = [
        MetricValue(metric.name, device, 'a "b"\\\n' if metric.label else None, 3)
        for metric in METRICS.values()
        for device in ((0, 1) if metric.name.startswith("gpu_") else (None,))
    ]
    families = list(openmetrics(exposition(readings)))
    assert len(families) == len(METRICS) + 1
    labels = {value for family in families for sample in family.samples for value in sample.labels.values()}
    assert 'a "b"\\\n' in labels
    assert sum(len(family.samples) for family in openmetrics(exposition([]))) == 1


def test_a_killed_monitor_loses_nothing_that_was_written_and_the_next_one_goes_on(tmp_path: Path) -> None:
    running = started(tmp_path / "run")
    (tail,) = (tmp_path / "run").glob("node-*/monitor/tail.jsonl")
    until(lambda: tail.read_bytes().count(b'"m":') > 2)
    running.process.kill()
    running.process.wait()
    samples = tail.read_bytes().count(b'"m":')
    before = lostflops.open(tmp_path / "run").table("counters")
    assert before is not None
    switches = before.filter(pl.col("metric") == "context_switches").select("start", "end").collect()
    assert switches.height == samples - 1
    running.stop()
    assert running.lines() == ["monitor: it stopped early; the samples it wrote are kept"]
    again = started(tmp_path / "run")
    again.stop()
    files = sorted(file.name for file in tail.parent.iterdir())
    assert files == ["facts.jsonl", "segment-0000.parquet", "segment-0001.parquet"]
    both = lostflops.open(tmp_path / "run").table("counters")
    assert both is not None
    after = both.filter(pl.col("metric") == "context_switches").select("start", "end").collect()
    assert after.height > switches.height and after.head(switches.height).equals(switches)


def test_a_monitor_ends_with_whoever_started_it(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path\n"
        "from lostflops.machine.monitor import process as monitor\n"
        "running = monitor.start(monitor.Sampling(Path(sys.argv[1]), interval=0.1)); running.wait_ready()\n"
        "print(running.process.pid, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        sampler = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    until(lambda: not Path(f"/proc/{sampler}").exists() or " Z " in Path(f"/proc/{sampler}/stat").read_text())
    until(lambda: list((tmp_path / "run").glob("node-*/monitor/segment-0000.parquet")))


def test_one_monitor_per_node_and_run(tmp_path: Path) -> None:
    running = started(tmp_path / "run")
    try:
        with pytest.raises(LostflopsError, match="Another monitor of this node"):
            started(tmp_path / "run")
        with monitor.beside(tmp_path / "run", wanted=True) as said:
            time.sleep(0.5)
        assert said == [], "beside a job, the other one is enough"
    finally:
        running.stop()


def test_what_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotWrite, match=r"'.*file' could not be written"):
        started(tmp_path / "file")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(BadOption, match=r"127\.0\.0\.1:\d+ cannot be used: "):
            started(tmp_path / "run", port=taken.getsockname()[1])


def test_times_and_ports_are_read_as_typed() -> None:
    assert [monitor.interval(t) for t in ("1", "0.5", "200ms", ".25", "2m")] == [1, 0.5, 0.2, 0.25, 120]
    assert monitor.duration("1h") == 3600
    assert monitor.listening("9400") == ("127.0.0.1", 9400)
    assert monitor.listening("0.0.0.0:9400") == ("0.0.0.0", 9400)
    assert monitor.listening("[::1]:9400") == ("::1", 9400)
    for wrong in ("", "x", "-1", "50ms", "1d"):
        with pytest.raises(BadOption):
            monitor.interval(wrong)
    for wrong in ("", "0", "1e3"):
        with pytest.raises(BadOption):
            monitor.duration(wrong)
    assert monitor.exporter("http://node:9400/metrics") == "http://node:9400/metrics"
    for wrong in ("", "9400", "file:///etc/hostname", "http://"):
        with pytest.raises(BadOption):
            monitor.exporter(wrong)
    for wrong in ("", "70000", "a b:1", "http://x:1"):
        with pytest.raises(BadOption):
            monitor.listening(wrong)


def test_around_a_command_its_status_is_passed_on(tmp_path: Path) -> None:
    words = ["monitor", "--interval", "0.1", "--output", "run", "--csv", "all.csv", "--html", "all.html"]
    done = subprocess.run(
        [sys.executable, "-m", "lostflops", *words, "--", "sh", "-c", "echo out; sleep 0.4; exit 3"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "LOSTFLOPS_CACHE": str(tmp_path / "store")},
    )
    assert (done.returncode, done.stdout) == (3, "out\n")
    first, second, third = done.stderr.splitlines()
    assert first.startswith("sampling ") and first.endswith(" values of this node -> run")
    assert second.startswith("took ") and " % of a core -> run" in second
    assert third == "next: lostflops why run"
    table = pl.read_csv(tmp_path / "all.csv")
    counters = lostflops.open(tmp_path / "run").table("counters")
    assert counters is not None and table.height == counters.collect().height
    assert table["time"][0].endswith("+00:00")
    assert "Host memory" in (tmp_path / "all.html").read_text()
    packed = list((tmp_path / "run").glob("node-*/monitor/segment-*.parquet"))
    assert len(packed) == 1


def test_ctrl_c_is_how_it_ends_by_itself(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lostflops", "monitor", "--interval", "0.1", "--output", "run"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as running:
        assert running.stderr is not None
        assert running.stderr.readline().startswith("sampling ")
        running.send_signal(signal.SIGINT)
        rest = running.stderr.read()
    assert running.returncode == 0 and rest.splitlines()[-1] == "next: lostflops why run", rest


def drawn(tmp_path: Path, **energy: int) -> str:
    def values(second: int) -> dict[Named, float | None]:
        found: dict[Named, float | None] = {}
        for device in (0, 1):
            found |= {("gpu_power", device, None): 300 + 100 * device, ("gpu_utilisation", device, None): 90}
            if energy:
                found["gpu_energy", device, None] = energy["kilojoules"] * 1_000_000 * second
        return found

    left(tmp_path / "run" / "node-a" / "monitor", [(s * 10**9, s * 10**9, values(s)) for s in range(4)])
    cli.main(["monitor", "--from", str(tmp_path / "run"), "--html", str(tmp_path / "page.html")])
    return (tmp_path / "page.html").read_text()


def test_energy_comes_from_its_own_counter_where_there_is_one(tmp_path: Path) -> None:
    page = drawn(tmp_path, kilojoules=600)
    assert "1 kWh together (GPU 0: 0.5, GPU 1: 0.5)" in page
    assert "about" not in page and page.count("<polyline") == 4


def test_without_it_energy_is_about_power_times_time(tmp_path: Path) -> None:
    # 3 s of 300 and of 400 W
    assert "about 0.0005833 kWh together (GPU 0: 0.00025, GPU 1: 0.0003333)" in drawn(tmp_path)


def test_from_a_run_there_is_something_to_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["monitor", "--from", str(tmp_path)]) == 2
    assert "--from reads a run and samples nothing." in capsys.readouterr().err
    assert cli.main(["monitor", "--from", str(tmp_path / "no"), "--csv", str(tmp_path / "a.csv")]) == 2
    assert "There is no file or folder" in capsys.readouterr().err


def test_record_with_a_monitor_puts_counters_beside_the_trace(tmp_path: Path) -> None:
    recorded = record_script(tmp_path, "train(8)\n", options=("--steps", "3-5", "--monitor"))
    assert recorded.status == 0, recorded.said
    assert any(line.startswith("took ") for line in recorded.said.splitlines()), recorded.said
    trace = lostflops.open(recorded.run)
    assert trace.has("kernels") and trace.has("counters")
    assert not [fact for fact in trace.manifest.quality if fact.level == "warning"]
    ranks, counters = trace.table("ranks"), trace.table("counters")
    assert ranks is not None and counters is not None
    assert ranks.select("rank", "source").collect().rows() == [(0, "kineto")]
    within = counters.select(pl.col("start").min(), pl.col("end").max()).collect().row(0)
    (end,) = ranks.select("end").collect().row(0)
    assert within[0] < 0 < end < within[1], "the samples begin before the window and end after it"
