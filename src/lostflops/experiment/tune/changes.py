"""The changes that can be made to a job without touching its files, and the command line that makes them.

Each is a remedy's: through an environment variable, an option of the launcher, or inside the process by what
lies in `injected`. What is done this way may be safer than the remedy in general: sending gradients once per
step changes no batch.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from lostflops.errors import CannotWrite
from lostflops.remedies.remedy import Safety

from .injected import lostflops_tuner

PAYLOAD = Path(__file__).parent / "injected"
SAFETIES: Mapping[str, Safety] = {
    "bit-identical": "bit-identical",
    "numerically-close": "numerically close",
    "changes-convergence": "changes convergence",
}
ORDER = tuple(SAFETIES.values())
LAUNCHERS = ("torchrun",)
MOST_WORKERS = 16
DDP_BUCKET = 100  # MiB
MIB = 1 << 20
PIECES = 8  # buckets, so that the first is sent while most of the backward pass is to come


@dataclass(frozen=True)
class JobFacts:
    """What a change needs to know of the job: from its recording, and of the cores that it may use here."""

    cores: int = 1
    ranks: int = 1  # on this machine
    passes: int = 1  # backward passes per step; 0 where steps differ
    loading: float = 0.0  # time in the loader over the rest of the step
    words: tuple[str, ...] = ()  # of the command
    sent: int = 0  # bytes that a rank sends in all-reduces per step
    largest: int = 0  # bytes of the largest of them


class AppliedChange(msgspec.Struct, frozen=True):
    """A change as it was made: the remedy's name, with the numbers that it was given.

    Where it is the user's `own`, another command makes it, and the name may be that of a finding.
    """

    remedy: str
    options: dict[str, int] = {}
    own: bool = False

    @property
    def made(self) -> str:
        """In words: 'loader-workers (workers 4)'."""
        if self.own:
            return f"{self.remedy} (your command)"
        told = ", ".join(f"{name} {value}" for name, value in self.options.items())
        return f"{self.remedy} ({told})" if told else self.remedy


Options = Callable[[JobFacts, Mapping[str, int]], dict[str, int] | None]


def _without(facts: JobFacts, before: Mapping[str, int]) -> dict[str, int] | None:
    return {}


@dataclass(frozen=True)
class TunedChange:
    """How the change of a remedy is made from outside.

    `options` are its numbers for a job, given those that were applied before (empty: none); None where it
    cannot be made or has nothing more to give, which `otherwise` explains.
    """

    how: str
    safety: Safety
    options: Options = _without
    otherwise: str = "it is made already"
    environment: Mapping[str, str] = field(default_factory=dict[str, str])  # `{name}` is an option
    launcher: tuple[str, ...] = ()  # options of torchrun
    # How a user's code writes an option's number: what stands before it.
    typed: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    # What to replay for it; empty: what the finding that gives reason for it asks.
    edit: str = ""
    # What a user types for it, where it is not what the remedy asks for in general.
    instead: str = ""
    by_command: bool = False  # another command makes it, and nothing of ours

    @property
    def is_inside(self) -> bool:
        """Whether something of ours runs in the process for it."""
        if self.by_command:
            return False
        return not (self.environment or self.launcher) or "{" in "".join(self.environment.values())


def _workers(facts: JobFacts, before: Mapping[str, int]) -> dict[str, int] | None:
    """As many as load a batch while a step computes; twice as many where those were too few."""
    most = min(MOST_WORKERS, max(2, 2 * facts.cores // max(1, facts.ranks)))
    wanted = 2 * before["workers"] if before else max(2, min(int(facts.loading) + 2, facts.cores))
    return {"workers": min(wanted, most)} if not before or before["workers"] < most else None


def _threads(facts: JobFacts, before: Mapping[str, int]) -> dict[str, int] | None:
    return None if before else {"threads": max(1, facts.cores // max(1, facts.ranks))}


def _passes(facts: JobFacts, before: Mapping[str, int]) -> dict[str, int] | None:
    return {"passes": facts.passes} if facts.passes > 1 and not before else None


def _bucket(facts: JobFacts, before: Mapping[str, int]) -> dict[str, int] | None:
    return None if before else {"mb": DDP_BUCKET}


def _pieces(facts: JobFacts, before: Mapping[str, int]) -> dict[str, int] | None:
    """Buckets of an eighth of the gradients, where most of them travel in a few."""
    if before or not facts.sent or PIECES * facts.largest < 2 * facts.sent:
        return None
    return {"mb": max(1, round(facts.sent / PIECES / MIB))}


def _torchrun(facts: JobFacts, before: Mapping[str, int]) -> dict[str, int] | None:
    launched = facts.words and Path(facts.words[0]).name in LAUNCHERS
    bound = any(word.startswith("--numa-binding") for word in facts.words)
    return {} if launched and not bound else None


CHANGES: Mapping[str, TunedChange] = {
    "loader-workers": TunedChange(
        "`DataLoader(num_workers={workers})` inside the process",
        "bit-identical",
        _workers,
        otherwise="more workers than twice the cores do not help",
        typed={"workers": (r"num_workers\W+", r"num-workers\W+")},
        edit="loader-workers={workers}",
    ),
    "pinned-copies": TunedChange("`DataLoader(pin_memory=True)` inside the process", "bit-identical"),
    "gc-freeze": TunedChange("`gc.freeze()` and `gc.disable()` inside the process", "bit-identical"),
    "allocator-settings": TunedChange(
        "the environment",
        "bit-identical",
        environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    ),
    "numa-binding": TunedChange(
        "an option of torchrun",
        "bit-identical",
        _torchrun,
        otherwise="the command does not begin with torchrun, or binds its processes already",
        launcher=("--numa-binding=node",),
    ),
    "cpu-threads": TunedChange(
        "the environment, and `torch.set_num_threads` inside the process",
        "numerically close",
        _threads,
        environment={
            "OMP_NUM_THREADS": "{threads}",
            "MKL_NUM_THREADS": "{threads}",
            "OMP_WAIT_POLICY": "PASSIVE",
        },
        typed={"threads": (r"OMP_NUM_THREADS=", r"set_num_threads\(")},
    ),
    "omp-wait-policy": TunedChange(
        "the environment", "bit-identical", environment={"OMP_WAIT_POLICY": "PASSIVE"}
    ),
    "gradient-accumulation": TunedChange(
        "DDP sends gradients in the last of {passes} micro-batches, inside the process",
        "numerically close",
        _passes,
        otherwise="a step is one micro-batch, or steps differ in their number",
    ),
    "bucket-size": TunedChange(
        "`DistributedDataParallel(bucket_cap_mb={mb})` inside the process",
        "numerically close",
        _bucket,
        typed={"mb": (r"bucket_cap_mb\W+",)},
    ),
    "overlap-communication": TunedChange(
        "`DistributedDataParallel(bucket_cap_mb={mb})` inside the process",
        "numerically close",
        _pieces,
        otherwise="gradients travel in many pieces already",
        instead="DistributedDataParallel(model, bucket_cap_mb={mb})",
    ),
    "log-less": TunedChange(
        "handlers of `logging` write from a thread of their own, inside the process",
        "bit-identical",
        instead=(
            "waiting = queue.Queue(64)\n"
            "root = logging.getLogger()\n"
            "writer = logging.handlers.QueueListener(waiting, *root.handlers)\n"
            "root.handlers = [logging.handlers.QueueHandler(waiting)]\n"
            "root.handlers[0].enqueue = waiting.put  # waits where the writer is behind\n"
            "writer.start()\n"
            "atexit.register(writer.stop)"
        ),
    ),
    "selective-checkpointing": TunedChange(
        "`torch.utils.checkpoint.checkpoint` keeps all activations, inside the process",
        "bit-identical",
        instead=(
            "-hidden = checkpoint(layer, hidden, use_reentrant=False)\n"
            "+hidden = layer(hidden)  # the Trainer: gradient_checkpointing=False"
        ),
    ),
    "fused-optimizer": TunedChange("`fused=True` inside the process", "numerically close"),
    "bf16": TunedChange("`torch.autocast` to bf16 inside the process", "numerically close"),
    "bf16-on-cpu": TunedChange("`torch.autocast` to bf16 inside the process", "numerically close"),
    "tf32": TunedChange(
        '`torch.set_float32_matmul_precision("high")` inside the process', "numerically close"
    ),
}


OWN = TunedChange("a command of yours (`--try`)", "changes convergence", by_command=True)


def of(change: AppliedChange) -> TunedChange:
    """How a change is made."""
    return OWN if change.own else CHANGES[change.remedy]


def own_among(changes: Sequence[AppliedChange]) -> AppliedChange | None:
    """The one that another command makes; there is one at most."""
    return next((change for change in changes if change.own), None)


def allowed(safety: Safety, most: Safety) -> bool:
    """Whether a change as safe as `safety` may be made where `most` is asked for."""
    return ORDER.index(safety) <= ORDER.index(most)


def made_how(change: AppliedChange) -> str:
    return of(change).how.format(**change.options)


def with_its_numbers(change: AppliedChange, text: str) -> str:
    """What a user types for a remedy, with the numbers that were proven in the place of an example's."""
    for option, before in of(change).typed.items():
        for pattern in before:
            text = re.sub(rf"({pattern})\d+", rf"\g<1>{change.options[option]}", text)
    return text


def joined(changes: Sequence[AppliedChange], one: AppliedChange) -> tuple[AppliedChange, ...]:
    """These changes with one more, which takes the place of the same with other numbers."""
    return (*(change for change in changes if change.remedy != one.remedy), one)


def command_line(words: Sequence[str], changes: Sequence[AppliedChange], folder: Path) -> str:
    """The command with these changes, as a shell takes it. What runs inside the process lies in `folder`."""
    known = [(of(change), change.options) for change in changes]
    launcher = [option for change, _ in known for option in change.launcher]
    settings = {
        name: text.format(**options) for change, options in known for name, text in change.environment.items()
    }
    typed = [f"{name}={shlex.quote(value)}" for name, value in settings.items()]
    if any(change.is_inside for change, _ in known):
        # An empty entry would mean the current folder.
        typed.insert(0, f'PYTHONPATH={shlex.quote(str(folder.absolute()))}"${{PYTHONPATH:+:$PYTHONPATH}}"')
    return " ".join([*typed, shlex.join([words[0], *launcher, *words[1:]])])


def write(changes: Sequence[AppliedChange], folder: Path) -> None:
    """Make the folder that runs inside the process. One that is there already is made again.

    Raises CannotWrite.
    """
    asked = {c.remedy: c.options for c in changes if of(c).is_inside}
    try:
        _write(asked, folder)
    except OSError as error:
        raise CannotWrite(folder, error, "free some space; then `--resume` goes on.") from error


def _write(asked: Mapping[str, Mapping[str, int]], folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(PAYLOAD, folder, ignore=shutil.ignore_patterns("__pycache__", "__init__.py"))
    inside = folder / lostflops_tuner.__name__.rpartition(".")[2]
    shutil.copy(PAYLOAD / inside.name / "__init__.py", inside / "__init__.py")
    (folder / lostflops_tuner.SETTINGS).write_text(json.dumps(asked) + "\n")


def taken_up(folder: Path) -> dict[str, list[str]]:
    """What the processes of the job noted of each change: what was changed, without repetitions."""
    return _noted(folder, failed=False)


def failed(folder: Path) -> dict[str, list[str]]:
    """What changes could not be made, and why."""
    return _noted(folder, failed=True)


def _noted(folder: Path, failed: bool) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sorted(folder.glob(lostflops_tuner.NOTES.format("*"))):
        for raw in path.read_bytes().splitlines():
            try:
                line = msgspec.json.decode(raw, type=dict[str, object])
            except msgspec.MsgspecError:
                continue
            if line.get("failed") is failed:
                told = found.setdefault(str(line.get("change")), [])
                if (what := str(line.get("what"))) not in told:
                    told.append(what)
    return found
