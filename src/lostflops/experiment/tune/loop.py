"""Records, finds a cause, tries the safest change for it, proves it, keeps it or takes it back; then again.

It ends when nothing is left that is predicted to gain, when the runs or the minutes that were given are used
up, or when somebody ends it. What is known by then is kept, and `--resume` goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from lostflops.errors import CannotWrite, LostflopsError
from lostflops.experiment.proof.paired import TELLING
from lostflops.experiment.proof.prediction import PredictedChange
from lostflops.experiment.proof.proven import Proven
from lostflops.experiment.proof.running import folder as proofs
from lostflops.experiment.proof.running.command import Ended, TimeIsUp
from lostflops.experiment.proof.running.loop import Interrupted, JobFails, interruptible, proven
from lostflops.units import milliseconds

from . import changes
from .candidates import Found, LeftAlone, SeenRun, TuneCandidate, candidates, to_try
from .changes import AppliedChange
from .deciding import decided
from .hands import HANDS, CannotTune, Hands
from .report import TuneReport
from .state import PROOF, SHIM, TRYOUT, Decided, RecordedRound, Trial, TuneFolder

Say = Callable[[str], None]
TRIED_STEPS = 12
FEWEST_PAIRS = TELLING
STEPS, FEW_STEPS = 60, 30  # of a start of a proof
LONG_STEP = 500_000_000  # ns
RECORDED_STEPS = 24  # with those in full
PATIENCE = 60.0  # s that a start with a change may take more than five times what it took without


class _Enough(Exception):
    """The runs or the time are used up, or somebody ended it: the reason."""


@dataclass
class _Loop:
    folder: TuneFolder
    words: Sequence[str]
    say: Say
    hands: Hands
    seen: SeenRun | None = None
    typed: dict[str, str] = field(default_factory=dict[str, str])  # of all recordings, by remedy

    @property
    def until(self) -> float:
        """The end of the time that was given, on the monotonic clock."""
        plan = self.folder.plan
        return time.monotonic() + 60 * plan.minutes - self.folder.spent

    @property
    def _steps(self) -> int:
        """Of each start of a proof: many short starts tell more than few long ones."""
        longest = max(one.step_ns for one in self.folder.recorded)
        return self.folder.plan.steps or (STEPS if longest < LONG_STEP else FEW_STEPS)

    def line(self, applied: Sequence[AppliedChange], shim: Path) -> str:
        return changes.command_line(self.folder.words(self.words, applied), applied, shim)

    def now(self) -> tuple[tuple[AppliedChange, ...], Path]:
        """The changes that are made by now, and the folder that makes them."""
        applied = self.folder.applied
        last = self.folder.kept[-1].folder if applied else "trial-0"
        return applied, self.folder.path / last / SHIM

    def run(self) -> None:
        """Round after round, until nothing is left to try."""
        for number in range(1, self.folder.plan.max_runs + 2):
            recorded = self._recorded(number)
            self.seen = self._look(self.folder.path / recorded.looked_at)
            self.typed |= self.seen.typed
            found = self._found(self.seen)
            if not self._improved(number, found):
                break
        self._prove_whole()

    @property
    def left(self) -> tuple[LeftAlone, ...]:
        """What the last recording names and was not tried."""
        found = self._found(self.seen) if self.seen else []
        tried = {trial.change.remedy for trial in self.folder.trials}
        return tuple(one for one in found if isinstance(one, LeftAlone) and one.remedy not in tried)

    def _found(self, seen: SeenRun) -> list[Found]:
        tried = [trial.change for trial in self.folder.trials if trial.number in self.folder.decided]
        plan = self.folder.plan
        return candidates(seen, self.folder.applied, tried, plan.safety, plan.own)

    def _look(self, run: Path) -> SeenRun:
        return self.hands.look(run, tuple(self.folder.words(self.words, self.folder.applied)))

    def _recorded(self, number: int) -> RecordedRound:
        """The recording of a round, made now where it is not there."""
        for one in self.folder.recorded:
            if one.round == number:
                return one
        self._afford(1)
        applied, shim = self.now()
        place = self.folder.free(f"recorded-{number}")
        self.say(f"round {number}: recording the job")
        began = time.monotonic()
        ended = self._start(self.hands.record, self.line(applied, shim), place, RECORDED_STEPS, self.until)
        if ended.failed:
            raise CannotTune(f"The command {ended.said()}.", f"{place} holds what it printed.")
        took = round(time.monotonic() - began, 3)
        seen = self._look(place)
        stacks = self._with_stacks(number, self.line(applied, shim)) if seen.asks_stacks else ""
        one = RecordedRound(number, place.name, seen.step_ns, seen.verdict, took, stacks)
        self.folder.record(one)
        self.say(f"round {number}: step {milliseconds(seen.step_ns)}. {seen.verdict}")
        return one

    def _with_stacks(self, number: int, line: str) -> str:
        """The name of a recording with call stacks; empty where it cannot be made."""
        if self.folder.runs >= self.folder.plan.max_runs:
            return ""
        self.say(f"round {number}: recording call stacks, as a finding asks for them")
        place = self.folder.free(f"recorded-{number}-stacks")
        ended = self._start(self.hands.record_stacks, line, place, RECORDED_STEPS, self.until)
        if ended.failed:
            return ""
        try:
            self._look(place)
        except CannotTune:
            return ""
        return place.name

    def _improved(self, number: int, found: Sequence[Found]) -> bool:
        """Try what gives reason to, until something stays."""
        if any(trial.round == number for trial in self.folder.kept):
            return True  # it had ended before a kill
        pending = self.folder.pending
        if pending is not None and pending.round == number and self._decide(pending):
            return True
        tried = [trial.change for trial in self.folder.trials]
        for one in to_try(found):
            if one.change not in tried and self._decide(self._attempt(number, one)):
                return True
        return False

    def _attempt(self, number: int, one: TuneCandidate) -> Trial:
        self._afford(1 + 2 * FEWEST_PAIRS)
        trial = Trial(
            len(self.folder.trials) + 1, number, one.change, one.finding.name, one.finding.claim,
            one.gain, one.low, one.high, None if one.gain is not None else one.at_most, one.edit,
        )  # fmt: skip
        self.folder.attempt(trial)
        gain = (
            f"at most {100 * one.at_most:.0f} %" if one.gain is None else f"predicted {100 * one.gain:.0f} %"
        )
        self.say(f"round {number}: trying {trial.change.made}, {gain} less time")
        return trial

    def _decide(self, trial: Trial) -> bool:
        """Try a change out, prove it, and say whether it stays."""
        place = self.folder.path / trial.folder
        with_it = changes.joined(self.folder.applied, trial.change)
        line = self.line(with_it, place / SHIM)
        made: list[str] = []
        if not proofs.is_one(place / PROOF):
            changes.write(with_it, place / SHIM)
            refused, made = self._tried_out(trial, line)
            if refused:
                return self._said(Decided(trial.number, False, refused, made=made))
        proof, found = self._proof(place / PROOF, self.line(*self.now()), line)
        if found.interrupted:
            raise Interrupted(found.stopped)
        is_cut = found.stopped and len(proof.pairs) < proof.plan.pairs and time.monotonic() >= self.until - 1
        if is_cut and found.verdict not in ("faster", "slower"):  # neither was shown at the last look
            raise _Enough(_time(self.folder))
        kept, why = decided(found, self.folder.plan.safety)
        if found.hindered and not kept:  # `--resume` goes on with this proof
            raise _Enough(found.stopped.rstrip("."))
        if found.stopped and not kept:
            why = f"{why}. {found.stopped.rstrip('.')}"
        stays = self._said(
            Decided(
                trial.number, kept, why, found.verdict, found.ratio, found.low, found.high, found.pairs,
                found.loss.parity, made or changes.taken_up(place / SHIM).get(trial.change.remedy, []),
                proof.started, self._most(trial, found),
            )
        )  # fmt: skip
        if found.loss.parity == "not finite":  # no change can be checked by such a loss
            raise _Enough(
                f"the job diverges by itself, its loss is not finite from step {found.loss.first} on"
            )
        return stays

    def _most(self, trial: Trial, found: Proven) -> float | None:
        """What a predicted gain may be of the proven steps, where recorded steps took longer."""
        if trial.gain is None or trial.low is None or trial.high is None:
            return None
        recorded = next((one.step_ns for one in self.folder.recorded if one.round == trial.round), 0)
        said = PredictedChange(trial.edit, trial.gain, trial.low, trial.high, recorded)
        return said.most(found.step_before)

    def _said(self, one: Decided) -> bool:
        self.folder.decide(one)
        self.say(f"{self.folder.trials[one.number - 1].change.remedy}: {one.why}")
        return one.kept

    def _tried_out(self, trial: Trial, line: str) -> tuple[str, list[str]]:
        """One short start: why the change is not to be proven (empty where it is), and what was made."""
        self._afford(1)
        shim = self.folder.path / trial.folder / SHIM
        place = self.folder.free(f"{trial.folder}/{TRYOUT}")
        usual = max((one.seconds_of_start for one in self.folder.recorded), default=0.0)
        limit = min(self.until, time.monotonic() + 5 * usual + PATIENCE)
        try:
            ended = self._start(self.hands.try_out, line, place, TRIED_STEPS, limit)
        except TimeIsUp:
            return "taken back: the job hangs with it, or is five times as slow", []
        remedy = trial.change.remedy
        if ended.failed:
            return f"taken back: with it the command {ended.said()}", []
        if wrong := changes.failed(shim).get(remedy):
            return f"taken back: it could not be made ({wrong[0]})", []
        made = changes.taken_up(shim).get(remedy, [])
        if changes.of(trial.change).is_inside and not made:
            return "taken back: the job has nothing that it changes", []
        return "", made

    def _proof(self, place: Path, before: str, after: str) -> tuple[proofs.ProofFolder, Proven]:
        """A proof, gone on with where it was begun."""
        plan = self.folder.plan
        if proofs.is_one(place):
            proof = proofs.read(place)
            if proof.ended and not proof.stopped:
                return proof, proven(proof)
            proof.ended, proof.stopped = False, ""
            proof.plan.before, proof.plan.after = before, after
        else:
            most = (plan.max_runs - self.folder.runs) // 2
            proof = proofs.made(
                place,
                proofs.PlanLine(
                    before,
                    after,
                    min(max(plan.pairs, FEWEST_PAIRS), most),
                    steps=self._steps,
                    step_on=plan.step_on,
                    seed=proofs.drawn_seed(),
                    decides=True,
                ),
            )
        try:
            return proof, self.hands.prove(proof, self.say, self.until)
        except LostflopsError as error:
            if isinstance(error, CannotWrite):
                raise
            hindered = isinstance(error, JobFails)
            return proof, Proven("cannot tell", None, None, "", stopped=error.message, hindered=hindered)

    def _prove_whole(self) -> None:
        """All changes together against the job as it was: one proof tells it where one change was kept."""
        if len(self.folder.kept) < 2 or self.folder.whole is not None:
            return
        if self.folder.plan.max_runs - self.folder.runs < 2 * FEWEST_PAIRS or time.monotonic() >= self.until:
            return
        self.say("proving all changes together")
        applied, shim = self.now()
        before = self.line((), shim)
        _, found = self._proof(self.folder.together, before, self.line(applied, shim))
        if found.interrupted:
            raise Interrupted(found.stopped)
        self.folder.prove_whole(found.to_json())

    def _start(self, start: Callable[..., Ended], line: str, place: Path, steps: int, until: float) -> Ended:
        self.folder.start()
        try:
            return start(line, place, self.folder.plan.stepping, steps, until)
        except TimeIsUp:
            if time.monotonic() >= self.until - 1:
                raise _Enough(_time(self.folder)) from None
            raise

    def _afford(self, runs: int) -> None:
        """Raise _Enough where so many starts more are not allowed."""
        plan = self.folder.plan
        if self.folder.spent >= 60 * plan.minutes:
            raise _Enough(_time(self.folder))
        if self.folder.runs + runs > plan.max_runs:
            raise _Enough(
                f"{self.folder.runs} of {plan.max_runs} starts are used, and the next change takes {runs}; "
                "`--max-runs` allows more"
            )


def run(folder: TuneFolder, words: Sequence[str], say: Say, hands: Hands = HANDS) -> TuneReport:
    """Go through the loop, from where it is; what came of it.

    Raises CannotTune where the job cannot be recorded at all, before any change was made.
    """
    loop = _Loop(folder, words, say, hands)
    ended, interrupted = "", False
    try:
        with interruptible():
            loop.run()
    except (KeyboardInterrupt, Interrupted):
        ended, interrupted = "somebody ended it", True
    except _Enough as enough:
        ended = str(enough)
    except CannotWrite as error:
        ended = error.message.rstrip(".")
    except LostflopsError as error:
        if not folder.recorded:
            raise
        ended = error.message.rstrip(".")
    with suppress(CannotWrite):  # then the page is all that is kept of it
        folder.end(ended)
    return TuneReport(folder, tuple(words), loop.left, loop.typed, ended, interrupted)


def _time(folder: TuneFolder) -> str:
    return f"the {folder.plan.minutes:g} minutes are over; `--minutes` gives more"
