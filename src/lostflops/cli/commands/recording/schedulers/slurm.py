"""Record a training job on a Slurm cluster: writes an sbatch script around the command and submits it.

    lostflops launch slurm --nodes 4 --gpus-per-node 8 --time 1:00:00 -- torchrun train.py

Give the command that you would type on one node. torchrun and accelerate get the options for several nodes, a
plain `python train.py` is started once per GPU, and srun, mpirun or your own script run as they are. All
nodes record into one folder. The job's output ends with what was recorded; then ask `lostflops why RUN`.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from lostflops.cli.commands.recording import record

WITH_VALUE = {  # options of sbatch that most sites want
    "time": ("TIME", "the time limit, as in 1:30:00"),
    "partition": ("NAME", "the partition, or several with commas"),
    "account": ("NAME", "the account to charge"),
    "qos": ("NAME", "the quality of service"),
    "constraint": ("LIST", "features that the nodes need"),
    "reservation": ("NAME", "the reservation to run in"),
}


HERE = ("job", "output", "print", "monitor")  # options of `record` that are not passed on to it


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    from lostflops.capture.slurm.script import RUNTIMES

    record.arguments(parser, ())
    parser.usage = "lostflops launch slurm [options] -- COMMAND"
    add = parser.add_argument_group("the job").add_argument
    add("--nodes", metavar="N", type=int, default=1, help="how many nodes (default 1)")
    add("--gpus-per-node", metavar="N", type=int, default=0, help="how many GPUs per node (default none)")
    add(
        "--tasks-per-node",
        metavar="N",
        type=int,
        help="srun tasks per node, instead of what the command needs",
    )
    add("--cpus-per-task", metavar="N", type=int, help="CPU cores of each task")
    add("--job-name", metavar="NAME", help="the job's name (default that of the script)")
    add_site_options(add)
    add = parser.add_argument_group("on the nodes").add_argument
    add("--module", metavar="NAME", action="append", default=[], help="load this module; may be repeated")
    add_setup(add)
    add("--container", metavar="IMAGE", help="run the command in this image")
    add(
        "--container-runtime",
        metavar="NAME",
        choices=RUNTIMES,
        help="pyxis, apptainer, singularity or enroot (default apptainer for .sif files and docker://, "
        "else pyxis)",
    )
    add(
        "--mount",
        metavar="PATH",
        action="append",
        default=[],
        help="a folder to mount in the container, or FROM:TO; working folder and run are always mounted",
    )
    add_submitting(parser, ", as --print does")


def add_site_options(add: Callable[..., object]) -> None:
    """Declare what sites want to know of a job; `directives` makes sbatch's options of it."""
    for name, (metavar, meaning) in WITH_VALUE.items():
        add(f"--{name}", metavar=metavar, help=meaning)
    add(
        "--sbatch",
        metavar="OPTION",
        action="append",
        default=[],
        help="any other option of sbatch, as in --sbatch=--exclusive; may be repeated",
    )


def directives(given: Namespace) -> list[str]:
    """Options of sbatch, as they were asked for with those of `add_site_options`."""
    asked = (f"--{name}={value}" for name in WITH_VALUE if (value := getattr(given, name)) is not None)
    return [*asked, *given.sbatch]


def add_setup(add: Callable[..., object]) -> None:
    """Declare what the job's script runs first."""
    add(
        "--setup",
        metavar="LINE",
        action="append",
        default=[],
        help="a line of shell to run first, as in --setup 'source venv/bin/activate'; may be repeated",
    )


def add_submitting(parser: ArgumentParser, also: str = "") -> None:
    """Declare whether a script is submitted, and whether its job is waited for."""
    add = parser.add_argument_group("submitting").add_argument
    add("--dry-run", action="store_true", help=f"print the script and submit nothing{also}")
    add("--wait", action="store_true", help="return when the job has ended, with its exit status")


def run(given: Namespace) -> None:
    from lostflops.capture.slurm import script as slurm
    from lostflops.errors import OutputExists

    command: list[str] = given.job[1:] if given.job[:1] == ["--"] else given.job
    _check(given, command)
    script = next((word for word in command if word.endswith(".py")), command[0])
    stem = re.sub(r"[^\w.-]", "_", Path(script).stem)[:60] or "job"
    output = (given.output or Path("runs") / f"{stem}-{slurm.JOB_ID}").absolute()
    # The script's own name cannot hold the number of a job that is not submitted yet.
    named = output.name.replace(slurm.JOB_ID, time.strftime("%Y%m%d-%H%M%S"))
    target = output.with_name(f"{named}.sbatch")
    job = slurm.Job(
        command=command,
        record=[*lostflops_here(), "record", *_record_options(given)],
        run=str(output),
        log=re.sub(r"%(?!j)", "%%", f"{output}.out"),
        name=given.job_name or stem,
        nodes=given.nodes,
        gpus=given.gpus_per_node,
        tasks=given.tasks_per_node,
        cpus=given.cpus_per_task,
        directives=directives(given),
        setup=[*(f"module load {shlex.quote(name)}" for name in given.module), *given.setup],
        container=given.container,
        runtime=given.container_runtime or slurm.runtime_of(given.container or ""),
        mounts=given.mount,
        monitor=[*lostflops_here(), "monitor"] if given.monitor else [],
        again=_again(target),
    )
    text = slurm.script(job)
    if given.dry_run or given.print:
        print(text, end="")
        return
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise OutputExists(output)

    def then(number: str) -> str:
        run = os.path.relpath(job.run.replace(slurm.JOB_ID, number))
        return f"its output goes to {run}.out; when it has ended: lostflops why {shlex.quote(run)}"

    submit(text, target, wait=given.wait, then=then)


def _check(given: Namespace, command: Sequence[str]) -> None:
    """Raise now what would otherwise come out when the job has waited for its nodes."""
    from lostflops.capture.record import recording
    from lostflops.errors import BadOption, shown

    if not command:
        raise BadOption(
            "There is no command to start.", "write `lostflops launch slurm -- torchrun train.py`."
        )
    if recording.deaf(command):
        recording.check(command)
    for name in ("nodes", "gpus_per_node", "tasks_per_node", "cpus_per_task"):
        value: int | None = getattr(given, name)
        if value is not None and value < (0 if name == "gpus_per_node" else 1):
            raise BadOption(f"--{name.replace('_', '-')} cannot be {value}.")
    if given.output is not None and os.pathsep in str(given.output.absolute()):
        raise BadOption(
            f"'{shown(given.output)}' cannot be on PYTHONPATH: it holds a ':'.", "choose another --output."
        )
    if given.on_demand and given.nodes > 1:
        raise BadOption(
            "--on-demand answers the processes of one node; on the others they would wait for an answer.",
            "leave it out: `lostflops trigger RUN` reaches every rank that makes optimizer steps.",
        )
    # What a module, a line of setup or a container brings is not here yet, nor what only the nodes have.
    elsewhere = bool(given.module or given.setup or given.container) or _unknown_here(command[0])
    if not (elsewhere and given.recorder == "nsys"):
        record.asked(Namespace(**{**vars(given), "job": ["true"] if elsewhere else command}))


def _unknown_here(name: str) -> bool:
    """Whether nothing here is called so, no file of the working folder either."""
    return shutil.which(name) is None and not Path(name).exists()


def lostflops_here() -> list[str]:
    """This lostflops, as the first node of the job finds it too: by its full path."""
    beside = Path(sys.executable).with_name("lostflops")
    return [str(beside)] if beside.exists() else [sys.executable, "-m", "lostflops"]


def _record_options(given: Namespace) -> list[str]:
    """What was asked of `record`, in its own words."""
    parser = ArgumentParser(add_help=False)
    record.arguments(parser, ())
    words: list[str] = []
    for action in parser._actions:  # pyright: ignore[reportPrivateUsage]
        value: object = getattr(given, action.dest)
        if action.dest in HERE or value == action.default:
            continue
        flag = action.option_strings[-1]
        words += [flag] if value is True else [f"{flag}={_absolute(value)}"]
    return words


def _absolute(value: object) -> str:
    """Paths in full: the script may be submitted from another folder."""
    return str(value.absolute() if isinstance(value, Path) else value)


def _again(target: Path) -> str:
    """How to submit a script once more."""
    return f"sbatch {shlex.quote(os.path.relpath(target))}"


def submit(script: str, target: Path, *, wait: bool, then: Callable[[str], str]) -> None:
    """Write a script to `target` and submit it, and say what follows; `then` is given the job's number.

    Raises CannotWrite, BadOption where there is no sbatch, NotSubmitted where it refuses, and SystemExit with
    the job's status where it was waited for and failed.
    """
    from lostflops.errors import BadOption, CannotWrite, NotSubmitted, shown

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(script, "utf-8", errors="surrogateescape")
    except OSError as error:
        raise CannotWrite(target, error) from error
    again = _again(target)
    if shutil.which("sbatch") is None:
        raise BadOption(
            f"`sbatch` is not on the PATH here; the script was written to {shown(target)}.",
            f"submit it on a machine of the cluster: `{again}`.",
        )
    command = ["sbatch", "--parsable", *(["--wait"] if wait else []), str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as sbatch:
        assert sbatch.stdout is not None and sbatch.stderr is not None
        number = sbatch.stdout.readline().strip().partition(";")[0]
        if number:
            print(f"submitted job {number}: {os.path.relpath(target)}")
            print(then(number), flush=True)
        said = sbatch.stderr.read()
    if not number:
        raise NotSubmitted(said, again)
    print(said, end="", file=sys.stderr)  # what a site has to say of the job
    if sbatch.returncode:
        raise SystemExit(sbatch.returncode)
