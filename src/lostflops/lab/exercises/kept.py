"""What an exercise left, opened again: on a login node, after a job of Slurm, or a year later."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from lostflops.errors import LostflopsError, shown

from .exercise import Exercise, Observed
from .listed import exercises
from .running import ABOUT, SIDES, Ran


@dataclass(frozen=True)
class KeptExercise:
    """Both sides of one run of an exercise, in the order of SIDES, and the folder of all its runs."""

    exercise: Exercise
    folder: Path
    observed: tuple[Observed, Observed]

    @classmethod
    def at(cls, folder: Path) -> KeptExercise:
        """The newest run in an exercise's folder, or the one to which a side's folder belongs.

        Raises LostflopsError where there is none, where a side is missing, or where it was not written by an
        exercise that this version has.
        """
        side = _side(folder)
        places = {name: side.with_name(side.name.rpartition("-")[0] + f"-{name}") for name in SIDES}
        for name, place in places.items():
            if not (place / ABOUT).is_file():
                raise LostflopsError(
                    f"The {name} side is missing: {shown(place)} holds no {ABOUT}.",
                    "run the exercise again.",
                )
        told = [_told(place) for place in places.values()]
        exercise = exercises().get(str(told[0].get("exercise")))
        if exercise is None or exercise.check is None or exercise.name != told[1].get("exercise"):
            raise LostflopsError(
                f"'{shown(side)}' is of no exercise that this version has.", "`lostflops lab` lists them."
            )
        faulty, fixed = (
            Observed(place / "recording", one["truth"])
            for place, one in zip(places.values(), told, strict=True)
        )
        return cls(exercise, side.parent.parent, (faulty, fixed))

    def checked(self) -> Ran:
        """The run with its checks made again."""
        assert self.exercise.check is not None
        return Ran(self.exercise, self.folder, self.observed, self.exercise.check(*self.observed))


def _side(folder: Path) -> Path:
    """The folder of a side: the one given, or the newest below an exercise's."""
    if (folder / ABOUT).is_file() and folder.name.endswith(tuple(f"-{name}" for name in SIDES)):
        return folder.absolute()
    found = [path.parent for path in folder.glob(f"profiler/*-{SIDES[0]}/{ABOUT}")]
    if not found:
        raise LostflopsError(
            f"'{shown(folder)}' holds no run of an exercise with two sides.",
            "give the exercise's folder, such as lab-runs/1a, or one in its profiler/.",
        )
    return max(found, key=lambda path: (path / ABOUT).stat().st_mtime_ns).absolute()


def _told(side: Path) -> Mapping[str, Any]:
    try:
        told: Any = json.loads((side / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LostflopsError(
            f"'{shown(side / ABOUT)}' cannot be read: {shown(str(error))}.", "run the exercise again."
        ) from error
    if not isinstance(told, dict) or not isinstance(cast(Mapping[str, Any], told).get("truth"), dict):
        raise LostflopsError(
            f"'{shown(side / ABOUT)}' does not say what is true of the run.", "run the exercise again."
        )
    return cast(Mapping[str, Any], told)
