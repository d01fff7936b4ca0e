"""The names of a Paraver trace's types and values, and the labels of its rows."""

from __future__ import annotations

from . import values as v
from .records import RankRecords
from .values import EventValues

HEAD = """\
DEFAULT_OPTIONS

LEVEL               THREAD
UNITS               NANOSEC
LOOK_BACK           100
SPEED               1
FLAG_ICONS          ENABLED
NUM_OF_STATE_COLORS 1000
YMAX_SCALE          37


DEFAULT_SEMANTIC

THREAD_FUNC         State As Is


"""
# Paraver reads the numbers of types and values with 32 bits.
LARGEST = 2**31 - 1


def one_line(name: str) -> str:
    """A name on a line of its own: a line that begins with a number sign would be a comment."""
    said = "".join(c if c.isprintable() else " " for c in name).strip()
    return said or "(no name)"


def pcf(values: EventValues) -> str:
    """Every type by itself, with the names of its values."""
    blocks = [HEAD]
    titles: dict[int, str] = dict(v.CODED)
    for domain, kind in values.domains.items():
        if domain is not None or kind not in titles:
            titles[kind] = f"NVTX ranges: {one_line(domain)}" if domain else "NVTX ranges"
    for kind, title in sorted(titles.items()):
        names = {name: number for name, number in values.names.get(kind, {}).items() if number <= LARGEST}
        if names:
            said = "".join(f"{number}      {one_line(name)}\n" for name, number in names.items())
            blocks.append(f"EVENT_TYPE\n0    {kind}    {title}\nVALUES\n0      End\n{said}\n\n")
    for kind, title in v.NUMBERS.items():
        blocks.append(f"EVENT_TYPE\n0    {kind}    {title}\n\n\n")
    for name, kind in values.counters.items():
        blocks.append(f"EVENT_TYPE\n0    {kind}    {one_line(name)}\nPRECISION {v.PRECISE}\n\n\n")
    return "".join(blocks)


def row(tasks: list[RankRecords], nodes: list[list[int]]) -> str:
    """The labels of processors, nodes, tasks and rows."""
    gpus = [f"node{n}.gpu{slot}" for n, node in enumerate(nodes) for slot in range(len(node))]
    levels = {
        "CPU": gpus,
        "NODE": [f"node{n}" for n in range(len(nodes))],
        "APPL": ["job"],
        "TASK": [f"rank {task.rank}" for task in tasks],
        "THREAD": [label for task in tasks for label in task.labels],
    }
    blocks = [
        f"LEVEL {level} SIZE {len(names)}\n" + "".join(f"{n}\n" for n in names)
        for level, names in levels.items()
    ]
    return "\n".join(blocks)
