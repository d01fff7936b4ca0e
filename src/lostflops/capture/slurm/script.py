"""The sbatch script that starts a training job on a Slurm cluster with `lostflops record` in front of it.

    sbatch script, on the first node    lostflops record -- srun ...       makes the run folder, sums it up
    srun, on every node                 [container] torchrun ... train.py  finds `boot` on PYTHONPATH

One `record` for the whole job: the other nodes need neither lostflops nor anything of the script, only the
run folder at the same path. How many tasks srun starts depends on the command: one per node for a launcher
that starts the ranks of its node itself, one per GPU for a plain Python, none for what starts srun or
mpirun by itself.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lostflops import run_folder
from lostflops.errors import BadOption, shown

RUNTIMES = ("pyxis", "apptainer", "singularity", "enroot")
JOB_ID = "%j"  # in paths, as in sbatch's own
RANKS = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID", "WORLD_SIZE": "SLURM_NTASKS"}
TORCHRUN_MEETS = ("nnodes", "node-rank", "rdzv-", "master-", "standalone")  # how its nodes find each other
ACCELERATE_MEETS = ("num-machines", "machine-rank", "main-process-", "rdzv-")
PYTHON = re.compile(r"(?:.*/)?(?:python|pypy)[\d.]*t?")
LINE = 100  # characters of the script that are read without scrolling
MONITORS_END = 30  # seconds that the job's end waits for the monitors at most


class ShellText(str):
    """A word that the script's shell expands; all others are quoted."""


@dataclass(frozen=True)
class Job:
    """What `launch slurm` was asked for."""

    command: Sequence[str]
    record: Sequence[str]  # `lostflops record` with its options, without --output
    run: str  # absolute; may hold %j
    log: str
    name: str
    nodes: int = 1
    gpus: int = 0  # per node
    tasks: int | None = None  # per node; None: as the command needs
    cpus: int | None = None  # per task
    directives: Sequence[str] = ()  # further options of sbatch
    setup: Sequence[str] = ()  # lines of shell
    container: str | None = None
    runtime: str = ""
    mounts: Sequence[str] = ()
    monitor: Sequence[str] = ()  # `lostflops monitor`, or nothing
    again: str = ""  # how to submit the same script again


@dataclass(frozen=True)
class Launch:
    """How the command is started on the nodes."""

    command: Sequence[str]
    tasks: int | None  # per node; None: nothing is said of them
    why: str
    srun: bool = True  # False: the command runs once, and starts the tasks by itself
    all_or_none: bool = True  # a task that fails ends the others
    exports: Sequence[str] = ()  # lines of shell before the start
    in_task: str = ""  # shell that each task runs before the command
    head: int = 0  # words of the command that start the launcher
    filled_in: str = ""  # an option behind them that each task knows by itself
    added: int = 0  # options behind those, which are ours too


def script(job: Job) -> str:
    """The whole script, to be read by people too."""
    placed = placement(job)
    lines = ["#!/bin/bash", *_directives(job, placed)]
    lines += [f"# Written by `lostflops launch slurm`.{job.again and f' To submit it again: {job.again}'}"]
    lines += [f"# {placed.why}", "", *job.setup, *([""] if job.setup else [])]
    lines += [f"run={_path(job.run)}", *placed.exports, *(_with_monitors(job) if job.monitor else [])]
    lines += [
        "# Sites that submit with --export=NONE would keep PYTHONPATH from the tasks too.",
        "unset SLURM_EXPORT_ENV",
        f'record=({shlex.join(job.record)} --output "$run" --)',
        'if ! command -v "${record[0]}" >/dev/null; then',
        '  echo "lostflops: ${record[0]} is not on $(hostname): training goes on and is not recorded" >&2',
        "  record=()",
        *(['  with_monitors() { "$@"; }'] if job.monitor else []),
        "fi",
    ]
    if job.container:
        lines += ['mkdir -p "$run"  # a folder that is not there cannot be mounted']
    return "\n".join([*lines, "", *_start(job, placed), ""])


def placement(job: Job) -> Launch:
    """How many tasks a node gets, and what the command needs to know of the others. Raises BadOption."""
    program, rest = _program(job.command)
    if program in ("srun", "mpirun", "mpiexec"):
        if job.container:
            raise BadOption(
                (
                    f"lostflops does not know where the options of `{program}` end, so it cannot put "
                    "the container in."
                ),
                f"leave out --container and name it in the command, as in `{program} apptainer exec ...`.",
            )
        return _mpirun(job) if program != "srun" else _once(job, "it starts its tasks by itself.")
    if program == "torchrun":
        return _torchrun(job, rest)
    if program == "accelerate":
        return _accelerate(job, rest)
    if program == "deepspeed":
        if job.nodes > 1:
            raise BadOption(
                (
                    "The launcher `deepspeed` starts other nodes over ssh and passes few environment "
                    "variables on."
                ),
                "let torchrun start the ranks; the script stays the same: "
                f"`-- torchrun {shown(shlex.join(job.command[rest:]))}`.",
            )
        return Launch(job.command, 1, "One task: deepspeed starts the ranks of its node itself.")
    if job.tasks or PYTHON.fullmatch(program):
        return _plain(job)
    if job.container:
        raise BadOption(
            f"lostflops does not know how `{shown(job.command[0])}` starts ranks in a container.",
            "say how many tasks a node gets, as in `--tasks-per-node 1`.",
        )
    return _once(job, "lostflops does not know how it starts ranks.")


def _once(job: Job, why: str) -> Launch:
    return Launch(
        job.command,
        job.tasks or job.gpus or None,
        f"The command runs once, on the first node: {why}",
        srun=False,
    )


def _program(command: Sequence[str]) -> tuple[str, int]:
    """What is started, whatever way it is spelled, and how many words of the command say so."""
    name = Path(command[0]).name
    if PYTHON.fullmatch(name) and "-m" in command:
        at = list(command).index("-m")
        module = command[at + 1] if at + 1 < len(command) else ""
        # Only flags before it: `python train.py -m x` is a script with an option.
        if all(word.startswith("-") for word in command[1:at]):
            if module in ("torch.distributed.run", "torch.distributed.launch"):
                return "torchrun", at + 2
            if module in ("accelerate.commands.launch",):
                return "accelerate", at + 2
    if name == "accelerate":
        return (name, 2) if list(command[1:2]) == ["launch"] else ("", 1)
    return name, 1


def _options(words: Sequence[str]) -> list[str]:
    """The launcher's own options among its words, without dashes: those before the script."""
    own: list[str] = []
    for word in words:
        if word.endswith(".py") or word in ("-m", "--module", "--no-python", "--no_python"):
            break
        if word.startswith("--"):
            own.append(word[2:].partition("=")[0].replace("_", "-"))
    return own


def _torchrun(job: Job, rest: int) -> Launch:
    own = _options(job.command[rest:])
    added: list[str] = []
    exports: list[str] = []
    meets = any(option.startswith(TORCHRUN_MEETS) for option in own)
    if not meets:
        if job.nodes == 1:
            added = ["--standalone"]
        else:
            exports = _meeting()
            added = [
                ShellText('--nnodes="$SLURM_NNODES"'),
                "--rdzv-backend=c10d",
                ShellText('--rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT"'),
                ShellText('--rdzv-id="$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"'),
            ]
    if job.gpus and "nproc-per-node" not in own:
        added.append(f"--nproc-per-node={job.gpus}")
    command = [*job.command[:rest], *added, *job.command[rest:]]
    why = "One task per node: torchrun starts the ranks of its node itself."
    # What the job says of its meeting may let it go on with fewer nodes.
    return Launch(
        command,
        job.tasks or 1,
        why,
        all_or_none=not meets,
        exports=exports,
        head=rest,
        added=len(added),
    )


def _accelerate(job: Job, rest: int) -> Launch:
    own = _options(job.command[rest:])
    added: list[str] = []
    if job.gpus and "num-processes" not in own and "config-file" not in own:
        added.append(f"--num_processes={job.gpus * job.nodes}")
    why = "One task per node: accelerate starts the ranks of its node itself."
    if job.nodes == 1 or any(option.startswith(ACCELERATE_MEETS) for option in own):
        command = [*job.command[:rest], *added, *job.command[rest:]]
        return Launch(command, job.tasks or 1, why, head=rest, added=len(added))
    added += [
        ShellText('--num_machines="$SLURM_NNODES"'),
        ShellText('--main_process_ip="$MASTER_ADDR"'),
        ShellText('--main_process_port="$MASTER_PORT"'),
    ]
    command = [*job.command[:rest], *added, *job.command[rest:]]
    return Launch(
        command,
        job.tasks or 1,
        why,
        exports=_meeting(),
        head=rest,
        filled_in='--machine_rank="$SLURM_NODEID"',
        added=len(added),
    )


def _mpirun(job: Job) -> Launch:
    """Open MPI passes a variable on to other nodes only when it is told to."""
    placed = _once(job, "it starts a process in every slot of the nodes.")
    own = itertools.takewhile(lambda word: not (PYTHON.fullmatch(word) or word.endswith(".py")), job.command)
    if "-x" in own:  # which Open MPI does not take together with the variable
        return replace(placed, command=[job.command[0], "-x", "PYTHONPATH", *job.command[1:]])
    return replace(placed, exports=["export OMPI_MCA_mca_base_env_list=PYTHONPATH"])


def _plain(job: Job) -> Launch:
    tasks = job.tasks or job.gpus or 1
    reason = "as --tasks-per-node says" if job.tasks else "one per GPU" if job.gpus else "without GPUs"
    why = f"{tasks} task{'s' * (tasks != 1)} per node, {reason}: each is a rank."
    if tasks * job.nodes == 1:
        return Launch(job.command, 1, why)
    # What torchrun would set, for `init_process_group()`; a job that reads SLURM_* loses nothing.
    names = " ".join(f"{name}=${slurm}" for name, slurm in RANKS.items())
    return Launch(job.command, tasks, why, exports=_meeting(), in_task=f"export {names}")


def _meeting() -> list[str]:
    return [
        "# This runs on the job's first node, where rank 0 is. Jobs that share a node differ in the port.",
        'export MASTER_ADDR="$(hostname)" MASTER_PORT="$((20000 + SLURM_JOB_ID % 10000))"',
    ]


def _with_monitors(job: Job) -> list[str]:
    """A signal to srun would kill the monitors, so they look for a file that says that the job has ended."""
    waits = shlex.quote('until [ -e "$0" ]; do sleep 1; done')
    return [
        "# A monitor on every node, in a step that shares the nodes with the job's and ends after it.",
        "export run",
        "with_monitors() {",
        "  trap : TERM INT  # the job's step has the signal too",
        f'  ended="$run/{run_folder.BOOT}/{run_folder.ENDED}${{SLURM_RESTART_COUNT:-0}}"',
        f'  srun --overlap --export=ALL --ntasks-per-node=1 {shlex.join(job.monitor)} --output "$run" -- \\',
        f'    sh -c {waits} "$ended" >>"$run/monitors.log" 2>&1 &',
        "  monitors=$!",
        '  "$@"',
        "  status=$?",
        '  touch "$ended"',
        f"  for _ in {{1..{MONITORS_END}}}; do",
        '    kill -0 "$monitors" 2>/dev/null || exit "$status"',
        "    sleep 1",
        "  done",
        '  kill "$monitors"',
        '  exit "$status"',
        "}",
    ]


def _directives(job: Job, placed: Launch) -> list[str]:
    options = [
        f"--job-name={job.name}",
        f"--nodes={job.nodes}",
        *([f"--ntasks-per-node={placed.tasks}"] if placed.tasks else []),
        *([f"--gpus-per-node={job.gpus}"] if job.gpus else []),
        *([f"--cpus-per-task={job.cpus}"] if job.cpus else []),
        f"--output={job.log}",
        "--open-mode=append",  # a requeued job keeps what its first attempt said
        *job.directives,
    ]
    return [directive(option) for option in options]


def directive(option: str) -> str:
    """An option of sbatch, such as --time=1:00:00, as a line of its script. Raises BadOption where it
    would end the line."""
    if not option.isprintable():
        raise BadOption(f"'{shown(option)}' holds a character that cannot be printed.")
    name, equals, value = option.partition("=")
    if re.fullmatch(r"[\w.,:;/@%+=\[\]&|*()!-]*", value):
        return f"#SBATCH {option}"
    return f'#SBATCH {name}{equals}"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def _start(job: Job, placed: Launch) -> list[str]:
    """The command at the end of the script, one part per line."""
    parts = [['exec "${record[@]}"']]
    if job.monitor:
        parts.append(["""bash -c "$(declare -f with_monitors)"'; with_monitors "$@"' job"""])
    if placed.srun:
        srun = ["srun", "--export=ALL", f"--ntasks-per-node={placed.tasks}"]
        if placed.all_or_none:  # a rank that fails leaves the others waiting for it until the time limit
            srun.append("--kill-on-bad-exit=1")
        if job.cpus:
            srun.append(f"--cpus-per-task={job.cpus}")  # not inherited from sbatch since Slurm 22.05
        parts.append([*srun, *(_pyxis(job) if job.container and job.runtime == "pyxis" else [])])
    if job.container and job.runtime != "pyxis":
        parts.append(_container(job))
    parts += _in_task(job, placed)
    return " \\\n  ".join(" \\\n    ".join(_lines(part)) for part in parts).split("\n")


def _lines(words: Sequence[str]) -> list[str]:
    """Words in lines that can be read without scrolling, as far as the words let them."""
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) > LINE:
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return lines


def _in_task(job: Job, placed: Launch) -> list[list[str]]:
    """The command, behind a shell where something of it is known in the task only."""
    shell = [placed.in_task] if placed.in_task else []
    if job.container:
        # Before what the image sets: passing the host's value on would replace the image's.
        shell.append('export PYTHONPATH="$0${PYTHONPATH:+:$PYTHONPATH}"')
    words = [word if isinstance(word, ShellText) else shlex.quote(word) for word in placed.command]
    head, added, own = (
        words[: placed.head],
        words[placed.head : placed.head + placed.added],
        words[placed.head + placed.added :],
    )
    if not shell and not placed.filled_in:
        return [part for part in ([*head, *added], own) if part]
    # What the task's shell fills in stands right behind the launcher, so the shell starts that by name.
    begin = " ".join(["exec", *head, placed.filled_in, '"$@"'] if placed.filled_in else ["exec", '"$@"'])
    first = '"$run/boot"' if job.container else "task"
    before = ["sh", "-c", shlex.quote("; ".join([*shell, begin])), first]
    launcher = added if placed.filled_in else [*head, *added]
    return [part for part in (before, launcher, own) if part]


def _mounts(job: Job) -> list[str]:
    """What is at the same path inside and outside: the run folder and where the job starts."""
    given = [shlex.quote(mount if ":" in mount else f"{mount}:{mount}") for mount in job.mounts]
    return ['"$run:$run"', '"$PWD:$PWD"', *given]


def _pyxis(job: Job) -> list[str]:
    image = shlex.quote(job.container or "")
    return [
        f"--container-image={image}",
        f"--container-mounts={','.join(_mounts(job))}",
        '--container-workdir="$PWD"',
    ]


def _container(job: Job) -> list[str]:
    image = shlex.quote(job.container or "")
    if job.runtime == "enroot":
        mounts = [word for mount in _mounts(job) for word in ("--mount", mount)]
        return ["enroot", "start", *mounts, image]
    mounts = [word for mount in _mounts(job) for word in ("--bind", mount)]
    return [job.runtime, "exec", *(["--nv"] if job.gpus else []), *mounts, '--pwd "$PWD"', image]


def runtime_of(image: str) -> str:
    """What most likely starts such an image."""
    return "apptainer" if re.search(r"\.sif$|^(docker|library|oras|shub)://", image) else "pyxis"


def _path(pattern: str) -> str:
    """A path with %j as the script's shell writes it."""
    return '"' + re.sub(r'([$`"\\])', r"\\\1", pattern).replace(JOB_ID, "$SLURM_JOB_ID") + '"'
