"""Which process wrote a profiler's file: what tells it, and which files are of one process.

One process that is recorded several times is one rank. Its number alone does not name it: in containers every
rank may be process 1.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lostflops import run_folder
from lostflops.ingest.part import Part, Process

WINDOW = re.compile(run_folder.A_TRACE)
# As `tensorboard_trace_handler` names a file: worker, time in ns or ms.
WORKER = re.compile(r"(.+)\.\d{10,}\.pt\.trace\.json(?:\.gz)?")
# A row of the host, whose process number is the process's own.
HOST_ROW = re.compile(
    rb'"cat"\s*:\s*"(?:cpu_op|Operator|user_annotation|cuda_runtime|Runtime)"[^{}]{0,4096}?"pid"\s*:\s*"?(\d{1,18})\b'
)
# Ranks in something else than the job, as in 'node_rank_1' and 'tp_rank3'.
OTHER_RANKS = "".join(
    rf"(?<!(?<![a-z]){of}[-_.])"
    for of in ("local", "node", "group", "tp", "pp", "dp", "cp", "ep", "mp", "tensor", "pipeline", "data")
)
# The word that names a rank best comes first.
RANK_IN_NAME = tuple(
    re.compile(rf"{OTHER_RANKS}(?:(?<![a-z])|(?<=global)){word}[-_. =]?(\d{{1,6}})(?!\d)", re.IGNORECASE)
    for word in ("rank", "procid", "proc", "worker")
)
# A pod of Kubeflow's, as TensorBoard's handler names files by host, process and time: worker 0 is rank 1.
POD = re.compile(r"(?<=[a-z0-9])-worker-\d+(?=_\d+\.\d{10,}\.)")
PACKAGE = re.compile(r"[a-z]{1,20} \d[\w.+-]{0,40}")
FRAMEWORK = re.compile(r"[a-z]{1,20}")
UNIT = re.compile(r"[a-z0-9_]{1,20}")
LOOKED_THROUGH = 1 << 20  # bytes


def recorded(path: Path, frame: Mapping[str, Any]) -> str | None:
    """The identity that `record` gave a process whose rank no launcher told; None for any other."""
    said = _said(frame)
    if said:
        identity = said.get("process")
        return identity if isinstance(identity, str) else None
    window = WINDOW.fullmatch(path.name)
    if window is None:
        return None
    log = path.with_name(run_folder.step_log(window["log"]))
    try:
        with log.open("rb") as file:
            who = json.loads(file.readline(1 << 16))
    except (OSError, ValueError):
        return None
    if not isinstance(who, dict) or who.get("source") != run_folder.ASSUMED:  # pyright: ignore[reportUnknownMemberType]
        return None
    return f"{path.parent.resolve()}/{window['log']}"


def last_step(frame: Mapping[str, Any]) -> int | None:
    """The last step that `record` saw from end to end in its window."""
    last = _said(frame).get("last")
    return last if isinstance(last, int) and last >= 0 else None


def packages(frame: Mapping[str, Any]) -> list[str]:
    """The training packages of the process with their versions, as in 'torch 2.13.0+cpu'."""
    told: Any = _said(frame).get("versions")
    if not isinstance(told, Mapping):
        return []
    named: Mapping[Any, Any] = told  # pyright: ignore[reportUnknownVariableType]
    return [text for name, version in named.items() if PACKAGE.fullmatch(text := f"{name} {version}")]


def frameworks(frame: Mapping[str, Any]) -> str | None:
    """The frameworks that drive the job, by the names that remedies know them by, with blanks between."""
    return _words(frame, "frameworks", FRAMEWORK)


def bf16_units(frame: Mapping[str, Any]) -> str | None:
    """The instructions of the process's CPU that multiply bf16, as Linux names them, with blanks between."""
    return _words(frame, "bf16_units", UNIT)


def _words(frame: Mapping[str, Any], key: str, of: re.Pattern[str]) -> str | None:
    """The words of this form in a list that `record` added, with blanks between."""
    told: Any = _said(frame).get(key)
    words: list[Any] = told if isinstance(told, list) else []  # pyright: ignore[reportUnknownVariableType]
    return " ".join(word for word in words[:20] if isinstance(word, str) and of.fullmatch(word)) or None


def _said(frame: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `record` added to the trace."""
    said: Any = frame.get(run_folder.IN_TRACE)
    return said if isinstance(said, Mapping) else {}  # pyright: ignore[reportUnknownVariableType]


def number(path: Path) -> int | None:
    """The number of the process, from the first rows of its host."""
    try:
        with path.open("rb") as file:
            head = file.read(LOOKED_THROUGH)
        if head[:2] == b"\x1f\x8b":
            head = zlib.decompressobj(31).decompress(head, LOOKED_THROUGH)
    except (OSError, zlib.error):
        return None
    found = HOST_ROW.search(head)
    return int(found[1]) if found else None


def rank_in_name(name: str) -> int | None:
    """The rank that a file's name gives by a word: 'rank3.json', 'worker0_rank_3', 'report.procid-3'."""
    named: list[set[str]] = [set(word.findall(POD.sub("", name))) for word in RANK_IN_NAME]
    best = next((found for found in named if found), set[str]())
    return int(best.pop()) if len(best) == 1 else None


def worker(name: str) -> str | None:
    """Who the file's name says it is of, where it has the form that TensorBoard's plugin asks for."""
    found = WORKER.fullmatch(name)
    return found[1] if found else None


def one(parts: Sequence[Part], epochs: Sequence[int]) -> list[int]:
    """For each part the first part of the same process: its own place where there is none before.

    Parts that were recorded at the same time are of different processes, or copies of one file.
    """
    first = list(range(len(parts)))
    order = sorted(first, key=lambda n: parts[n].start + epochs[n])
    groups: list[list[int]] = []
    for place in order:
        mine = parts[place]
        for group in groups:
            last = parts[group[-1]]
            apart = mine.start + epochs[place] >= last.end + epochs[group[-1]]
            if apart and _same(last.process, mine.process) and _may_be_one(last, mine):
                group.append(place)
                break
        else:
            groups.append([place])
    for group in groups:
        for place in group:
            first[place] = min(group)
    return first


def _may_be_one(one: Part, other: Part) -> bool:
    return one.rank is None or other.rank is None or one.rank == other.rank


def _same(one: Process | None, other: Process | None) -> bool:
    if one is None or other is None or one.device != other.device:
        return False
    if one.identity is not None or other.identity is not None:
        return one.identity == other.identity
    if one.number is None or one.number != other.number:
        return False
    if one.host is not None or other.host is not None:
        return one.host == other.host
    if one.worker is not None or other.worker is not None:
        return one.worker == other.worker
    # Nothing names the host: a number that two processes may share needs steps that go on.
    return one.steps is not None and other.steps is not None and one.steps[1] < other.steps[0]
