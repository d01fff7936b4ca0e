"""Runs an exercise: records both sides, keeps their pages, and sets the expected beside the observed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lostflops.errors import LostflopsError, shown
from lostflops.lab.exercises.exercise import WINDOW, Check, Exercise, ExerciseSide, Observed
from lostflops.report.document import document
from lostflops.version import __version__

SCRIPTS = "lostflops.lab.exercises.scripts"
LONGEST = 300.0  # s for one side
LAST = 3  # lines of a log that an error shows
SIDES = ("faulty", "fixed")
OURS = (sys.executable, "-m", "lostflops")
ABOUT = "run.json"  # beside the recording of a side

Say = Callable[[str], None]


@dataclass(frozen=True)
class Ran:
    """What came out: where it lies, the observed sides, and the checks."""

    exercise: Exercise
    folder: Path
    observed: Sequence[Observed]
    checks: Sequence[Check]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """The exercise, whether all is as expected, and the checks."""
        checks = [asdict(check) for check in self.checks]
        return {"exercise": self.exercise.name, "passed": self.passed, "checks": checks}


@dataclass(frozen=True)
class RunFolders:
    """The folders of one run of an exercise, named by the time: `logs/` and `profiler/`, as on a cluster."""

    folder: Path
    stamp: str

    def logs(self, side: str) -> Path:
        return self.folder / "logs" / "nodes-1" / f"{self.stamp}-{side}"

    def profiler(self, exercise: Exercise, side: str) -> Path:
        options = dict(zip(exercise.words[::2], exercise.words[1::2], strict=False))
        model = options.get("--model", "llama-tiny" if exercise.script == "train" else exercise.script)
        batch = options.get("--micro-batch-size", "8")
        micro = options.get("--gradient-accumulation-steps", "1")
        name = f"{model}-{self.stamp}-n1-g{exercise.ranks}-mbs{batch}-gas{micro}-{side}"
        return self.folder / "profiler" / name


def played(exercise: Exercise, output: Path, device: str, say: Say) -> Ran:
    """Run it below `output`. Raises LostflopsError where torch is missing, and where a run fails."""
    missing = [name for name in ("torch", *exercise.needs) if find_spec(name) is None]
    if missing:
        raise LostflopsError(
            f"The lab trains small models with {' and '.join(missing)}, which this Python lacks.",
            f"`pip install {' '.join(missing)}`.",
        )
    place = RunFolders(output / exercise.name, time.strftime("%Y%m%d-%H%M%S"))
    if exercise.sides is None:
        checks = _commands(exercise, place, say)
        ran = Ran(exercise, place.folder, (), checks)
    else:
        assert exercise.check is not None
        observed = [
            recorded(exercise, side, name, place, device, say)
            for name, side in zip(SIDES, exercise.sides, strict=True)
        ]
        ran = Ran(exercise, place.folder, observed, exercise.check(*observed))
    place.folder.mkdir(parents=True, exist_ok=True)
    _write(place.folder / f"result-{place.stamp}.json", ran.to_json())
    return ran


def command(exercise: Exercise, side: ExerciseSide, device: str, truth: Path | None = None) -> list[str]:
    """What trains: Python alone, or torchrun's module around it."""
    start = [sys.executable, "-m"]
    if exercise.ranks > 1:
        start += ["torch.distributed.run", "--nproc-per-node", str(exercise.ranks), "-m"]
    of_device = ["--device", device] if exercise.script == "train" else []
    told = [] if truth is None else ["--truth", str(truth)]
    steps = ["--steps", str(exercise.steps)] if exercise.recorded else []
    return [*start, f"{SCRIPTS}.{exercise.script}", *exercise.words, *side.words, *of_device, *steps, *told]


def recorded(
    exercise: Exercise, side: ExerciseSide, name: str, place: RunFolders, device: str, say: Say
) -> Observed:
    """Record one side, and keep what is known of it beside the recording."""
    logs, profiler = place.logs(name), place.profiler(exercise, name)
    logs.mkdir(parents=True, exist_ok=True)
    profiler.mkdir(parents=True, exist_ok=True)
    run, truth = profiler / "recording", profiler / "truth.jsonl"
    words = command(exercise, side, device, truth)
    if exercise.recorded:
        first, last = WINDOW
        say(f"recording {side.what}")
        record = ["record", "--steps", f"{first}-{last}", "--output", str(run), "--", *words]
        _printed([*OURS, *record], logs)
    else:
        say(f"running {side.what}")
        _printed(words, logs)
    said: Mapping[str, Any] = json.loads(truth.read_text().splitlines()[-1])
    about = {"exercise": exercise.name, "side": name, "what": side.what, "command": words, "truth": said}
    _write(profiler / ABOUT, {"lostflops": __version__, **about})
    observed = Observed(run, said)
    if exercise.recorded:
        (profiler / "findings.json").write_bytes(document(observed.page))
    return observed


def _commands(exercise: Exercise, place: RunFolders, say: Say) -> list[Check]:
    """Run commands of lostflops, keep what they print, and check the documents of those that write one."""
    assert exercise.check_documents is not None
    logs = place.logs("measured")
    logs.mkdir(parents=True, exist_ok=True)
    documents: list[Any] = []
    for words in exercise.commands:
        say(f"lostflops {' '.join(words)}")
        target = logs / f"{words[0]}.json"
        writes = words[0] == "bench"
        printed = _printed([*OURS, *words, *(["--json", str(target)] if writes else [])], logs)
        if writes:
            documents.append(json.loads(target.read_text()))
        else:
            say(printed.rstrip())
    return exercise.check_documents(documents)


def _printed(words: Sequence[str], logs: Path) -> str:
    """Run a command; what it printed, which is kept in the logs, too."""
    with (logs / "log.out").open("a+") as out, (logs / "log.err").open("a+") as err:
        at = out.tell()
        try:
            done = subprocess.run(
                list(words), stdout=out, stderr=err, check=False, stdin=subprocess.DEVNULL, timeout=LONGEST
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise LostflopsError(
                f"The run took longer than {LONGEST:.0f} s and was ended.", f"read {shown(logs / 'log.err')}."
            ) from error
        if done.returncode:
            err.seek(0)
            last = " / ".join(err.read().strip().splitlines()[-LAST:])
            raise LostflopsError(
                f"The run ended with status {done.returncode}: {shown(last)}",
                f"all that it printed lies in {shown(logs)}.",
            )
        out.seek(at)
        return out.read()


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")
