"""Run an exercise as a job of Slurm: writes an sbatch script and submits it.

    lostflops lab submit 1a --partition gpu --account project --time 0:20:00

The job runs both sides of the exercise on one node, one after the other on the same devices, and ends with
what must be seen beside what was observed. Then `lostflops lab check` shows it again. lostflops and torch
have to be at the same path on the node; `--setup` brings them in.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from lostflops.cli.commands.recording.schedulers import slurm


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("exercise", metavar="EXERCISE", help="as `lostflops lab` lists them")
    parser.add_argument(
        "--output", metavar="DIR", type=Path, default=Path("lab-runs"), help="default lab-runs"
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        help="where to train (default cuda where the node has enough GPUs)",
    )
    add = parser.add_argument_group("the job").add_argument
    add("--gpus", metavar="N", type=int, default=0, help="how many GPUs to ask for (default none)")
    add("--cpus", metavar="N", type=int, help="how many CPU cores to ask for")
    slurm.add_site_options(add)
    slurm.add_setup(add)
    slurm.add_submitting(parser)


def run(given: Namespace) -> None:
    import os
    import shlex
    import time

    from lostflops.errors import BadOption, suggestion
    from lostflops.lab.exercises.job_script import ExerciseJob
    from lostflops.lab.exercises.listed import exercises

    exercise = exercises().get(given.exercise)
    if exercise is None:
        raise BadOption(
            f"There is no exercise called '{given.exercise}'.{suggestion(given.exercise, exercises())}",
            "`lostflops lab` lists them.",
        )
    for name, least in (("gpus", 0), ("cpus", 1)):
        value: int | None = getattr(given, name)
        if value is not None and value < least:
            raise BadOption(f"--{name} cannot be {value}.")
    if given.device == "cuda" and given.gpus < exercise.ranks:
        raise BadOption(
            f"Exercise {exercise.name} needs {exercise.ranks} GPUs; {given.gpus} are asked for.",
            f"add `--gpus {exercise.ranks}`.",
        )
    output: Path = given.output.absolute()
    job = ExerciseJob(
        exercise=exercise.name,
        command=[
            *slurm.lostflops_here(), "lab", exercise.name, "--output", str(output),
            *(["--device", given.device] if given.device else []),
        ],
        logs=output / exercise.name / "logs" / "nodes-1",
        gpus=given.gpus,
        cpus=given.cpus,
        directives=slurm.directives(given),
        setup=given.setup,
    )  # fmt: skip
    script = job.script()
    if given.dry_run:
        print(script, end="")
        return
    target = job.logs / f"{time.strftime('%Y%m%d-%H%M%S')}.sbatch"
    folder = shlex.quote(os.path.relpath(str(output / exercise.name)))
    slurm.submit(
        script,
        target,
        wait=given.wait,
        then=lambda number: (
            f"its output goes to {os.path.relpath(job.logs)}/{number}.out; "
            f"when it has ended: lostflops lab check {folder}"
        ),
    )
