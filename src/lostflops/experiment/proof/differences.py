"""In what two sides differ, as far as their run folders tell: the change itself, and what else there is."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from lostflops.capture.record import new_run

from .starts import JobStart


@dataclass(frozen=True)
class UnlikeSetting:
    """One setting that is not the same on both sides, in words."""

    what: str
    before: str
    after: str


def differences(
    before: Sequence[JobStart], after: Sequence[JobStart], commands: tuple[str, str] | None = None
) -> list[UnlikeSetting]:
    """Settings of the first start of each side; `commands` are those that were run, where we ran them."""
    a, b = before[0], after[0]
    commands = commands or (new_run.command([a.path]), new_run.command([b.path]))
    found = (
        [UnlikeSetting("command", *_apart(*commands))] if all(commands) and commands[0] != commands[1] else []
    )
    for name in dict.fromkeys([*a.versions, *b.versions]):
        found += _unlike(name, a.versions.get(name), b.versions.get(name))
    found += _unlike("ranks", a.world or len(a.ranks), b.world or len(b.ranks))
    if a.host and b.host and a.host != b.host:
        found.append(UnlikeSetting("machine", "one", "another"))
    for name, column in (("backward passes per step", "micro_steps"), ("tokens per step", "tokens")):
        found += _unlike(name, *(_usual(start, column) for start in (a, b)))
    return found


def _unlike(what: str, before: object, after: object) -> Iterator[UnlikeSetting]:
    if before is not None and after is not None and before != after:
        yield UnlikeSetting(what, str(before), str(after))


def _usual(start: JobStart, column: str) -> int | None:
    """The median of all ranks together; None where a step was not told."""
    sums = [sorted(getattr(rank, column).tolist()) for rank in start.ranks]
    if any(not counts or counts[0] < 0 for counts in sums):
        return None
    return sum(counts[len(counts) // 2] for counts in sums)


def _apart(before: str, after: str) -> tuple[str, str]:
    """The words in which two commands differ, with those between them."""
    try:
        a, b = shlex.split(before), shlex.split(after)
    except ValueError:
        return before, after
    blocks = [m for m in SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks() if m.size]
    head = blocks[0].size if blocks and blocks[0].a == blocks[0].b == 0 else 0
    tail = 0
    while tail < min(len(a), len(b)) - head and a[-1 - tail] == b[-1 - tail]:
        tail += 1
    words = (shlex.join(side[head : len(side) - tail]) or "(nothing)" for side in (a, b))
    return next(words), next(words)
