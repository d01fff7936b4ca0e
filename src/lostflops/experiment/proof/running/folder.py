"""The folder of an experiment: what was asked, and each pair as soon as it is whole.

    OUT/
      proof.jsonl                    lines of the kinds plan, pair, more and end; only ever appended to
      pair-001-before/  pair-001-after/      the starts, each a run folder with what it printed

Whatever ends the experiment, finished pairs stay readable: their numbers come from the step logs again.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from lostflops import run_folder
from lostflops.capture.record.recording import StepOn
from lostflops.errors import BadOption, LostflopsError, shown
from lostflops.experiment import journal
from lostflops.experiment.proof import drawn_order
from lostflops.experiment.proof.paired import LEAST, SEE, PairPlan
from lostflops.privacy.secrets import REMOVED, without_secrets
from lostflops.version import __version__

Side = Literal["before", "after"]
SIDES: tuple[Side, Side] = ("before", "after")
BACKWARDS: tuple[Side, Side] = ("after", "before")
PLAN, PAIR, MORE, END = "plan", "pair", "more", run_folder.END
LARGEST = 10_000  # pairs
SEED_BITS = 32


class NoProof(LostflopsError):
    """A folder that holds no experiment."""


class PairLine(msgspec.Struct):
    """A whole pair: the folders of its starts, within that of the experiment."""

    pair: int
    before: str
    after: str


class PlanLine(msgspec.Struct):
    """What was asked for when the experiment began."""

    before: str
    after: str
    pairs: int
    early_stop: bool = True
    see: float = SEE
    least: float = LEAST
    measure: Literal["mean", "median", "p10"] = "mean"
    per: Literal["step", "token", "sample"] | None = None
    steps: int | None = None
    step_on: tuple[str, str | None] | None = None
    seed: int | None = None  # draws which side of a pair starts first; None: A B, B A, in a fixed order
    decides: bool = False  # it is enough that a difference is shown, however wide its interval

    @property
    def stepping(self) -> StepOn | None:
        return None if self.step_on is None else StepOn(*self.step_on)

    @property
    def commands(self) -> tuple[str, str]:
        return self.before, self.after


@dataclass
class ProofFolder:
    """An experiment on disk."""

    path: Path
    plan: PlanLine
    pairs: list[PairLine] = field(default_factory=list[PairLine])
    more: list[int] = field(default_factory=list[int])
    stopped: str = ""  # why it ended before its time
    ended: bool = False

    @property
    def paired(self) -> PairPlan:
        plan = self.plan
        drawn = plan.seed is not None
        return PairPlan(
            plan.pairs, plan.early_stop, plan.see, plan.least, tuple(self.more), drawn, plan.decides
        )

    def sides(self, pairs: int) -> list[tuple[Side, Side]]:
        """The sides of each of the first pairs, in the order in which they start."""
        if self.plan.seed is None:
            return [SIDES if number % 2 == 0 else BACKWARDS for number in range(pairs)]
        return [BACKWARDS if after else SIDES for after in drawn_order.after_first(self.plan.seed, pairs)]

    @property
    def commands(self) -> tuple[str, str]:
        """As they may be kept and shown: without secrets."""
        before, after = (" ".join(without_secrets(command.split(" "))) for command in self.plan.commands)
        return before, after

    def start(self, pair: int, side: str, again: bool = False) -> Path:
        """The folder of a start; of one that failed before, another."""
        name = f"pair-{pair:03d}-{side}"
        return self.free(f"{name}-again" if again else name)

    def free(self, name: str) -> Path:
        """A folder of that name, or of one like it, that is not there yet."""
        found, n = self.path / name, 2
        while found.exists():
            found, n = self.path / f"{name}-{n}", n + 1
        return found

    @property
    def started(self) -> int:
        """Starts so far, those that failed or were ended too."""
        return started(self.path)

    def runs(self, pairs: int | None = None) -> tuple[list[Path], list[Path]]:
        """The starts of the first pairs, of either side."""
        some = self.pairs[:pairs]
        return [self.path / pair.before for pair in some], [self.path / pair.after for pair in some]

    def begin(self) -> None:
        before, after = self.commands
        fields = {**msgspec.to_builtins(self.plan), "before": before, "after": after}
        self._append(PLAN, {"lostflops": __version__, **fields})

    def add(self, pair: PairLine, values: Mapping[str, Any]) -> None:
        self.pairs.append(pair)
        self._append(PAIR, {**msgspec.to_builtins(pair), **values})

    def extend(self, pairs: int) -> None:
        self.more.append(pairs)
        self.ended, self.stopped = False, ""
        self._append(MORE, {"pairs": pairs})

    def end(self, stopped: str, result: Mapping[str, Any]) -> None:
        self.ended, self.stopped = True, stopped
        self._append(END, {"stopped": stopped, "result": result})

    def _append(self, kind: str, fields: Mapping[str, Any]) -> None:
        journal.write(self.path / run_folder.PROOF, kind, fields, "free some space.")


def drawn_seed() -> int:
    """A seed for the order of an experiment: by chance, so that nothing keeps step with it."""
    return secrets.randbits(SEED_BITS)


def made(path: Path, plan: PlanLine) -> ProofFolder:
    """A new folder for an experiment. Secrets in its commands are not written."""
    journal.fresh_folder(path)
    found = ProofFolder(path, plan)
    found.begin()
    return found


def started(path: Path) -> int:
    """How many starts lie in the folder of an experiment."""
    return sum(1 for _ in path.glob("pair-*-*"))


def is_one(path: Path) -> bool:
    return (path / run_folder.PROOF).is_file()


def read(path: Path) -> ProofFolder:
    """The experiment in a folder. What a kill or a full disk cut off of its last line is passed over."""
    file = path / run_folder.PROOF
    found: ProofFolder | None = None

    def take(line: dict[str, Any]) -> None:
        nonlocal found
        kind = line.get("kind")
        if kind == PLAN and found is None:
            found = ProofFolder(path, msgspec.convert(line, PlanLine))
        elif found is not None:
            _take(found, kind, line)

    journal.replay(file, take)
    if found is None or not 1 <= found.plan.pairs <= LARGEST:
        raise NoProof(
            f"{shown(file)} does not say what was asked for: it is damaged.",
            "`lostflops prove pair-001-before pair-001-after` in its folder compares single starts.",
        )
    return found


def _take(found: ProofFolder, kind: object, line: dict[str, Any]) -> None:
    if kind == PAIR:
        pair = msgspec.convert(line, PairLine)
        # Names of folders within this one, and nothing else.
        if all(name == Path(name).name and name not in ("", "..") for name in (pair.before, pair.after)):
            found.pairs.append(pair)
    elif kind == MORE:
        found.more.append(msgspec.convert(line.get("pairs"), int))
        found.ended, found.stopped = False, ""
    elif kind == END:
        found.ended, found.stopped = True, str(line.get("stopped") or "")


def runnable(plan: PlanLine) -> PlanLine:
    """The plan, if its commands can be run again. Raises BadOption where a secret was left out of one."""
    if any(REMOVED in command for command in plan.commands):
        raise BadOption(
            "The commands held a secret, which the results do not keep.",
            "give both again, with `--before` and `--after`.",
        )
    return plan
