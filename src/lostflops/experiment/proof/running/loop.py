"""Runs pairs until it is sure or has made as many as planned, and says what they tell, however it ends."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from lostflops.errors import CannotWrite, LostflopsError, shown
from lostflops.experiment.proof import differences, drawn_order, paired, parity, starts, values
from lostflops.experiment.proof.paired import Estimate, Look
from lostflops.experiment.proof.proven import DrawnOrder, Proven
from lostflops.experiment.proof.starts import JobStart
from lostflops.experiment.proof.values import Values
from lostflops.units import milliseconds

from . import command
from .command import Ended, TimeIsUp
from .folder import SIDES, PairLine, ProofFolder

Say = Callable[[str], None]
REHEARSED = 10  # steps
INTERVAL = "95 % interval"


class CannotMeasure(LostflopsError):
    """A command that does not run, or whose steps cannot be seen."""


class JobFails(CannotMeasure):
    """The command before the change does not run."""


class Interrupted(Exception):
    """Somebody ends the experiment: what is known is to be said."""


@dataclass(frozen=True)
class _Measured:
    """The first pairs of an experiment at one look."""

    before: list[JobStart]
    after: list[JobStart]
    values: Values
    estimate: Estimate


def run(folder: ProofFolder, say: Say, rehearse: bool = True, until: float | None = None) -> Proven:
    """Run what is left of the experiment, up to `until` on the monotonic clock; what all of it tells.

    Raises CannotMeasure when a command fails in its rehearsal or before the first pair is whole.
    """
    stopped, interrupted, hindered = "", False, False
    try:
        with interruptible():
            if rehearse and not folder.pairs:
                _rehearse(folder, say)
            stopped, hindered = _run_pairs(folder, say, until)
    except (KeyboardInterrupt, Interrupted) as error:
        interrupted = True
        stopped = f"Interrupted{f' by {error}' if str(error) else ''} after {_pairs(len(folder.pairs))}."
    except TimeIsUp:
        stopped = f"Stopped after {_pairs(len(folder.pairs))}: the time was up."
    except CannotWrite as error:
        stopped, hindered = f"Stopped after {_pairs(len(folder.pairs))}: {error.message}", True
    found = replace(
        proven(folder, stopped, ended=True), folder=folder.path, interrupted=interrupted, hindered=hindered
    )
    try:
        folder.end(stopped, found.to_json())
    except CannotWrite as error:
        found = replace(found, notes=(*found.notes, f"{error.message} The page is all that is kept of it"))
    return found


def proven(folder: ProofFolder, stopped: str = "", ended: bool = False) -> Proven:
    """What the finished pairs of an experiment tell: at the look that stopped it, or the last one passed."""
    done = len(folder.pairs)
    stopped = stopped or folder.stopped
    if not stopped and not folder.ended and not ended:
        stopped = f"It was killed, or still runs, after {_pairs(done)}."
    asked = folder.commands
    empty = Proven(
        "cannot tell", None, None, INTERVAL, planned=folder.plan.pairs + sum(folder.more),
        see=folder.plan.see, commands=asked, stopped=stopped, finished=done,
    )  # fmt: skip
    if not done:
        return empty
    found = _at_last_look(folder)
    measured = found or _measured(folder, Look(done, 0.0))
    estimate = measured.estimate
    used = estimate.pairs
    return replace(
        empty,
        verdict=paired.verdict(estimate, folder.plan.least) if found else "cannot tell",
        estimate=estimate if found else Estimate(done, 0.0, estimate.difference, math.inf, math.inf),
        resolution=estimate.resolution if found else None,
        interval=f"{INTERVAL}, {_pairs(used).replace('pair', 'interleaved pair')}",
        values=measured.values,
        drawn=_drawn(folder),
        loss=parity.losses(measured.before, measured.after),
        memory=parity.memory(measured.before, measured.after),
        differences=differences.differences(measured.before, measured.after, asked),
        notes=tuple(_notes(folder, measured, done)),
    )


def _drawn(folder: ProofFolder) -> DrawnOrder | None:
    if folder.plan.seed is None:
        return None
    return DrawnOrder(folder.plan.seed, [first for first, _ in folder.sides(len(folder.pairs))])


def _at_last_look(folder: ProofFolder) -> _Measured | None:
    """The look at which the pairs stop, or the last that they passed; None before the first."""
    found: _Measured | None = None
    plan = folder.paired
    for look in plan.looks:
        if look.pairs > len(folder.pairs):
            return found
        found = _measured(folder, look)
        if plan.stops(found.estimate):
            break
    for look in plan.extensions:
        if look.pairs <= len(folder.pairs):
            at_end = _measured(folder, look)
            # So few pairs may have no interval of that level: what was known before stays.
            if found is None or math.isfinite(at_end.estimate.half) or math.isinf(found.estimate.half):
                found = at_end
    return found


def _measured(folder: ProofFolder, look: Look) -> _Measured:
    before, after = ([starts.read(path) for path in side] for side in folder.runs(look.pairs))
    found = values.of(before, after, folder.plan.measure, folder.plan.per)
    estimated = paired.estimate if folder.plan.seed is None else drawn_order.estimate
    estimate = estimated(found.ratios, look.level or paired.PLAIN)
    return _Measured(before, after, found, estimate)


def _run_pairs(folder: ProofFolder, say: Say, until: float | None) -> tuple[str, bool]:
    """Run pairs up to the end of the plan, or until a look says stop.

    Why it stopped before, if it did, and whether it was the command before the change that failed.
    """
    plan = folder.paired
    looks = {look.pairs: look for look in plan.looks}
    extended = plan.pairs + sum(plan.more)
    while len(folder.pairs) < extended:
        number = len(folder.pairs) + 1
        runs: dict[str, Path] = {}
        for side in folder.sides(number)[-1]:
            ended = _started(folder, number, side, say, until)
            if ended.failed:
                why = f"The command {_named(side)} {ended.said()}"
                if side != SIDES[0] and SIDES[0] not in runs:
                    # Which of them starts first is drawn: the change is to blame where it fails alone.
                    say(f"pair {number}: does the command {_named(SIDES[0])} fail too?")
                    alone = _once(folder, number, SIDES[0], until)
                    if alone.failed:
                        side, ended = SIDES[0], alone
                        why = f"The command {_named(side)} {ended.said()}; the one after it fails too"
                if not folder.pairs:
                    kind = JobFails if side == SIDES[0] else CannotMeasure
                    raise kind(f"{why}.", f"{shown(ended.run)} holds what it printed.")
                return f"Stopped after {_pairs(len(folder.pairs))}. {why}.", side == SIDES[0]
            if not folder.pairs:
                _seen(ended, side, folder)
            runs[side] = ended.run
        try:
            _keep(folder, number, runs, say)
        except CannotWrite:
            raise
        except LostflopsError as error:
            if not folder.pairs:
                raise
            why = f"Pair {number} is not whole: {error.message}"
            return f"Stopped after {_pairs(len(folder.pairs))}. {why}", False
        look = looks.get(len(folder.pairs))
        is_early = not plan.more and len(folder.pairs) < plan.pairs
        if look and is_early and plan.stops(_measured(folder, look).estimate):
            say(f"sure after {_pairs(len(folder.pairs))}")
            break
    return "", False


def _keep(folder: ProofFolder, number: int, runs: dict[str, Path], say: Say) -> None:
    """A pair is whole: note it, with its values by itself."""
    sides = [starts.read(runs[side]) for side in SIDES]
    found = values.of([sides[0]], [sides[1]], folder.plan.measure, folder.plan.per)
    a, b = found.before[0], found.after[0]
    told = {
        "first": folder.sides(number)[-1][0],
        "before_ns": round(a, 3),
        "after_ns": round(b, 3),
        "per": found.per,
    }
    folder.add(PairLine(number, runs["before"].name, runs["after"].name), told)
    change = f"{100 * (b / a - 1):+.1f} %".replace("-", "−")
    of = folder.plan.pairs + sum(folder.more)
    say(f"pair {number} of {of}: {milliseconds(a)} -> {milliseconds(b)}, {change}")


def _started(folder: ProofFolder, number: int, side: str, say: Say, until: float | None) -> Ended:
    """A start that worked, or the second one that failed."""
    ended = _once(folder, number, side, until)
    if ended.failed:
        say(f"pair {number}: the command {_named(side)} {ended.said()}; once more")
        ended = _once(folder, number, side, until, again=True)
    return ended


def _once(folder: ProofFolder, number: int, side: str, until: float | None, again: bool = False) -> Ended:
    plan = folder.plan
    asked = plan.before if side == "before" else plan.after
    return command.run(asked, folder.start(number, side, again), plan.stepping, plan.steps, until=until)


def _rehearse(folder: ProofFolder, say: Say) -> None:
    """Start each command once, up to its first steps: files and compilers are warm then, and it works."""
    commands = dict(zip(SIDES, folder.plan.commands, strict=True))
    for side, asked in commands.items():
        say(f"rehearsing the command {_named(side)}")
        place = folder.free(f"rehearsal-{side}")
        ended = command.run(asked, place, folder.plan.stepping, REHEARSED)
        if ended.failed:
            raise CannotMeasure(
                f"The command {_named(side)} {ended.said()}.", f"{shown(place)} holds what it printed."
            )
        _seen(ended, side, folder)


def _seen(ended: Ended, side: str, folder: ProofFolder) -> None:
    """Raise when no step of a start was seen."""
    try:
        starts.read(ended.run)
    except starts.NoStepLog as error:
        why = command.without_steps(ended, folder.plan.stepping)
        raise CannotMeasure(f"No step of the command {_named(side)} was seen.", f"{why}.") from error


def _named(side: str) -> str:
    return f"{side} the change"


def _notes(folder: ProofFolder, measured: _Measured, done: int) -> list[str]:
    """What pairs tell of themselves, beside their values."""
    found: list[str] = []
    used = measured.estimate.pairs
    if folder.plan.seed is None:
        found.append(
            "the starts ran in a fixed order, as earlier versions had it: a machine that is slow at every "
            "fourth start makes a difference of its own"
        )
    if done > used:
        found.append(f"{_pairs(done)} were finished; the interval is that of the last look, after {used}")
    for side, of in zip(SIDES, (measured.before, measured.after), strict=True):
        # A start is ended when it has made the steps that it is to make, and a rank of it may notice.
        steps = folder.plan.steps
        own = (start for start in of if steps is None or not start.has_made(steps))
        raised = sorted({start.exception for start in own if start.exception})
        if raised:
            found.append(f"starts {_named(side)} ended with {', '.join(map(shown, raised))}")
        if torn := sum(start.torn for start in of):
            found.append(f"{torn} lines of the step logs {_named(side)} are cut off: a full disk, or a kill")
    return found


@contextmanager
def interruptible() -> Generator[None]:
    """Signals that end a process are exceptions meanwhile, so that what is known can be said."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted(signal.Signals(number).name)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _pairs(number: int) -> str:
    return f"{number} pair{'s' * (number != 1)}"
