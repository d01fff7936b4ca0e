"""Learn on small training jobs with a known fault.

`lostflops lab` lists the exercises, `lostflops lab 1a` runs one: it records a small job with a fault and
without it on this machine, shows both first pages and the fix, and ends with what must be seen beside what
was observed. Nothing is downloaded. `lostflops lab simulate` writes the traces of a job that never ran, with
a fault where you want one, and says what is true of it.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from lostflops.cli.commands import Command, declare, described, found_in

from . import lab_commands as offered

# So that `--help` answers at once, the exercises, which import polars, are not read for it: a test compares.
EXERCISES = {
    "0": "Topology and collectives",
    "1a": "Slow data loading",
    "1a-annotate": "Annotate your own ranges (optional)",
    "1b": "fp32 against bf16",
    "1c": "Gradient accumulation",
    "2a": "ZeRO-2 against ZeRO-3",
    "2b": "Communication without overlap",
    "3a": "The bubble of a pipeline",
    "3a-tensor": "Tensor parallelism",
    "3a-tp-pp": "Tensor and pipeline parallelism together",
    "dialogue": "A dialogue with and without a persistent KV cache",
    "g1": "LoRA and loader workers",
    "g2": "Activation offload",
    "g3": "Unified memory: LoRA against full fine-tuning",
    "g4": "fp16 and its loss scale",
    "g5": "FP8",
    "queries": "Queries over data in host memory",
    "recommender": "A recommender of three processes",
    "services": "Three services, and a replica that drifts",
    "streaming": "Weight streaming over budgets",
}


def actions() -> Mapping[str, Command]:
    """What the lab can do besides exercises: each is a file in `lab_commands/`, found by being there."""
    return found_in(offered)


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    below = parser.add_subparsers(dest="action", metavar="EXERCISE")
    for name, title in EXERCISES.items():
        one = described(below, name, f"{title}.")
        one.add_argument(
            "--device",
            choices=("cpu", "cuda"),
            help="where to train (default cuda where there are enough GPUs, else cpu)",
        )
        one.add_argument(
            "--output", metavar="DIR", type=Path, default=Path("lab-runs"), help="default lab-runs"
        )
        one.add_argument("--json", metavar="F", help="also write the checks to F; '-' prints them instead")
    declare(below, actions(), words)


def run(given: Namespace) -> None:
    if given.action is None:
        for name, title in EXERCISES.items():
            print(f"{name:13}{title}")
        print("\nlostflops lab 1a          runs an exercise: two minutes at most")
        print("lostflops lab submit 1a   runs it as a job of Slurm")
        print("lostflops lab check DIR   compares what an exercise recorded with what it expects")
        print("lostflops lab compare DIR says what its fix changed")
        print("lostflops lab simulate    writes the traces of a job that never ran")
        return
    if given.action in actions():
        actions()[given.action].run(given)
        return
    _play(given)


def _play(given: Namespace) -> None:
    import sys

    from rich.console import Console

    from lostflops.cli.output import files
    from lostflops.errors import Unheld
    from lostflops.lab.exercises import shown
    from lostflops.lab.exercises.listed import exercises
    from lostflops.lab.exercises.running import played

    files.check_document(given.json, [])
    exercise = exercises()[given.action]
    device = shown.device(exercise, given.device)
    quiet = given.json == "-"
    console = Console(file=sys.stderr if quiet else sys.stdout)
    shown.introduction(exercise, device, console)
    ran = played(exercise, given.output, device, lambda text: console.print(text, markup=False))
    shown.pages(ran, console)
    shown.checks(ran, console)
    if given.json is not None:
        files.document(given.json, ran.to_json())
    if not ran.passed:
        raise Unheld
