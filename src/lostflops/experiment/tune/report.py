"""What a loop came to: as text, as Markdown and as JSON, from what its folder holds."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from lostflops.errors import as_argument, shown
from lostflops.experiment.proof.running import folder as proofs
from lostflops.units import milliseconds

from . import changes
from .candidates import LeftAlone, known
from .state import PROOF, SHIM, Decided, Trial, TuneFolder

SCHEMA = 1
ABOVE = (
    "the measured gain is larger: the change does more than the finding is about, or recorded steps differed"
)


@dataclass(frozen=True)
class TuneReport:
    """All that was done, and every number. `ended` is why it ended before nothing was left to try."""

    folder: TuneFolder
    words: tuple[str, ...]
    left: Sequence[LeftAlone] = ()
    typed: Mapping[str, str] = field(default_factory=dict[str, str])  # what to edit, by remedy
    ended: str = ""
    interrupted: bool = False

    @property
    def kept(self) -> list[Trial]:
        return self.folder.kept

    @property
    def made(self) -> list[Trial]:
        """Those that the job has in the end: of a change that was kept twice, the last with its numbers."""
        return list({trial.change.remedy: trial for trial in self.kept}.values())

    @property
    def headline(self) -> str:
        """What came of it, in a sentence."""
        kept, tried = self.kept, len(self.folder.decided)
        if kept:
            names = ", ".join(trial.change.made for trial in self.made)
            return f"{self._gained}: {names}."
        if self.ended:
            return f"Nothing was changed, and not all was tried: {self.ended}."
        if tried:
            return f"Nothing was changed: {_count(tried, 'change')} tried, and none proved a gain."
        return "Nothing was changed: nothing in the recording gives reason to try a change of this safety."

    @property
    def _gained(self) -> str:
        """How much less time all that was kept takes, by the proof of the whole, or of the only change."""
        whole = self.folder.whole
        if len(self.kept) == 1:
            one = self.folder.decided[self.kept[0].number]
            return _less(one.ratio, one.low, one.high, one.pairs)
        if whole is not None and whole.get("low") is not None:
            return f"Together {_less(whole['ratio'], whole['low'], whole['high'], whole['pairs'])}"
        return (
            f"{_count(len(self.kept), 'change')} kept, each proven by itself; together they were not measured"
        )

    @property
    def command(self) -> str:
        """What starts the job with all that was kept; of a job that was not changed, its own command."""
        applied = self.folder.applied
        shim = self.folder.path / self.kept[-1].folder / SHIM if applied else self.folder.path
        return changes.command_line(self.folder.words(self.words, applied), applied, shim)

    def to_json(self) -> dict[str, Any]:
        """All of it as one document; times in ns, shares of a step. `docs/tuning.md` describes every key."""
        folder = self.folder
        return {
            "schema": SCHEMA,
            "headline": self.headline,
            "ended": self.ended or None,
            "safety": folder.plan.safety,
            "runs": folder.runs,
            "max_runs": folder.plan.max_runs,
            "seconds": round(folder.spent, 3),
            "minutes": folder.plan.minutes,
            "recorded": [
                {"round": r.round, "run": r.run, "step_ns": r.step_ns, "verdict": r.verdict}
                for r in folder.recorded
            ],
            "trials": [self._trial(trial) for trial in folder.trials],
            "left": [
                {
                    "remedy": one.remedy,
                    "finding": one.finding,
                    "claim": one.claim,
                    "why": one.why,
                    "is_for_user": one.is_for_user,
                    "predicted": None
                    if one.gain is None
                    else {"gain": one.gain, "low": one.low, "high": one.high, "edit": one.edit},
                    "at_most": one.at_most,
                    "typed": self._typed(one.remedy) or one.then,
                    "try": self._try(one) if one.is_for_user else None,
                }
                for one in self.left
            ],
            "kept": [trial.change.remedy for trial in self.made],
            "together": folder.whole,
            "command": self.command,
        }

    def _trial(self, trial: Trial) -> dict[str, Any]:
        one = self.folder.decided.get(trial.number)
        return {
            "remedy": trial.change.remedy,
            "own": trial.change.own,
            "options": trial.change.options,
            "how": changes.made_how(trial.change),
            "round": trial.round,
            "finding": trial.finding,
            "claim": trial.claim,
            "predicted": None
            if trial.gain is None
            else {"gain": trial.gain, "low": trial.low, "high": trial.high, "edit": trial.edit},
            "at_most": trial.at_most,
            "kept": None if one is None else one.kept,
            "why": None if one is None else one.why,
            "measured": None
            if one is None or one.verdict is None
            else {
                "verdict": one.verdict,
                "ratio": one.ratio,
                "low": one.low,
                "high": one.high,
                "pairs": one.pairs,
                "loss": one.loss,
            },
            "made": [] if one is None else one.made,
            "folder": trial.folder,
            "typed": self._typed_of(trial),
        }

    def _typed(self, remedy: str) -> str:
        return self.typed.get(remedy, "")

    def lines(self) -> Iterator[tuple[int, str]]:
        """The report line by line, with how far each is indented; headings have no indent."""
        yield 0, self.headline
        if self.ended and self.kept:  # else the headline says it
            yield 2, f"It ended before all was tried: {self.ended}."
        for one in self.folder.recorded:
            with_it = "as it was" if one.round == 1 else f"after {_count(one.round - 1, 'change')}"
            yield (
                2,
                f"step {milliseconds(one.step_ns)} {with_it}, while it was recorded. {shown(one.verdict)}",
            )
        seconds = round(self.folder.spent)
        yield 2, f"{_count(self.folder.runs, 'start')} of the command in {seconds // 60} min {seconds % 60} s"
        if self.folder.trials:
            yield 0, "What was tried"
        for trial in self.folder.trials:
            yield from self._about(trial)
        yours = [one for one in self.left if one.is_for_user]
        others = [one for one in self.left if not one.is_for_user]
        for heading, ones in (("What only you can change", yours), ("What was left alone", others)):
            if ones:
                yield 0, heading
            for one in ones:
                yield 2, f"{one.name}: {one.why}. {shown(one.claim)}"
                if one.is_for_user and self.folder.recorded:
                    yield from self._for_user(one)
        if self.kept:
            yield 0, "To keep it, change the job itself"
            for trial in self.made:
                yield 2, self._does(trial)
                for line in self._typed_of(trial).splitlines():
                    yield 4, line
            yield 0, "Until then this starts the job with it"
            yield 2, self.command

    def _for_user(self, one: LeftAlone) -> Iterator[tuple[int, str]]:
        """What only the user can change: what it would gain, what to change, and what proves it."""
        if one.gain is not None:
            yield 4, f"predicted {100 * one.gain:.1f} % less time ({one.edit})"
        elif one.at_most is not None:  # else that is why it was left
            yield 4, f"at most {100 * one.at_most:.1f} % less time; replay predicts nothing for it"
        if one.then:
            yield 4, f"to do: {shown(one.then)}"
        if one.remedy:
            yield 4, f"what to change: lostflops remedy {one.remedy} {self._run(-1)}"
        yield 4, f"to prove it: {self._try(one)}"

    def _try(self, one: LeftAlone) -> str:
        """What proves a change that the user has made, with COMMAND for what starts the changed job."""
        return f"lostflops tune --resume {as_argument(self.folder.path)} --try '{one.name}=COMMAND'"

    def _run(self, number: int) -> str:
        return as_argument(self.folder.path / self.folder.recorded[number].looked_at)

    def _does(self, trial: Trial) -> str:
        """A change that is to be kept: what it does, as far as that was proven."""
        change = trial.change
        if change.own:
            return f"{change.remedy}: start the job with your command"
        if changes.of(change).instead:
            return (
                f"{change.remedy}: {changes.made_how(change).removesuffix('inside the process').rstrip(', ')}"
            )
        return f"{change.remedy}: {known(change.remedy)}"

    def _typed_of(self, trial: Trial) -> str:
        """What the user types to keep a change."""
        change = trial.change
        if change.own:
            return shlex.join(self.folder.words(self.words, [change]))
        if instead := changes.of(change).instead:
            return instead.format(**change.options)
        found = self._typed(change.remedy)
        if found:
            return changes.with_its_numbers(change, found)
        return f"lostflops remedy {change.remedy} {self._run(0)}" if self.folder.recorded else ""

    def _about(self, trial: Trial) -> Iterator[tuple[int, str]]:
        one = self.folder.decided.get(trial.number)
        yield 2, f"{trial.change.made}: {self._undecided(trial) if one is None else one.why}"
        yield 4, f"because: {shown(trial.claim)}"
        yield 4, f"made through {changes.made_how(trial.change)}{_made(one)}"
        if trial.gain is not None:
            yield 4, f"predicted {100 * trial.gain:.1f} % less time ({trial.edit}){self._against(trial, one)}"
        elif trial.at_most is not None:
            bound = f"at most {100 * trial.at_most:.1f} % less time; replay predicts nothing for it"
            above = one is not None and one.high is not None and 1 - one.high > trial.at_most
            yield 4, f"{bound}: {ABOVE}" if above else bound
        if one is not None and one.low is not None:
            yield 4, f"measured {_less(one.ratio, one.low, one.high, one.pairs)}"
            if one.loss and one.loss != "unknown":
                yield 4, f"loss {one.loss}"

    def _undecided(self, trial: Trial) -> str:
        """How far the proof of a change came that was cut short."""
        proof = self.folder.path / trial.folder / PROOF
        if not proofs.is_one(proof):
            return "not decided yet, its proof has not begun"
        pairs = len(proofs.read(proof).pairs)
        finished = f"{_count(pairs, 'pair')} of its proof {'is' if pairs == 1 else 'are'} finished"
        return f"not decided yet, {finished}: `lostflops prove {as_argument(proof)}` reads them"

    def _against(self, trial: Trial, one: Decided | None) -> str:
        """Whether the prediction lies within the measured interval."""
        if one is None or one.low is None or one.high is None or trial.gain is None:
            return ""
        if one.low <= 1 - trial.gain <= one.high:
            return ": inside the measured interval"
        most = trial.gain if one.most is None else one.most
        if most > trial.gain:
            share = f" of a recorded step, up to {100 * most:.1f} % of one that is not"
            if one.low <= 1 - trial.gain and 1 - most <= one.high:
                return f"{share}: reaches into the measured interval"
            return f"{share}: outside the measured interval"
        return ": outside the measured interval"

    def markdown(self) -> str:
        """The report as Markdown."""
        found: list[str] = []
        for indent, line in self.lines():
            if not found:
                found += [f"# {line}", ""]
            elif indent == 0:
                found += ["", f"## {line}", ""]
            else:
                found.append(f"    {line}" if indent == 4 else f"- {line}")
        return "\n".join(found) + "\n"

    def show(self, console: Console) -> None:
        """Print it. Commands and code stand whole on their lines."""
        for number, (indent, line) in enumerate(self.lines()):
            if indent == 0:
                console.print(*([] if not number else [""]), end="" if not number else "\n")
                console.print(Text(line, style="bold" if not number else ""), highlight=False)
            elif indent == 4 or line == self.command:
                console.print(Text(" " * indent + line), soft_wrap=True, highlight=False)
            else:
                console.print(Padding(Text(line), (0, 0, 0, indent), expand=False), highlight=False)


def _made(one: Decided | None) -> str:
    return f" ({'; '.join(map(shown, one.made))})" if one is not None and one.made else ""


def _less(ratio: float | None, low: float | None, high: float | None, pairs: int) -> str:
    """'12.0 % less time per step (95 % interval 10.0 to 14.0, 5 interleaved pairs)'."""
    if ratio is None or low is None or high is None:
        return "an unknown share of time"
    ends = sorted(100 * (1 - end) for end in (low, high))
    between = f"95 % interval {ends[0]:.1f} to {ends[1]:.1f}, {_count(pairs, 'interleaved pair')}"
    return f"{100 * (1 - ratio):.1f} % less time per step ({between})".replace("-", "−")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
