"""The folder of a loop: what was asked, and each thing that is known as soon as it is known.

    OUT/
      tune.jsonl                   lines of the kinds below, only ever appended to; a torn one is passed over
      recorded-1/  recorded-2/     the run that each round looks at; `recorded-1-stacks/` has call stacks
      trial-1/  trial-2/           a change: `shim/` makes it, `tryout/` is one start with it, and `proof/`
      whole/                       the proof of all changes together
      report.json  report.md       what it came to

Killed at any moment, it goes on from what these lines say; a proof goes on from its own pairs.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from lostflops import run_folder
from lostflops.capture.record.recording import StepOn
from lostflops.errors import BadOption, LostflopsError, shown
from lostflops.experiment import journal
from lostflops.experiment.proof.running import folder as proofs
from lostflops.privacy.secrets import REMOVED, without_secrets
from lostflops.remedies.remedy import Safety
from lostflops.version import __version__

from .changes import AppliedChange, joined, own_among

PLAN, OFFERED, BEGUN, RECORDED, TRYING, DECIDED, WHOLE, END = (
    "plan", "offered", "begun", "recorded", "trying", "decided", "whole", run_folder.END,
)  # fmt: skip
PROOF, SHIM, TRYOUT, TOGETHER = "proof", "shim", "tryout", "whole"


class NoTuning(LostflopsError):
    """A folder that holds no loop."""


class TunePlan(msgspec.Struct):
    """What was asked for."""

    command: list[str]
    safety: Safety = "bit-identical"
    max_runs: int = 60
    minutes: float = 60.0
    pairs: int = 10
    steps: int | None = None  # of each start of a proof; None: by how long one takes
    step_on: tuple[str, str | None] | None = None
    own: dict[str, list[str]] = {}  # commands that have a change, by the remedy or finding they are for

    @property
    def stepping(self) -> StepOn | None:
        return None if self.step_on is None else StepOn(*self.step_on)


class RecordedRound(msgspec.Struct):
    """The run that a round looked at."""

    round: int
    run: str
    step_ns: int
    verdict: str
    seconds_of_start: float = 0.0
    stacks: str = ""  # another run of the same, with call stacks, where a finding asks for them

    @property
    def looked_at(self) -> str:
        return self.stacks or self.run


class Trial(msgspec.Struct):
    """A change that is tried, and why."""

    number: int
    round: int
    change: AppliedChange
    finding: str
    claim: str
    gain: float | None = None  # predicted, as a share of the step
    low: float | None = None
    high: float | None = None
    at_most: float | None = None  # the bound, where nothing is predicted
    edit: str = ""

    @property
    def folder(self) -> str:
        return f"trial-{self.number}"


class Decided(msgspec.Struct):
    """What became of a trial. `ratio` is the time of a step with the change over that without it."""

    number: int
    kept: bool
    why: str
    verdict: str | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    pairs: int = 0
    loss: str | None = None
    made: list[str] = []  # what the processes of the job noted
    runs: int = 0  # starts that it took
    most: float | None = None  # predicted at most, of steps that nothing recorded


@dataclass
class TuneFolder:
    """A loop on disk."""

    path: Path
    plan: TunePlan
    recorded: list[RecordedRound] = field(default_factory=list[RecordedRound])
    trials: list[Trial] = field(default_factory=list[Trial])
    decided: dict[int, Decided] = field(default_factory=dict[int, Decided])
    starts: int = 0  # beside those of proofs
    seconds: float = 0.0  # that earlier processes have spent
    whole: dict[str, Any] | None = None  # the proof of all changes together
    wholes: int = 0  # proofs of that kind, with those that a later change made useless
    ended: str | None = None  # why it came to its end
    began: float = field(default_factory=time.monotonic)

    @property
    def spent(self) -> float:
        """Seconds in all."""
        return self.seconds + time.monotonic() - self.began

    @property
    def runs(self) -> int:
        """Starts of the command so far."""
        pending = self.pending
        undecided = 0 if pending is None else proofs.started(self.path / pending.folder / PROOF)
        decided = sum(one.runs for one in self.decided.values())
        together = sum(map(proofs.started, self.path.glob(f"{TOGETHER}*")))
        return self.starts + decided + undecided + together

    @property
    def pending(self) -> Trial | None:
        """The trial that is not decided."""
        return next((trial for trial in self.trials if trial.number not in self.decided), None)

    @property
    def kept(self) -> list[Trial]:
        return [t for t in self.trials if t.number in self.decided and self.decided[t.number].kept]

    @property
    def applied(self) -> tuple[AppliedChange, ...]:
        """The changes that are made by now."""
        found: tuple[AppliedChange, ...] = ()
        for trial in self.kept:
            found = joined(found, trial.change)
        return found

    @property
    def together(self) -> Path:
        """Where all changes are proven together."""
        return self.path / (TOGETHER if not self.wholes else f"{TOGETHER}-{self.wholes + 1}")

    def words(self, words: Sequence[str], changes: Sequence[AppliedChange]) -> list[str]:
        """The command that the changes are made to: the user's other one, where it is among them."""
        own = own_among(changes)
        return list(words if own is None else self.plan.own[own.remedy])

    def free(self, name: str) -> Path:
        """A folder of that name, or of one like it, that is not there yet."""
        found, n = self.path / name, 2
        while found.exists():
            found, n = self.path / f"{name}-{n}", n + 1
        return found

    def begin(self) -> None:
        plan = msgspec.to_builtins(self.plan)
        kept = {"command": without_secrets(self.plan.command), "own": _kept(self.plan.own)}
        self._append(PLAN, {**plan, **kept, "lostflops": __version__})

    def offer(self, own: Mapping[str, list[str]]) -> None:
        """More commands of the user's that have a change. Raises BadOption where one was tried already."""
        kept, new = _kept(self.plan.own), _kept(own)
        for name in {trial.change.remedy for trial in self.trials if trial.change.own}.intersection(new):
            if new[name] != kept[name]:
                before, after = (shlex.quote(shlex.join(words[name])) for words in (kept, new))
                raise BadOption(
                    f"Another command for '{name}' was tried in this loop.",
                    f"`lostflops prove --before {before} --after {after}` compares them.",
                )
        self.plan.own = {**self.plan.own, **own}
        self._append(OFFERED, {"own": _kept(own)})

    def start(self) -> None:
        """The command is about to be started, outside of a proof."""
        self.starts += 1
        self._append(BEGUN, {})

    def record(self, one: RecordedRound) -> None:
        self.recorded.append(one)
        self._append(RECORDED, msgspec.to_builtins(one))

    def attempt(self, one: Trial) -> None:
        self.trials.append(one)
        self._append(TRYING, msgspec.to_builtins(one))

    def decide(self, one: Decided) -> None:
        self._decided(one)
        self._append(DECIDED, msgspec.to_builtins(one))

    def _decided(self, one: Decided) -> None:
        self.decided[one.number] = one
        if one.kept:  # together is no longer what it was
            self.whole = None

    def prove_whole(self, result: Mapping[str, Any]) -> None:
        self.whole, self.wholes = dict(result), self.wholes + 1
        self._append(WHOLE, {"result": self.whole})

    def end(self, why: str) -> None:
        self.ended = why
        self._append(END, {"why": why})

    def _append(self, kind: str, fields: Mapping[str, Any]) -> None:
        known = {**fields, "spent": round(self.spent, 3)}
        journal.write(self.path / run_folder.TUNE, kind, known, "free some space; then `--resume` goes on.")


def made(path: Path, plan: TunePlan) -> TuneFolder:
    """A new folder for a loop. Secrets in its command are not written."""
    journal.fresh_folder(path)
    found = TuneFolder(path, plan)
    found.begin()
    return found


def read(path: Path) -> TuneFolder:
    """The loop in a folder, as far as it came."""
    file = path / run_folder.TUNE
    if not file.is_file():
        raise NoTuning(
            f"'{shown(path)}' is not a folder of `lostflops tune`.", "it is named at the start of the loop."
        )
    found: TuneFolder | None = None

    def take(line: dict[str, Any]) -> None:
        nonlocal found
        if line.get("kind") == PLAN and found is None:
            found = TuneFolder(path, msgspec.convert(line, TunePlan))
        elif found is not None:
            _take(found, line)

    journal.replay(file, take)
    if found is None or not found.plan.command:
        raise NoTuning(f"{shown(file)} does not say what was asked for: it is damaged.", "begin again.")
    return found


def _take(found: TuneFolder, line: dict[str, Any]) -> None:
    match line.get("kind"):
        case "offered":
            found.plan.own = {**found.plan.own, **msgspec.convert(line.get("own"), dict[str, list[str]])}
        case "begun":
            found.starts += 1
        case "recorded":
            one = msgspec.convert(line, RecordedRound)
            if all(name == Path(name).name for name in (one.run, one.looked_at)):
                found.recorded.append(one)
        case "trying":
            found.trials.append(msgspec.convert(line, Trial))
        case "decided":
            found._decided(msgspec.convert(line, Decided))  # pyright: ignore[reportPrivateUsage]
        case "whole":
            found.whole = msgspec.convert(line.get("result"), dict[str, Any])
            found.wholes += 1
        case "end":
            found.ended = str(line.get("why") or "")
        case _:
            pass
    found.seconds = max(found.seconds, float(line.get("spent") or 0.0))


def runnable(plan: TunePlan, words: Sequence[str] = ()) -> list[str]:
    """The command that goes on: `words`, or that of the plan.

    Raises BadOption where a secret was left out of it, or of another command of the user's.
    """
    command = list(words or plan.command)
    if any(REMOVED in word for word in command):
        raise BadOption(
            "The command held a secret, which the folder does not keep.",
            "give it again: `lostflops tune --resume FOLDER -- COMMAND`.",
        )
    for name, own in plan.own.items():
        if any(REMOVED in word for word in own):
            raise BadOption(
                f"The command of `--try {name}` held a secret, which the folder does not keep.",
                f"give it again: `lostflops tune --resume FOLDER --try '{name}=COMMAND'`.",
            )
    return command


def _kept(own: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    return {name: list(without_secrets(command)) for name, command in own.items()}
