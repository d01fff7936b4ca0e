"""`lostflops bench links`: copies, the machine card made of them, and what nvbandwidth prints."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_torch import python_with_gpus
from lostflops import cli
from lostflops.errors import LostflopsError
from lostflops.machine.bench import collectives, links, ranks
from lostflops.machine.bench.collectives import Collectives as Measured
from lostflops.plan import hardware


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
    wanted = links.settings((4096,), 2, tmp_path)
    assert [node for node, _ in wanted["nodes"]] == [0, 1, 2]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = links.measured(ranks.alone(sys.executable, "links.py", wanted)).bandwidths
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
        for n in links.SIZES
    ]
    rows.append({"tool": "nvbandwidth", "operation": "host to device", "device": "GPU0", "both": False}
                | {"algorithm_bandwidth": 55.5})  # fmt: skip
    cards = links.cards(collectives.table(rows))
    assert [(c["operation"], c["host_memory"], c["both"], c["numa"]) for c in cards] == [
        ("host to device", "pinned", False, 1),
        ("host to device", "pinned", True, 1),
        ("device to host", "pageable", False, 1),
        ("host to device", None, False, None),
    ]
    assert [c["bandwidth"] for c in cards] == pytest.approx([55, 40, 9, 55.5], rel=1e-3)
    assert [c["latency"] for c in cards] == [8000, 8000, 20000, None]
    assert cards[2]["half_size"] == pytest.approx(180_000, rel=1e-2)


def test_one_command_measures_a_card_that_the_planner_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "nvbandwidth", lambda: Measured(collectives.table([])))
    file, everything = tmp_path / "card.json", tmp_path / "links.json"
    words = ["bench", "links", "--python", python_with_gpus(tmp_path), "--sizes", "64K-64M", "--repeats", "6"]
    assert cli.main([*words, "--card", str(file), "--json", str(everything)]) == 0
    assert "both ways" in capsys.readouterr().out
    card = json.loads(file.read_text())
    assert card["kind"] == "link card" and card["gpu"] == "Fast Card" and card["torch"] == "9.9"
    assert card["remarks"] == ["GPU1, the slowest of 2 GPUs"]
    out, into = card["device_to_host"], card["host_to_device"]
    assert [out["pinned"]["bytes_per_second"], into["pinned"]["bytes_per_second"]] == pytest.approx(
        [40e9, 30e9], rel=1e-3
    )
    assert (out["pinned"]["launch_ns"], into["pinned"]["launch_ns"]) == pytest.approx((7000, 9000), abs=5)
    assert out["pageable"]["bytes_per_second"] == pytest.approx(8e9, rel=1e-3)
    assert out["pinned"]["half_size_bytes"] == pytest.approx(280_000, rel=1e-2)
    assert [each["bytes"] for each in out["pinned"]["sizes"]] == [65536 * 4**n for n in range(6)]
    under, both = card["under_gemm"], card["both_directions"]
    assert under["device_to_host"]["pinned"]["bytes_per_second"] == pytest.approx(32e9, rel=1e-2)
    # The faster direction is done first; the other's copies from then on do not count.
    assert both["host_to_device"]["pinned"]["bytes_per_second"] == pytest.approx(15e9, rel=0.02)
    assert both["device_to_host"]["pinned"]["bytes_per_second"] == pytest.approx(40e9, rel=1e-3)
    found = hardware.link(str(file))
    assert (found.out, found.into) == pytest.approx((40e9, 30e9), rel=1e-3)
    document = json.loads(everything.read_text())
    assert set(document["link_cards"]) == {"GPU0", "GPU1"} and document["kind"] == "links"
    assert document["link_cards"]["GPU0"]["host_to_device"]["pinned"]["bytes_per_second"] == pytest.approx(
        60e9, rel=1e-3
    )
    assert all("load" not in row for row in document["bandwidths"])
    same = hardware.link(str(everything))
    assert (same.out, same.into) == (found.out, found.into), "either file gives the same plan"
    assert cli.main(["plan", "train", "--model", "llama-3-8b", "--gpu", "h200", "--link", str(file)]) == 0


def test_each_memory_node_has_its_rates_and_the_nearest_is_the_cards() -> None:
    rows: list[dict[str, Any]] = [
        {"tool": "torch", "operation": operation, "device": "GPU0", "host_memory": "pinned", "both": False}
        | {"numa": node, "bytes": n, "time": round(8000 + n / rate), "repeats": 7}
        for operation in ("host to device", "device to host")
        for node, rate in ((0, 18.0), (1, 52.0))
        for n in links.SIZES
    ]
    found = Measured(collectives.table(rows), {"gpus": "1", "gpu": "Card"})
    card = links.slowest(links.link_cards(found))
    assert card["numa_node"] == 1 and card["host"].endswith("2 memory nodes measured")
    assert card["host_to_device"]["pinned"]["bytes_per_second"] == pytest.approx(52e9, rel=1e-3)
    (other,) = card["by_node"]
    assert other["numa_node"] == 0
    assert other["device_to_host"]["pinned"]["bytes_per_second"] == pytest.approx(18e9, rel=1e-3)
    assert card["both_directions"] is None and card["under_gemm"] is None and card["remarks"] == []


def test_without_a_gpu_there_is_no_link_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    words = [
        "bench",
        "links",
        "--sizes",
        "4K,8K,16K",
        "--repeats",
        "2",
        "--card",
        str(tmp_path / "card.json"),
    ]
    assert cli.main(words) != 0
    assert "There is no link card" in capsys.readouterr().err
    assert not (tmp_path / "card.json").exists()


def test_what_nvbandwidth_printed_makes_a_card_too(tmp_path: Path) -> None:
    (tmp_path / "nv.json").write_text(
        nvbandwidth(
            case("host_to_device_memcpy_ce", [["55.25", "54.5"]], bufferSize=512),
            case("device_to_host_memcpy_ce", [["44.25", "45.5"]], bufferSize=512),
            case("device_to_host_bidirectional_memcpy_ce", [["27", "28"]]),
        )
    )
    words = ["bench", "links", "--from", str(tmp_path / "nv.json"), "--card", str(tmp_path / "card.json")]
    assert cli.main(words) == 0
    card = json.loads((tmp_path / "card.json").read_text())
    assert card["remarks"] == ["GPU0, the slowest of 2 GPUs"] and card["driver"] == "580.95.05"
    assert card["both_directions"]["device_to_host"]["pinned"]["bytes_per_second"] == 27e9
    found = hardware.link(str(tmp_path / "card.json"))
    assert (found.out, found.into, found.latency_ns) == (44.25e9, 55.25e9, 0)


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
    found = links.recorded([file])
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
        links.recorded([tmp_path / "x"])


def test_tests_without_numbers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text(
        nvbandwidth(case("device_local_copy", [["1"]]), {"name": "y", "bandwidth_matrix": 3})
    )
    with pytest.raises(LostflopsError, match="holds none of the tests"):
        links.recorded([tmp_path / "x"])


def test_nvbandwidth_on_the_path_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvbandwidth"
    text = nvbandwidth(case("host_to_device_memcpy_ce", [["55.25"]]))
    program.write_text(f"#!{sys.executable}\nimport sys\nassert '-j' in sys.argv\nprint({text!r})\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert links.nvbandwidth().bandwidths["algorithm_bandwidth"].to_list() == [55.25]
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.exit(2)\n")
    assert "status 2" in links.nvbandwidth().remarks[0]
    program.unlink()
    assert links.nvbandwidth().bandwidths.is_empty()
