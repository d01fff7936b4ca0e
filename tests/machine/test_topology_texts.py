"""What tools print about links is read cell by cell, and nothing is guessed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import machine_texts
from lostflops.machine.topology import sysfs as topology_sysfs
from lostflops.machine.topology import texts
from lostflops.machine.topology.texts import ToolOutput
from lostflops.units import written_spans


def codes(found: ToolOutput, matrix: str = "path") -> dict[tuple[str, str], str]:
    return {(r["device"], r["peer"]): r["code"] for r in found.links if r["matrix"] == matrix}


def device(found: ToolOutput, name: str, kind: str = "gpu") -> dict[str, Any]:
    (row,) = [r for r in found.devices if r["name"] == name and r["kind"] == kind]
    return row


def test_the_matrix_is_read_with_tabs_escapes_and_names_that_hold_spaces() -> None:
    found = texts.nvidia_paths(machine_texts.paths({(0, 3): "SYS", (1, 2): "NV12"}))
    assert not found.remarks
    read = codes(found)
    assert len(read) == 8 * 7
    assert read["GPU0", "GPU3"] == read["GPU3", "GPU0"] == "SYS"
    assert (
        read["GPU1", "mlx5_1"] == "PXB"
        and read["GPU1", "mlx5_0"] == "NODE"
        and read["mlx5_3", "GPU0"] == "SYS"
    )
    (many,) = {r["num_links"] for r in found.links if (r["device"], r["peer"]) == ("GPU1", "GPU2")}
    assert many == 12
    assert device(found, "GPU3")["cpus"] == "16-31" and device(found, "GPU3")["numa"] == 1


def test_a_matrix_that_was_pasted_without_tabs_is_the_same() -> None:
    text = re.sub(r"[\t ]+", "   ", machine_texts.paths({(0, 3): "SYS"}).replace("\r", ""))
    text = text.replace("CPU   Affinity", "CPU Affinity").replace("NUMA   Affinity", "NUMA Affinity")
    text = text.replace("GPU   NUMA   ID", "GPU NUMA ID")
    assert texts.nvidia_paths(text) == texts.nvidia_paths(machine_texts.paths({(0, 3): "SYS"}))


def test_older_matrices_name_their_cards_in_the_header_and_say_less() -> None:
    text = (
        "\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\n"
        "GPU0\t X \tPHB\tSYS\t0-3\nGPU1\tPHB\t X \tPIX\t4-7\nmlx5_0\tSYS\tPIX\t X \n"
    )
    found = texts.nvidia_paths(text)
    assert codes(found)["GPU0", "mlx5_0"] == "SYS" and codes(found)["mlx5_0", "GPU1"] == "PIX"
    assert device(found, "GPU1")["cpus"] == "4-7" and device(found, "GPU1")["numa"] is None
    assert not found.remarks


@pytest.mark.parametrize("cell", ["\tNV4\t", "\t\t"])
def test_a_line_that_lacks_a_cell_is_left_out_and_named(cell: str) -> None:
    whole = "\tGPU0\tGPU1\tGPU2\tCPU Affinity\nGPU0\t X \tNV4\tNV2\t0-3\nGPU1\tNV4\t X \tNV1\t0-3\n"
    short = whole.replace(
        "GPU0\t X \tNV4\tNV2", f"GPU0\t X {cell}".rstrip("\t") + ("\t" if cell == "\t\t" else "")
    )
    found = texts.nvidia_paths(short)
    assert {a for a, _ in codes(found)} == {"GPU1"}
    assert "without a code for each of 3 devices" in found.remarks[0] and "GPU0" in found.remarks[0]
    assert found.remarks[1] == "the matrix has no line for GPU0, GPU2"


def test_an_affinity_that_is_missing_is_not_taken_from_its_neighbour() -> None:
    text = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\t0-3\nGPU1\tNV4\t X \t0-3\t1\n"
    found = texts.nvidia_paths(text)
    assert "cpus" not in device(found, "GPU0") and device(found, "GPU1")["numa"] == 1
    assert found.remarks == ["GPU0 has 1 of 2 affinities: left out, as it is not known which"]


def test_a_code_that_nobody_knows_is_kept_and_told() -> None:
    found = texts.nvidia_paths("\tGPU0\tGPU1\nGPU0\t X \tZZZ\nGPU1\tNV4\t X \n")
    assert codes(found)["GPU0", "GPU1"] == "ZZZ"
    assert found.remarks == ["the code 'ZZZ' between GPU0 and GPU1 is not known"]


def test_peers_are_read_each_from_its_own_matrix() -> None:
    found = texts.nvidia_peers("w")(machine_texts.peers({(1, 3): "TNS"}))
    assert codes(found, "write")["GPU3", "GPU1"] == "TNS" and codes(found, "write")["GPU0", "GPU1"] == "OK"
    assert not found.remarks and not found.devices


def test_nvlinks_are_counted_with_their_rate() -> None:
    text = (
        "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n"
        "GPU 1: B\n\t Link 0: 25 GB/s\n"
    )
    found = texts.nvidia_nvlinks(text)
    assert [(r["name"], r["port"], r["state"], r["rate"]) for r in found.devices] == [
        ("GPU0", 0, "active", 212.496),
        ("GPU0", 1, "inactive", None),
        ("GPU1", 0, "active", 200.0),
    ]
    assert "UUID" not in str(found)


def test_gpus_come_with_their_lanes_and_the_kernels_address() -> None:
    found = texts.nvidia_gpus(
        "0, NVIDIA A100-SXM4-80GB, 00000000:3B:00.0, 8, 16, 4\n1, X, 00000000:AF:00.0, [N/A], 16, 4\nno\n"
    )
    assert device(found, "GPU0") == {
        "kind": "gpu",
        "name": "GPU0",
        "model": "NVIDIA A100-SXM4-80GB",
        "address": "0000:3b:00.0",
        "lanes": 8,
        "most_lanes": 16,
        "rate": 126.032,
        "tool": "nvidia-smi --query-gpu",
    }
    assert device(found, "GPU1")["lanes"] is None and device(found, "GPU1")["rate"] is None
    assert found.remarks == ["left out: 'no'"]


def test_ports_have_states_rates_and_interfaces_and_no_guids() -> None:
    found = texts.ibstat(machine_texts.ibstat({2: ("Down", "Polling", 10)}))
    assert device(found, "mlx5_2", "port") == {
        "kind": "port",
        "name": "mlx5_2",
        "port": 1,
        "state": "down",
        "physical": "polling",
        "rate": 10.0,
        "layer": "InfiniBand",
        "tool": "ibstat",
    }
    assert device(found, "mlx5_1", "nic")["model"] == "MT4123"
    assert "0x0" not in str(found)
    named = texts.ibdev2netdev("mlx5_0 port 1 ==> ib0 (Up)\nmlx5_bond_0 port 1 ==> bond0 (Down)\nwhat\n")
    assert [(r["name"], r["network"]) for r in named.devices] == [("mlx5_0", "ib0"), ("mlx5_bond_0", "bond0")]
    assert named.remarks == ["left out: 'what'"]


def test_memory_nodes_have_cpus_and_distances() -> None:
    text = (
        "available: 2 nodes (0-1)\nnode 0 cpus: 0 1 2 8 9\nnode 0 size: 1000 MB\nnode 0 free: 10 MB\n"
        "node 1 cpus: 3 4\nnode 1 size: 2000 MB\n"
        "node distances:\nnode   0   1 \n  0:  10  21 \n  1:  31  10 \n"
    )
    found = texts.numactl(text)
    assert device(found, "node 0", "numa")["cpus"] == "0-2,8-9"
    assert device(found, "node 1", "numa")["bytes"] == 2000 << 20
    assert codes(found, "distance") == {("node 0", "node 1"): "21", ("node 1", "node 0"): "31"}


def test_amds_links_are_told_by_their_type() -> None:
    text = """
=========================== Weight between two GPUs ============================
       GPU0         GPU1
GPU0   0            15
GPU1   15           0

========================== Link Type between two GPUs ==========================
       GPU0         GPU1
GPU0   0            XGMI
GPU1   PCIE         0

================================== Numa Nodes ==================================
GPU[0]\t\t: (Topology) Numa Node: 0
GPU[1]\t\t: (Topology) Numa Node: -1
"""
    found = texts.rocm_paths(text)
    assert codes(found) == {("GPU0", "GPU1"): "XGMI", ("GPU1", "GPU0"): "PCIE"}
    assert device(found, "GPU0")["numa"] == 0 and device(found, "GPU1")["numa"] is None
    assert not found.remarks


LSTOPO = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" nodeset="0x00000003">
    <info name="HostName" value="secret-host"/>
    <object type="Package" os_index="1" cpuset="0x0000ff00" nodeset="0x00000002">
      <object type="NUMANode" os_index="1" cpuset="0x0000ff00" nodeset="0x00000002" local_memory="4096"/>
      <object type="Bridge" bridge_type="0-1">
        <object type="PCIDev" pci_busid="0000:81:00.0" pci_type="0302 [10de:2330]">
          <object type="OSDev" name="nvml2" osdev_type="1"/>
        </object>
        <object type="PCIDev" pci_busid="0000:82:00.0">
          <object type="OSDev" name="ib0" osdev_type="2"/>
          <object type="OSDev" name="mlx5_0" osdev_type="3"/>
          <object type="OSDev" name="nvme0n1" osdev_type="0"/>
        </object>
      </object>
    </object>
    <object type="Bridge" bridge_type="0-1">
      <object type="PCIDev" pci_busid="0000:01:00.0">
        <object type="OSDev" name="eth0" osdev_type="2"/>
      </object>
    </object>
  </object>
</topology>"""


def test_a_device_has_the_memory_node_of_what_contains_it() -> None:
    found = texts.lstopo(LSTOPO)
    assert device(found, "GPU2") == {
        "kind": "gpu",
        "name": "GPU2",
        "numa": 1,
        "address": "0000:81:00.0",
        "tool": "lstopo",
    }
    assert device(found, "mlx5_0", "nic")["numa"] == 1
    assert device(found, "eth0", "nic")["numa"] is None, "the machine has two, so none is told"
    assert device(found, "node 1", "numa")["cpus"] == "8-15"
    assert "secret" not in str(found) and "nvme" not in str(found)


def test_a_machine_of_many_cpus_has_masks_of_several_words() -> None:
    mask = 'type="NUMANode" os_index="1" cpuset="0x0000ff00"'
    for text, cpus in (
        ("0x00000003,,0x00000001", "0,64-65"),
        ("0x80000000,0x00000000", "63"),
        ("oops", None),
    ):
        found = texts.lstopo(LSTOPO.replace(mask, mask.replace("0x0000ff00", text)))
        assert device(found, "node 1", "numa")["cpus"] == cpus


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LSTOPO[:400], "not a complete XML document"),
        (LSTOPO.replace('version="2.0"', 'version="1.0"'), "only the XML of hwloc 2 is supported"),
        (
            LSTOPO.replace("<topology", ("<!DOCTYPE x [<!ENTITY a 'b'>]><topology")),
            "declares XML entities, which",
        ),
        ('<topology version="2.0">' + '<object type="Group">' * 900 + "</object>" * 900 + "</topology>", ""),
    ],
)
def test_xml_that_is_not_lstopos_is_told_and_not_read(text: str, said: str) -> None:
    found = texts.lstopo(text)
    assert not found.devices
    assert said in "".join(found.remarks)


def test_this_machines_own_lstopo_and_numactl_agree_with_linux() -> None:
    for program in ("lstopo-no-graphics", "numactl"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}: apt-get install hwloc-nox numactl")
    xml = subprocess.run(
        ["lstopo-no-graphics", "--of", "xml"], capture_output=True, text=True, check=True
    ).stdout
    table = subprocess.run(["numactl", "--hardware"], capture_output=True, text=True, check=True).stdout
    linux = topology_sysfs.read(Path("/sys"))
    nodes = [
        {r["name"]: r["cpus"] for r in found.devices if r["kind"] == "numa"}
        for found in (linux, texts.lstopo(xml), texts.numactl(table))
    ]
    assert nodes[0] and nodes[0] == nodes[1] == nodes[2]


def sysfs(root: Path, **files: str) -> Path:
    for name, text in files.items():
        file = root / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return root


def test_linux_tells_ports_cards_and_memory_nodes(tmp_path: Path) -> None:
    card, port = "class__infiniband__mlx5_0", "class__infiniband__mlx5_0__ports__1"
    root = sysfs(
        tmp_path,
        **{
            "devices__system__node__node0__cpulist": "0-3",
            "devices__system__node__node0__distance": "10 21",
            "devices__system__node__node0__meminfo": "Node 0 MemTotal:       1000 kB",
            "devices__system__node__node1__cpulist": "",
            "devices__system__node__node1__distance": "21 10",
            f"{card}__device__numa_node": "1",
            f"{card}__device__net__ib0__type": "32",
            f"{port}__state": "4: ACTIVE",
            f"{port}__phys_state": "5: LinkUp",
            f"{port}__rate": "400 Gb/sec (4X NDR)",
            f"{port}__link_layer": "InfiniBand",
            "class__net__ib0__device__numa_node": "1",
            "class__net__eth0__device__numa_node": "-1",
            "class__net__eth0__speed": "25000",
            "class__net__eth0__type": "1",
            "class__net__eth0__operstate": "up",
            "class__net__eth0__address": "00:11:22:33:44:55",
            "class__net__lo__type": "772",
            "bus__pci__devices__0000:81:00.0__vendor": "0x10de",
            "bus__pci__devices__0000:81:00.0__class": "0x030200",
        },
    )
    found = topology_sysfs.read(root)
    assert device(found, "mlx5_0", "port") == {
        "kind": "port",
        "name": "mlx5_0",
        "port": 1,
        "network": "ib0",
        "layer": "InfiniBand",
        "state": "active",
        "physical": "linkup",
        "rate": 400.0,
        "tool": "sysfs",
    }
    assert device(found, "mlx5_0", "nic")["numa"] == 1
    assert device(found, "eth0", "nic")["rate"] == 25.0 and device(found, "eth0", "nic")["numa"] is None
    assert {r["name"] for r in found.devices if r["kind"] == "nic"} == {"mlx5_0", "eth0"}
    assert device(found, "node 0", "numa")["bytes"] == 1000 << 10
    assert device(found, "node 1", "numa")["cpus"] is None
    assert codes(found, "distance") == {("node 0", "node 1"): "21", ("node 1", "node 0"): "21"}
    assert "00:11" not in str(found)
    assert topology_sysfs.gpus(root) == {"NVIDIA": 1}
    assert topology_sysfs.read(tmp_path / "nowhere") == ToolOutput()


READERS = [
    texts.nvidia_paths,
    texts.nvidia_peers("r"),
    texts.nvidia_nvlinks,
    texts.nvidia_gpus,
    texts.ibstat,
    texts.ibdev2netdev,
    texts.numactl,
    texts.rocm_paths,
    texts.lstopo,
]
WHOLE = [machine_texts.paths(), machine_texts.peers(), machine_texts.ibstat(), LSTOPO]


@given(st.data())
def test_no_text_is_too_broken_to_be_read(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(WHOLE))
    cut = data.draw(st.integers(0, len(text)))
    text = text[:cut] + data.draw(st.text(max_size=20)) + text[cut + data.draw(st.integers(0, 40)) :]
    for read in READERS:
        found = read(text)
        assert all(row["kind"] for row in found.devices) and all(row["code"] for row in found.links)


@given(st.sets(st.integers(0, 500)))
def test_spans_of_numbers_are_read_back(numbers: set[int]) -> None:
    assert texts.numbers(written_spans(numbers)) == (numbers or None)
