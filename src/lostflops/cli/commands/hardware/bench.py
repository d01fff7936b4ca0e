"""Measure the bandwidth of links and collectives.

`bench collectives` times collectives between ranks, `bench links` times copies between host and GPU.
--output keeps the numbers in a recording, and `why` compares the job with them.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lostflops.cli.commands import described
from lostflops.cli.output import files
from lostflops.cli.output.waiting import waiting

COLLECTIVES = """\
Time collectives of torch.distributed between ranks, and check their results.

Starts the ranks itself on this machine, or is one rank when a launcher starts it:
  torchrun --nproc-per-node 8 --no-python lostflops bench collectives --output RUN
On several machines it also measures each machine's ranks, and one rank of each machine. With NCCL on one
machine it also runs the programs of nccl-tests that are on the PATH.
"""
LINKS = """\
Time copies between host memory and GPUs, and between GPUs, by size, kind of memory and memory node.

Writes the machine card: latency and bandwidth of each link. Without a GPU it times only copies inside host
memory. Also runs nvbandwidth if it is on the PATH.
"""


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    below = parser.add_subparsers(dest="what", metavar="WHAT", required=True, help="collectives or links")
    for name, text in (("collectives", COLLECTIVES), ("links", LINKS)):
        one = described(below, name, text)
        one.add_argument("--output", metavar="RUN", type=Path, help="also keep it in this recording")
        one.add_argument(
            "--json", metavar="F", help="also write it as one JSON document to F; '-' prints it instead"
        )
        one.add_argument("--python", metavar="PYTHON", help="the Python that has torch (default: this one)")
        one.add_argument(
            "--sizes", metavar="LIST", help="bytes, as in 8,4K,1M; 4K-1G takes each size four times the last"
        )
        one.add_argument(
            "--repeats", metavar="N", type=int, default=20, help="timed runs of each (default 20)"
        )
        if name == "links":
            one.add_argument(
                "--card", metavar="F", help="also write the slowest GPU's link card to F, for `plan --link F`"
            )
        one.add_argument("--from", dest="files", metavar="F", type=Path, action="append", help=_of(name))
        if name == "collectives":
            one.add_argument(
                "--ranks", metavar="N", type=int, help="how many to start (default: one per GPU, or 2)"
            )
            one.add_argument("--backend", metavar="NAME", choices=("nccl", "gloo"), help="nccl or gloo")
            one.add_argument(
                "--operations", metavar="LIST", help="some of the ten, and barrier (default all)"
            )


def _of(name: str) -> str:
    tool = "nccl-tests" if name == "collectives" else "`nvbandwidth -j`"
    return f"read what {tool} printed into a file instead of measuring"


def run(given: Namespace) -> None:
    from lostflops.errors import BadOption

    for written in (given.json, getattr(given, "card", None)):
        files.check_document(written, [str(file) for file in given.files or ()])
    if given.repeats < 1:
        raise BadOption("`--repeats` has to be 1 or more.")
    if given.what == "collectives":
        _collectives(given)
    else:
        _links(given)


def _collectives(given: Namespace) -> None:
    import os

    from lostflops.errors import BadOption
    from lostflops.machine.bench import collectives
    from lostflops.machine.bench import ranks as bench_ranks
    from lostflops.machine.topology import tools as topology
    from lostflops.report.machines import bandwidths

    if given.ranks is not None and not 1 <= given.ranks <= 1024:
        raise BadOption("`--ranks` has to be from 1 to 1024.")
    run = topology.place(given.output) if given.output else None
    if given.files:
        found = collectives.recorded(given.files)
    else:
        wanted = collectives.Wanted(
            operations=collectives.OPERATIONS
            if given.operations is None
            else collectives.operations(given.operations),
            sizes=collectives.sizes(given.sizes) if given.sizes else (),
            backend=given.backend or "",
            repeats=given.repeats,
        )
        python = bench_ranks.interpreter(given.python)
        rank = bench_ranks.placed(os.environ) if given.ranks is None else {}
        if rank:
            with waiting() as tell:
                lines = bench_ranks.alone(python, "collectives.py", wanted.settings(), tell, rank)
            if rank["RANK"] != "0":
                return
            found = collectives.measured(lines)
        else:
            ranks = given.ranks or bench_ranks.gpus(python) or 2
            with waiting() as tell:
                lines = bench_ranks.as_job(python, "collectives.py", wanted.settings(), ranks, tell)
            found = collectives.measured(lines)
            if found.about.get("backend") == "nccl":
                found = collectives.together([found, collectives.nccl_tests(wanted, ranks)])
    content = collectives.document(found)
    if run:
        topology.keep(content, run / collectives.file_name(found))
    _say(given, content, bandwidths.collectives(found.bandwidths, found.about, found.remarks))


def _links(given: Namespace) -> None:
    from lostflops import run_folder
    from lostflops.machine.bench import collectives, links
    from lostflops.machine.bench import ranks as bench_ranks
    from lostflops.machine.topology import tools as topology
    from lostflops.report.machines import bandwidths

    run = topology.place(given.output) if given.output else None
    loaded = None
    if given.files:
        found = links.recorded(given.files)
    else:
        sizes = collectives.sizes(given.sizes) if given.sizes else links.SIZES
        python = bench_ranks.interpreter(given.python)
        with waiting() as tell:
            wanted = links.settings(sizes, given.repeats)
            lines = bench_ranks.alone(python, "links.py", wanted, tell)
        found, loaded = links.measured(lines), links.under_load(lines)
        if found.about.get("gpus", "0") != "0":
            found = collectives.together([found, links.nvbandwidth()])
    content = links.document(found, loaded)
    if run:
        topology.keep(content, run / topology.node(run) / run_folder.LINKS)
    _say(given, content, bandwidths.links(found.bandwidths, content["cards"], found.about, found.remarks))
    if given.card:
        files.document(given.card, links.slowest(content["link_cards"]))


def _say(given: Namespace, content: Mapping[str, Any], lines: Sequence[str]) -> None:
    if not files.document(given.json, content):
        print(*lines, sep="\n")
