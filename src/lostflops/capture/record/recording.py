"""What is to be recorded, of which command, and whether that can work at all."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from lostflops import run_folder, units
from lostflops.capture.record import on_demand
from lostflops.capture.record.annotation_file import Annotations
from lostflops.errors import BadOption, shown

if TYPE_CHECKING:
    from lostflops.capture.nsys.wrapping import Wrapping

WHAT = {
    "cuda": "kernels, copies and CUDA calls, where there is a GPU",
    "shapes": "the operators' input shapes",
    "python": "Python call stacks (about 20 % slower while recording)",
    "memory": "every allocation",
}
ELSEWHERE = {"nvtx", "os", "metrics", "nic"}
DEFAULT_WHAT = ("cuda", "shapes")
LENGTH = 5  # steps of a window that nobody gave an end
KEEP_FREE = 256 << 20

Ranges = tuple[tuple[int, int], ...]
Steps = tuple[tuple[int, int | None], ...]  # closed ranges; None: no last step
DEFAULT_STEPS: Steps = ((10, 14),)


@dataclass(frozen=True)
class StepOn:
    """What ends a step: each batch of a data loader, or each call of a function of a module."""

    module: str
    function: str | None  # "Class.method" too; None: each batch

    def __str__(self) -> str:
        return "batch" if self.function is None else f"{self.module}:{self.function}"


@dataclass(frozen=True)
class Recording:
    """One recording: the command, the folder, and what goes into it."""

    command: Sequence[str]
    run: Path
    steps: Steps = DEFAULT_STEPS
    every: int = 0  # the ranges of steps come again after so many; 0: never
    delay: float | None = None  # seconds before the window opens, in place of steps
    duration: float | None = None  # seconds after which a window ends
    ranks: Ranges | None = None
    what: Sequence[str] = DEFAULT_WHAT
    annotations: Annotations = ()
    step_on: StepOn | None = None  # what ends a step; None: the optimizer
    sockets: Path | None = None  # where processes ask on demand; None: they do not ask
    nsys: Wrapping | None = None  # None: the PyTorch profiler records

    def __post_init__(self) -> None:
        open_ended = any(last is None for _, last in self.steps)
        if open_ended and self.duration is None:
            raise BadOption(
                "A range of steps without a last step needs --duration.",
                "write `--steps 10-14`, or add `--duration 5`.",
            )
        if not self.every:
            return
        if self.delay is not None or open_ended:
            raise BadOption(
                "--every repeats windows that begin and end at known steps.",
                "write `--steps 10-14 --every 1000`, without --delay.",
            )
        ends = [last for _, last in self.steps if last is not None]
        least = max(ends) - self.steps[0][0] + 2
        if self.every < least:
            raise BadOption(
                f"Windows every {self.every} steps would overlap.",
                f"leave at least one step between two windows: `--every {least}` or more.",
            )

    @property
    def boot(self) -> Path:
        return self.run.absolute() / run_folder.BOOT  # the job may change its folder

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """What is set for the command, beside what it has anyway."""
        # An empty entry would mean the current folder, so none may arise.
        paths = [str(self.boot), *filter(None, [given.get("PYTHONPATH")])]
        found = {"PYTHONPATH": os.pathsep.join(paths)}
        return found | on_demand.environment(self.sockets, self.run) if self.sockets else found

    def shell(self, given: Mapping[str, str]) -> str:
        """The command line that a shell would be given for the same."""
        settings = (f"{name}={shlex.quote(value)}" for name, value in self.environment(given).items())
        command = " ".join([*settings, shlex.join(self.command)])
        return "\n".join([command, *(self.nsys.shell(self.run) if self.nsys else [])])


def step_on(text: str) -> StepOn | None:
    """What ends a step, of 'optimizer' (None), 'batch' or 'MODULE:FUNCTION'."""
    if text == "optimizer":
        return None
    if text == "batch":
        return StepOn("torch.utils.data.dataloader", None)
    module, colon, function = text.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *function.split("."))):
        raise BadOption(
            f"'{shown(text)}' does not say what ends a step.",
            "write `optimizer`, `batch`, or a module and its function, as in "
            "`transformers.generation.utils:GenerationMixin.generate`.",
        )
    if module == "__main__":
        raise BadOption(
            (
                "A function of the script itself cannot end a step: lostflops hooks functions when "
                "their module is imported."
            ),
            "name a function of a module that the script imports.",
        )
    return StepOn(module, function)


def steps(text: str) -> Steps:
    """The ranges of '10-14,100-104', '7' or '10-'.

    Step 0 cannot be recorded: nothing is seen before its end.
    """
    ranges = list(units.open_spans(text, "--steps", "steps"))
    for first, last in ranges:
        if first == 0:
            raise BadOption(
                "Step 0 cannot be recorded: lostflops sees the first step only when it ends.",
                f"start at step 1 or later; after the warm-up is better: `--steps 10-{max(14, last or 0)}`.",
            )
    ranges.sort(key=lambda one: one[0])
    for (first, last), (after, _) in pairwise(ranges):
        if last is None or after < last + 2:
            whole = f"{first}-" if last is None else f"{first}-{last}"
            raise BadOption(
                f"The steps {whole} run into those from {after} on.",
                "leave at least one step between two windows; the profiler is prepared in it.",
            )
    return tuple(ranges)


def seconds(option: str, text: str) -> float:
    """A time in seconds, as in '90', '1.5' or '2m'."""
    return units.seconds(text, option)


def ranks(text: str) -> Ranges:
    """The ranges of '0,8-15'."""
    return units.spans(text, "--ranks", "ranks")


def what(text: str) -> tuple[str, ...]:
    """The kinds of events of 'cuda,python'."""
    asked = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    for word in asked:
        if word in ELSEWHERE:
            raise BadOption(
                f"'{word}' is not recorded by the PyTorch profiler.",
                "add `--with nsys` to record it with Nsight Systems. The PyTorch profiler records "
                f"{', '.join(WHAT)}. "
                "Ranges of `torch.profiler.record_function` are always recorded.",
            )
        if word not in WHAT:
            raise BadOption(
                f"'{shown(word)}' is not something that can be recorded.", f"choose from {', '.join(WHAT)}."
            )
    return asked


def check(command: Sequence[str], path: str | None = None) -> None:
    """Raise before the start what would otherwise end in a job that does not start or in no recording."""
    if not command:
        raise BadOption("There is no command to record.", "write `lostflops record -- python train.py`.")
    name = command[0]
    found = shutil.which(name, path=path)
    if found is None:
        there = Path(name)
        if "/" in name and there.is_file():
            hint = f"`python {shown(name)}`?" if name.endswith(".py") else f"`chmod +x {shown(name)}`?"
            raise BadOption(f"'{shown(name)}' is not executable.", hint)
        if Path(name).is_file() and name.endswith(".py"):
            raise BadOption(f"'{shown(name)}' is a script, not a command.", f"`python {shown(name)}`?")
        raise BadOption(
            f"There is no command '{shown(name)}'" + ("." if "/" in name else " on the PATH."),
            "the command comes after `--`, as you would type it without lostflops.",
        )
    for words in (command, _first_line(Path(found))):
        flag = deaf(words)
        if flag:
            raise BadOption(
                f"`{shown(shlex.join(words[:1]))} {flag}` makes Python ignore PYTHONPATH, which lostflops "
                "needs: nothing would be recorded.",
                "leave out that flag while recording.",
            )


def deaf(words: Sequence[str]) -> str:
    """The flag of a Python command line that keeps PYTHONPATH or sitecustomize out, if there is one."""
    if not words or not re.fullmatch(r"(python|pypy)[\d.]*t?", Path(words[0]).name):
        return ""
    rest = iter(words[1:])
    for word in rest:
        if not word.startswith("-") or word in ("-", "--") or word.startswith("--"):
            return ""
        for place, letter in enumerate(word[1:], start=2):
            if letter in "EIS":
                return f"-{letter}"
            if letter in "cm":
                return ""
            if letter in "WX":  # takes a value: what is left of this word, or the next one
                if place == len(word):
                    next(rest, None)
                break
    return ""


def _first_line(program: Path) -> list[str]:
    """The interpreter and its flags, when the program is a script."""
    try:
        with program.open("rb") as file:
            line = file.readline(512)
    except OSError:
        return []
    if not line.startswith(b"#!"):
        return []
    words = line[2:].decode(errors="replace").split()
    return words[1:] if words and Path(words[0]).name == "env" else words
