"""Two recorded sides: what they tell of a change, as far as recordings that nobody interleaved can."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from glob import glob, has_magic
from pathlib import Path

from lostflops.errors import BadOption, NothingThere, shown

from . import differences, parity, recorded, starts, values
from .proven import Proven
from .running import folder as folders
from .running import loop
from .starts import JobStart
from .values import Measure, Per

Paths = str | Path | Sequence[str | Path]


def prove(
    before: Paths,
    after: Paths | None = None,
    *,
    noise: Paths = (),
    measure: Measure = "mean",
    per: Per | None = None,
) -> Proven:
    """What two recorded runs tell of the change between them, or what an experiment that was run has told.

    Each side is a run folder, a callback's output, or several of them: a list, or a glob. `noise` names three
    starts or more of one command on that machine.
    """
    if after is None:
        (path,) = _paths(before) if len(_paths(before)) == 1 else (Path(),)
        if not folders.is_one(path):
            raise BadOption(
                f"'{shown(path)}' is no experiment of `lostflops prove`, and a second run is missing.",
                "name two runs, or the commands: `lostflops prove --before CMD --after CMD`.",
            )
        return loop.proven(folders.read(path))
    sides = [[starts.read(path) for path in _paths(side)] for side in (before, after)]
    of_noise = [starts.read(path) for path in _paths(noise)]
    if of_noise and len(of_noise) < recorded.LEAST_NOISE:
        raise BadOption(
            f"--noise names {len(of_noise)} starts, and {recorded.LEAST_NOISE} or more are needed.",
            "record the same command several times.",
        )
    return _compared(sides[0], sides[1], of_noise, measure, per)


def _compared(
    before: list[JobStart], after: list[JobStart], noise: list[JobStart], measure: Measure, per: Per | None
) -> Proven:
    found = values.of(before, after, measure, per)
    alike = values.of(noise, noise, measure, per).before if noise else ()
    judged = recorded.compared(before, after, found, alike)
    return Proven(
        judged.verdict,
        judged.estimate,
        judged.resolution,
        judged.interval,
        finished=judged.estimate.pairs,
        values=found,
        by_steps=judged.by_steps,
        paired=judged.paired,
        loss=parity.losses(before, after),
        memory=parity.memory(before, after),
        differences=differences.differences(before, after),
        notes=tuple(_notes(before, after, judged.note)),
    )


def _notes(before: Sequence[JobStart], after: Sequence[JobStart], note: str) -> Iterable[str]:
    if note:
        yield note
    for side, of in (("before", before), ("after", after)):
        for start in of:
            if start.exception:
                yield f"{shown(start.path)}, {side} the change, ended with {shown(start.exception)}"
            elif start.killed:
                yield f"{shown(start.path)}, {side} the change, was killed or still runs: its log has no end"


def _paths(given: Paths) -> list[Path]:
    """The paths of one side; a glob names those that are there, in their order."""
    several = [given] if isinstance(given, (str, os.PathLike)) else list(given)
    found: list[Path] = []
    for one in map(str, several):
        if has_magic(one) and not Path(one).exists():
            matches = sorted(glob(str(Path(one).expanduser())))  # noqa: PTH207
            if not matches:
                raise NothingThere(one)
            found += map(Path, matches)
        else:
            found.append(Path(one))
    return found
