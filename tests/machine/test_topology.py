"""`lostflops topology` shows what there is, and warns of exactly what is wrong."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import polars as pl
import pytest

import lostflops
import machine_texts
from kineto_files import head, operator, trace, written
from lostflops import cli
from lostflops.errors import LostflopsError
from lostflops.machine.topology import tools as topology


@pytest.fixture(autouse=True)
def _no_rank(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    for name in ("LOCAL_RANK", "RANK", "SLURM_LOCALID", "GROUP_RANK", "CROSS_RANK", "SLURM_NODEID"):
        monkeypatch.delenv(name, raising=False)


def printed(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    status = cli.main(["topology", *map(str, words)])
    out, err = capsys.readouterr()
    assert status == 0, err
    return out


def warnings(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("warning")]


def test_a_machine_as_it_should_be_gets_no_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, "--from", machine_texts.folder(tmp_path))
    assert not warnings(text)
    assert "no fault was found in the devices and links above" in text
    assert "GPU2  –                       1            16-31" in text or "GPU2" in text
    assert "lstopo.xml: not in the folder" in text
    assert "NV#   # bonded NVLinks" in text and "SYS   between memory nodes" in text
    assert "PIX " not in text, "the legend names only what is there"


@pytest.mark.parametrize(
    ("changed", "warning", "evidence"),
    [
        (
            {"nvidia_smi_topo_m": machine_texts.paths({(0, 2): "SYS"})},
            "warning: 1 pair of GPUs has no NVLink, while others have.",
            "GPU0-GPU2 is SYS, not NV4",
        ),
        (
            {"nvidia_smi_topo_m": machine_texts.paths({(1, 2): "NV3", (0, 1): "NV2"})},
            "warning: 2 pairs of GPUs have fewer NVLinks than others of their machine.",
            "GPU1-GPU2 is NV3, not NV4",
        ),
        (
            {"nvidia_smi_topo_p2p_r": machine_texts.peers({(1, 3): "TNS"})},
            (
                "warning: 1 pair of GPUs cannot reach each other's memory: what they exchange goes through "
                "the host's."
            ),
            "GPU1-GPU3 is TNS, not OK",
        ),
        (
            {"ibstat": machine_texts.ibstat({3: ("Down", "Polling", 10)})},
            "warning: 1 network port is not active.",
            "mlx5_3 port 1 is down, polling, not active",
        ),
        (
            {"ibstat": machine_texts.ibstat({1: ("Active", "LinkUp", 100)})},
            "warning: 1 network port is slower than expected.",
            "mlx5_1 port 1 is 100 Gb/s, not 200 Gb/s",
        ),
        (
            {"nvidia_smi_topo_m": machine_texts.paths(near=("PXB", "PXB", "NODE", "PXB"))},
            "warning: 1 GPU has no network card near it.",
            "GPU2 is NODE to mlx5_2, not PXB, as others have",
        ),
        (
            {"nvidia_smi_topo_m": machine_texts.paths(near=("SYS",) * 4).replace("NODE", "SYS")},
            "warning: 4 GPUs have no network card near them.",
            "GPU0 is SYS to mlx5_0, not a card on its own memory node",
        ),
    ],
)
def test_one_fault_is_one_warning(
    changed: dict[str, str], warning: str, evidence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, "--from", machine_texts.folder(tmp_path, **changed))
    assert warnings(text) == [warning]
    assert f"  {evidence}\n" in text


def test_a_machine_without_near_cards_is_built_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = machine_texts.folder(tmp_path, nvidia_smi_topo_m=machine_texts.paths(near=("NODE",) * 4))
    assert not warnings(printed(capsys, "--from", folder))


def test_a_rate_that_all_ports_lack_is_seen_when_it_is_stated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, "--from", machine_texts.folder(tmp_path), "--expected-rate", "400")
    assert warnings(text) == ["warning: 4 network ports are slower than expected."]


def test_this_machine_is_shown_whatever_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys)
    assert "memory node" in text or "no device was found" in text
    if not any((Path(p) / "nvidia-smi").exists() for p in os.environ["PATH"].split(os.pathsep)):
        assert "nvidia-smi: not on the PATH; NVIDIA GPUs, their links and P2P are not shown" in text


def fake(folder: Path, name: str, script: str) -> None:
    file = folder / name
    file.write_text(f"#!{sys.executable}\nimport sys\nargs = sys.argv[1:]\n{script}\n")
    file.chmod(0o755)


def test_tools_on_the_path_are_asked_and_their_failures_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = machine_texts.folder(tmp_path / "texts")
    fake(
        tmp_path,
        "nvidia-smi",
        f"if args == ['topo', '-m']: print(open({str(texts / 'nvidia-smi-topo-m.txt')!r}).read())\n"
        "elif args[0] == 'topo' and args[2] == 'r': print('no matrix')\n"
        "else: sys.exit('Unable to determine the device handle')",
    )
    fake(tmp_path, "ibstat", "import os; os.kill(os.getpid(), 9)")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = topology.here(tmp_path / "no sysfs")
    assert found.links.height == 8 * 7
    assert set(found.absent) == {"rocm-smi", "ibdev2netdev", "lstopo-no-graphics", "numactl"}
    assert "nvidia-smi nvlink -s: ended with status 1: Unable to determine the device handle" in found.remarks
    assert "nvidia-smi-topo-p2p-r.txt: no matrix of devices was found" in found.remarks
    assert "ibstat: ended with status -9" in found.remarks


def test_a_tool_that_hangs_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, "ibstat", "import time; time.sleep(60)")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(topology, "PATIENCE", 0.1)
    assert "ibstat: did not answer within 0.1 s" in topology.here(tmp_path / "no sysfs").remarks


@pytest.mark.parametrize(("seen", "gpu"), [("", 1), ("3", 3), ("2,0", 0), ("GPU-1f", None)])
def test_a_rank_is_told_with_the_gpu_it_has(
    seen: str, gpu: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("RANK", "9")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    (row,) = topology.here(tmp_path).devices.rows(named=True)
    assert (row["kind"], row["name"], row["port"]) == ("process", "rank 9", gpu)
    assert row["cpus"]


def test_what_one_tool_does_not_know_another_adds(tmp_path: Path) -> None:
    folder = machine_texts.folder(tmp_path)
    port = folder / "sys/class/infiniband/mlx5_1/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("1: DOWN\n")
    devices = topology.recorded(folder).devices
    (row,) = devices.filter(kind="port", name="mlx5_1").rows(named=True)
    assert (row["state"], row["rate"], row["tool"]) == ("down", 200.0, "sysfs")
    (gpu,) = devices.filter(kind="gpu", name="GPU1").rows(named=True)
    assert gpu["cpus"] == "0-15"


def test_json_holds_what_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(capsys, "--from", machine_texts.folder(tmp_path), "--json", "-"))
    assert found["kind"] == "topology" and found["format"] == 1
    assert {"rank", "matrix", "device", "peer", "code", "num_links", "tool"} == set(
        found["topology_links"][0]
    )
    assert os.uname().nodename not in json.dumps(found)
    file = tmp_path / "t.json"
    assert "no fault was found" in printed(capsys, "--from", tmp_path, "--json", file)
    again = json.loads(file.read_text())
    assert again["topology_devices"] == found["topology_devices"]


def test_a_folder_without_outputs_says_which_files_it_looks_for(tmp_path: Path) -> None:
    with pytest.raises(LostflopsError) as error:
        topology.recorded(tmp_path)
    assert "nvidia-smi-topo-m.txt" in error.value.hint
    with pytest.raises(LostflopsError, match="no file or folder"):
        topology.recorded(tmp_path / "nowhere")


def test_it_is_kept_under_the_node_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = machine_texts.folder(tmp_path / "texts")
    run = tmp_path / "run"
    (run / "node-0007").mkdir(parents=True)
    printed(capsys, "--from", texts, "--output", run)
    assert (run / "node-0007" / "topology.jsonl").is_file()
    monkeypatch.setenv("SLURM_NODEID", "2")
    printed(capsys, "--from", texts, "--output", run)
    assert (run / "node-0002" / "topology.jsonl").is_file()
    (run / "run.json").write_text("{}")
    assert cli.main(["topology", "--from", str(texts), "--output", str(run)]) == 2
    assert "imported run: nothing can be added to it" in capsys.readouterr().err


def test_beside_the_traces_it_becomes_tables_under_the_first_rank_of_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SLURM_NODEID", "1")
    texts = machine_texts.folder(
        tmp_path / "texts", ibstat=machine_texts.ibstat({1: ("Down", "Disabled", 10)})
    )
    run, node = tmp_path / "run", tmp_path / "run/node-0001"
    node.mkdir(parents=True)
    for rank in (4, 5):
        written(node / f"rank{rank}.json", trace([operator("aten::mm", 10, 5)], head(rank, 8)))
        (node / f"steps-{rank:05d}-a0.jsonl").write_text("")
    assert cli.main(["why", str(run), "--allow-missing-ranks", "--all"]) == 0
    assert "topology-faults" in capsys.readouterr().out, "there it is not answered"
    printed(capsys, "--from", texts, "--output", run)
    opened = lostflops.open(run, allow_missing_ranks=True)
    devices, links = opened.table("topology_devices"), opened.table("topology_links")
    assert devices is not None and links is not None
    assert set(devices.collect()["rank"]) == set(links.collect()["rank"]) == {4}
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("RANK", "5")
    placed = topology.document(topology.here(tmp_path / "no sysfs"), "node-0001")
    topology.keep(placed | {"measured_at": 1}, node / topology.file_name())
    assert (node / "topology-1.jsonl").is_file()
    again = lostflops.open(run, allow_missing_ranks=True).table("topology_devices")
    assert again is not None
    added = again.collect().filter(~pl.col("name").is_in(devices.collect()["name"].to_list()))
    assert added.select("rank", "kind", "name").rows() == [(4, "process", "rank 5")]
    assert cli.main(["why", str(run), "--allow-missing-ranks"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "1 network port is not active." in said and "mlx5_1 port 1 is down, disabled, not active" in said
