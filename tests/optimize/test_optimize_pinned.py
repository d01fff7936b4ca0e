"""Host memory for a GPU, as far as a machine without one can tell."""

from __future__ import annotations

import gc
import os
import re
from pathlib import Path

import pytest
import torch

from lostflops.optimize.device import numa, pinned
from lostflops.optimize.refused import Refused


class Runtime:
    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.registered: dict[int, int] = {}

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:  # noqa: N802
        self.registered[address] = nbytes
        return self.code

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        del self.registered[address]
        return 0


def flags_of(address: int) -> list[str]:
    """What the kernel knows of the mapping that the address is in."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= address < int(found[2], 16)
        if inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    return []


def test_it_is_as_long_as_asked_for_touched_and_left_out_of_forks() -> None:
    memory = pinned.mapped(10_000_001)
    assert memory.shape == (10_000_001,) and memory.dtype == torch.uint8
    assert not memory.any()
    memory[-1] = 7
    assert int(memory[-1]) == 7
    assert "dc" in flags_of(memory.data_ptr())  # do not copy on fork
    assert pinned.mapped(0).numel() == 0


def test_a_forked_child_ends_with_the_parents_memory_as_it_was() -> None:
    runtime = Runtime()
    memory = pinned.pinned(8192, runtime, lambda: None)
    child = os.fork()
    if not child:
        del memory
        gc.collect()
        os._exit(len(runtime.registered))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1  # the child has unregistered nothing
    assert runtime.registered == {memory.data_ptr(): 8192}


def test_it_is_registered_for_as_long_as_it_lives() -> None:
    runtime = Runtime()
    memory = pinned.pinned(4097, runtime, lambda: None)
    assert runtime.registered == {memory.data_ptr(): 4097}
    part = memory[5:9]
    del memory
    gc.collect()
    assert len(runtime.registered) == 1  # a view keeps it
    del part
    gc.collect()
    assert runtime.registered == {}


def test_a_registration_that_fails_leaves_no_error_for_the_next_launch() -> None:
    cleared: list[bool] = []
    with pytest.raises(Refused, match="cannot be pinned"):
        pinned.pinned(4096, Runtime(code=2), lambda: cleared.append(True))
    assert cleared == [True]


def test_a_gpus_own_memory_is_no_node_of_host_memory(tmp_path: Path) -> None:
    """As on a GH200: node 0 is the CPU's, others are the GPU's and have no CPU."""
    for node, cpus in ((0, "0-71"), (1, ""), (2, "")):
        folder = tmp_path / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus + "\n")
    for slot, node in (("0009:01:00.0", 0), ("0009:02:00.0", 1)):
        (tmp_path / "bus/pci/devices" / slot).mkdir(parents=True)
        (tmp_path / "bus/pci/devices" / slot / "numa_node").write_text(f"{node}\n")
    assert numa.node_at("0009:01:00.0", tmp_path) is None  # there is one node to choose
    assert numa.node_at("0009:02:00.0", tmp_path) is None
