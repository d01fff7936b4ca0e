"""Show how this machine's devices are linked, and which links have faults.

Prints GPUs, network cards and ports, memory nodes and the matrices between them. Reads nvidia-smi, rocm-smi,
ibstat, ibdev2netdev, lstopo, numactl and Linux's /sys, and names the tools that are not installed.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from lostflops.cli.output import files


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument(
        "--output", metavar="RUN", type=Path, help="also keep it in this recording, for `why`"
    )
    parser.add_argument(
        "--json", metavar="F", help="also write it as one JSON document to F; '-' prints that instead"
    )
    parser.add_argument(
        "--from",
        dest="folder",
        metavar="FOLDER",
        type=Path,
        help="read what the tools printed on another machine, kept in files "
        "(docs/machine/topology.md names them)",
    )
    parser.add_argument(
        "--expected-rate",
        metavar="N",
        type=int,
        default=0,
        help="Gb/s that each active network port should have (default: as its neighbours)",
    )


def run(given: Namespace) -> None:
    from lostflops.machine.topology import tools as topology
    from lostflops.report.machines import links

    files.check_document(given.json)
    found = topology.recorded(given.folder) if given.folder else topology.here()
    content = topology.document(found, "" if given.output is None else topology.node(given.output))
    if given.output:
        topology.keep(content, topology.place(given.output) / content["node"] / topology.file_name())
    if files.document(given.json, content):
        return
    lines = links.lines(found.devices, found.links, given.expected_rate)
    print(*lines, *links.left_out(found.remarks, found.absent), sep="\n")
