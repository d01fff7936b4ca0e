"""The sbatch script that runs an exercise on one node of a cluster."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lostflops.capture.slurm.script import directive
from lostflops.errors import BadOption, shown


@dataclass(frozen=True)
class ExerciseJob:
    """What `lab submit` was asked for; `logs` is absolute."""

    exercise: str
    command: Sequence[str]
    logs: Path
    gpus: int = 0
    cpus: int | None = None
    directives: Sequence[str] = ()  # further options of sbatch
    setup: Sequence[str] = ()  # lines of shell

    def script(self) -> str:
        """The whole script. Raises BadOption for what would end a line of it."""
        options = [
            f"--job-name=lab-{self.exercise}", "--nodes=1", "--ntasks=1",
            *([f"--gpus-per-node={self.gpus}"] if self.gpus else []),
            *([f"--cpus-per-task={self.cpus}"] if self.cpus else []),
            f"--output={str(self.logs).replace('%', '%%')}/%j.out", *self.directives,
        ]  # fmt: skip
        for line in self.setup:
            if not line.isprintable():
                raise BadOption(f"'{shown(line)}' holds a character that cannot be printed.")
        return "\n".join(
            [
                "#!/bin/bash",
                *map(directive, options),
                "# Written by `lostflops lab submit`: both sides run on this node, one after the other.",
                *self.setup,
                f"exec {shlex.join(self.command)}",
                "",
            ]
        )
