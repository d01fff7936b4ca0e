"""`lostflops bench links`: copies, the machine card made of them, and what nvbandwidth prints."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from lostflops import cli
from lostflops.capture import bench_collectives, bench_links, bench_ranks
from lostflops.errors import LostflopsError


def test_without_a_gpu_host_memory_is_copied_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("SLURM_NODEID", "3")
    run = tmp_path / "run"
    words = ["bench", "links", "--sizes", "4K-1M", "--repeats", "3", "--output", str(run)]
    assert cli.main(words) == 0
    text = capsys.readouterr().out
    assert "sees no GPU: only copies inside host memory were timed" in text
    assert "host to host" in text
    content = json.loads((run / "node-0003" / "links.jsonl").read_text())
    assert content["kind"] == "links" and content["about"]["gpus"] == "0"
    rows = content["bandwidths"]
    assert [row["bytes"] for row in rows] == [4096, 16384, 65536, 262144, 1 << 20]
    for row in rows:
        assert row["correct"] is True and row["repeats"] == 3 and row["host_memory"] == "pageable"
        assert row["algorithm_bandwidth"] == pytest.approx(row["bytes"] / row["time"])
        assert "bus_bandwidth" not in row and "backend" not in row
    (card,) = content["cards"]
    assert card["operation"] == "host to host" and card["bandwidth"] > 0
    assert card["best"] == max(row["algorithm_bandwidth"] for row in rows)


def test_memory_nodes_are_measured_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    for node, cpu in enumerate((cpus[0], cpus[-1], max(cpus) + 64)):
        folder = tmp_path / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpu}\n")
    wanted = bench_links.settings((4096,), 2, tmp_path)
    assert [node for node, _ in wanted["nodes"]] == [0, 1, 2]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = bench_links.measured(bench_ranks.alone(sys.executable, "links.py", wanted)).bandwidths
    assert found["numa"].to_list() == [0, 1], "on the third none of this process' CPUs lies"


def test_a_card_is_a_line_per_link() -> None:
    rows: list[dict[str, Any]] = [
        {"tool": "torch", "operation": operation, "device": "GPU0", "host_memory": kind, "both": both}
        | {"numa": 1, "bytes": n, "time": round(t0 + n / rate)}
        for operation, kind, both, t0, rate in (
            ("host to device", "pinned", False, 8000, 55.0),
            ("host to device", "pinned", True, 8000, 40.0),
            ("device to host", "pageable", False, 20000, 9.0),
        )
        for n in bench_links.SIZES
    ]
    rows.append({"tool": "nvbandwidth", "operation": "host to device", "device": "GPU0", "both": False}
                | {"algorithm_bandwidth": 55.5})  # fmt: skip
    cards = bench_links.cards(bench_collectives.table(rows))
    assert [(c["operation"], c["host_memory"], c["both"], c["numa"]) for c in cards] == [
        ("host to device", "pinned", False, 1),
        ("host to device", "pinned", True, 1),
        ("device to host", "pageable", False, 1),
        ("host to device", None, False, None),
    ]
    assert [c["bandwidth"] for c in cards] == pytest.approx([55, 40, 9, 55.5], rel=1e-3)
    assert [c["latency"] for c in cards] == [8000, 8000, 20000, None]
    assert cards[2]["half_size"] == pytest.approx(180_000, rel=1e-2)


def nvbandwidth(*tests: dict[str, Any]) -> str:
    top = {"version": "v0.8", "Driver Version": "580.95.05", "testcases": list(tests)}
    return "a line before\n" + json.dumps({"nvbandwidth": top}) + "\n"


def case(name: str, matrix: list[list[str]] | None, about: str = "->", **more: Any) -> dict[str, Any]:
    given = {} if matrix is None else {"bandwidth_matrix": matrix}
    return {"name": name, "status": "Passed", "bandwidth_description": f"row {about} column", **given, **more}


def test_what_nvbandwidth_prints_is_read_by_direction(tmp_path: Path) -> None:
    file = tmp_path / "nv.json"
    file.write_text(
        nvbandwidth(
            case("host_to_device_memcpy_ce", [["55.25", "54.5"]], bufferSize=512),
            case("device_to_host_bidirectional_memcpy_ce", [["27"], ["21.5"]]),
            case("device_to_device_memcpy_read_ce", [["N/A", "390"], ["391", "N/A"]], "<-"),
            case("device_to_device_memcpy_write_ce", None, status="Waived"),
            case("device_local_copy", [["1000"]]),
        )
    )
    found = bench_links.recorded([file])
    names = ("operation", "device", "peer", "numa", "both", "bytes", "algorithm_bandwidth")
    assert found.bandwidths.select(names).rows() == [
        ("host to device", "GPU0", None, None, False, 512 << 20, 55.25),
        ("host to device", "GPU1", None, None, False, 512 << 20, 54.5),
        ("device to host", "GPU0", None, 0, True, None, 27.0),
        ("device to host", "GPU0", None, 1, True, None, 21.5),
        ("peer to peer", "GPU1", "GPU0", None, False, None, 390.0),
        ("peer to peer", "GPU0", "GPU1", None, False, None, 391.0),
    ]
    assert found.remarks == ["device_to_device_memcpy_write_ce: Waived"]
    assert found.about == {"nvbandwidth": "v0.8", "driver": "580.95.05"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Running host_to_device_memcpy_ce.\n",
        '{"nvbandwidth": 5}',
        '{"nvbandwidth": {"testcases": 5}}',
        "{}",
    ],
)
def test_another_text_than_nvbandwidths_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(LostflopsError, match="is not what `nvbandwidth -j` prints"):
        bench_links.recorded([tmp_path / "x"])


def test_tests_without_numbers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text(
        nvbandwidth(case("device_local_copy", [["1"]]), {"name": "y", "bandwidth_matrix": 3})
    )
    with pytest.raises(LostflopsError, match="holds none of the tests"):
        bench_links.recorded([tmp_path / "x"])


def test_nvbandwidth_on_the_path_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvbandwidth"
    text = nvbandwidth(case("host_to_device_memcpy_ce", [["55.25"]]))
    program.write_text(f"#!{sys.executable}\nimport sys\nassert '-j' in sys.argv\nprint({text!r})\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert bench_links.nvbandwidth().bandwidths["algorithm_bandwidth"].to_list() == [55.25]
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.exit(2)\n")
    assert "status 2" in bench_links.nvbandwidth().remarks[0]
    program.unlink()
    assert bench_links.nvbandwidth().bandwidths.is_empty()
