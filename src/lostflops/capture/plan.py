"""What is to be recorded, of which command, and whether that can work at all."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lostflops.capture.annotation_file import Annotations
from lostflops.errors import BadOption, shown

WHAT = {
    "cuda": "kernels, copies and CUDA calls, where there is a GPU",
    "shapes": "the operators' input shapes",
    "python": "Python call stacks (about 20 % slower while recording)",
    "memory": "every allocation",
}
ELSEWHERE = {"nvtx", "os", "metrics", "nic"}
DEFAULT_WHAT = ("cuda", "shapes")
DEFAULT_STEPS = (10, 14)
KEEP_FREE = 256 << 20

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Plan:
    """One recording: the command, the folder, and what goes into it."""

    command: Sequence[str]
    run: Path
    steps: tuple[int, int] = DEFAULT_STEPS
    ranks: Ranges | None = None
    what: Sequence[str] = DEFAULT_WHAT
    annotations: Annotations = ()

    @property
    def boot(self) -> Path:
        return self.run.absolute() / "boot"  # the job may change its folder

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """What is set for the command, beside what it has anyway."""
        # An empty entry would mean the current folder, so none may arise.
        paths = [str(self.boot), *filter(None, [given.get("PYTHONPATH")])]
        return {"PYTHONPATH": os.pathsep.join(paths)}

    def shell(self, given: Mapping[str, str]) -> str:
        """The command line that a shell would be given for the same."""
        settings = (f"{name}={shlex.quote(value)}" for name, value in self.environment(given).items())
        return " ".join([*settings, shlex.join(self.command)])


def steps(text: str) -> tuple[int, int]:
    """The first and last step of 'A-B' or 'A'. Step 0 cannot be recorded: nothing is seen before its end."""
    found = re.fullmatch(r"(\d{1,12})(?:-(\d{1,12}))?", text)
    if not found:
        raise BadOption(f"'{shown(text)}' names no steps.", "write `--steps 10-14`, or one number.")
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
        raise BadOption(
            f"The steps '{shown(text)}' end before they begin.", f"write `--steps {last}-{first}`."
        )
    if first == 0:
        raise BadOption(
            "Step 0 cannot be recorded: lostflops first learns of the steps when it has ended.",
            f"begin with step 1, better after the warm-up: `--steps 10-{max(14, last)}`.",
        )
    return first, last


def ranks(text: str) -> Ranges:
    """The ranges of '0,8-15'."""
    ranges: list[tuple[int, int]] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip())
        if not found or int(found[2] or found[1]) < int(found[1]):
            raise BadOption(f"'{shown(text)}' names no ranks.", "write `--ranks 0,8-15`.")
        ranges.append((int(found[1]), int(found[2] or found[1])))
    return tuple(ranges)


def what(text: str) -> tuple[str, ...]:
    """The kinds of events of 'cuda,python'."""
    asked = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    for word in asked:
        if word in ELSEWHERE:
            raise BadOption(
                f"'{word}' is not recorded by the PyTorch profiler.",
                f"it needs Nsight Systems, which `record` does not start yet; there are {', '.join(WHAT)}. "
                "Ranges of `torch.profiler.record_function` are always recorded.",
            )
        if word not in WHAT:
            raise BadOption(
                f"There is nothing called '{shown(word)}' to record.", f"choose from {', '.join(WHAT)}."
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
                f"`{shown(shlex.join(words[:1]))} {flag}` makes Python ignore PYTHONPATH, by which lostflops "
                "gets into the job: nothing would be recorded.",
                "leave out that flag for the recording.",
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
