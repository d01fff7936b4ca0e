"""What came of a recording, read from its folder after the job has ended, and how it is said."""

from __future__ import annotations

import json
import signal
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lostflops import run_folder
from lostflops.capture.nsys import outcome as nsys_outcome
from lostflops.capture.record.injected.lostflops_recorder.windows import reason
from lostflops.capture.record.new_run import make_private
from lostflops.capture.record.recording import Recording
from lostflops.errors import LostflopsError, as_argument, shown

WARM_UP = 3  # first steps, in which a job still builds its caches
NEARBY = 100  # steps before and after the window that it is compared with
ENOUGH = 3
PACKS_FOR = 60.0  # s
MOST_NAMED = 6  # windows
# For a window that was lost: what stands first is the likeliest to help.
WHAT_TO_DO = {
    reason.OWN_PROFILER: "Hint: record other steps with `--steps`, or remove the profiler from the script",
    reason.DISK_FULL: "Hint: free some space, or choose an --output on another disk",
}


@dataclass(frozen=True)
class RankLog:
    """The log of one process of the job."""

    path: Path
    who: Mapping[str, Any]
    steps: Sequence[Mapping[str, Any]]
    windows: Sequence[Mapping[str, Any]]
    annotations: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def rank(self) -> int:
        return self.who.get("rank", 0)


@dataclass(frozen=True)
class Outcome:
    """All that the job left in the folder."""

    recording: Recording
    status: int
    logs: Sequence[RankLog]
    messages: Sequence[str] = field(default=())
    whole: bool = True  # False: the logs of one node of several

    @property
    def kept(self) -> list[tuple[RankLog, Mapping[str, Any]]]:
        return [(log, window) for log in self.logs for window in log.windows if window.get("file")]

    @property
    def lost(self) -> list[tuple[RankLog, str]]:
        return [(log, str(w.get("reason"))) for log in self.logs for w in log.windows if not w.get("file")]


def read(recording: Recording, status: int, node: str | None = None) -> Outcome:
    """What is in the folder, or in that of one node where other nodes look after theirs."""
    logs = [
        read_log(path)
        for path in sorted(recording.run.glob(f"{node or run_folder.NODES}/{run_folder.STEP_LOGS}"))
    ]
    messages: list[str] = []
    with suppress(OSError):
        messages = (recording.run / run_folder.MESSAGES).read_text(errors="replace").splitlines()
    return Outcome(recording, status, logs, messages, whole=node is None)


def read_log(path: Path) -> RankLog:
    """The lines of a rank's log; those that were torn by a kill or a full disk are passed over."""
    who: dict[str, Any] = {}
    steps: list[dict[str, Any]] = []
    windows: list[dict[str, Any]] = []
    annotations: dict[str, Any] = {}
    with path.open("rb") as file:
        for line in file:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if "step" in entry:
                steps.append(entry)
            elif entry.get("kind") == run_folder.RANK:
                who = entry
            elif entry.get("kind") == run_folder.WINDOW:
                windows.append(entry)
            elif entry.get("kind") == run_folder.MARKED:
                annotations = entry
    return RankLog(path, who, steps, windows, annotations)


def compress(outcome: Outcome) -> int:
    """Pack the traces and clean them of names and folders; the bytes they take then.

    Training does not wait for it. A scheduler still keeps the nodes for us, so what is not packed in a minute
    stays as it is.
    """
    # It takes a while to import, and the job is not to start later for it.
    from lostflops.privacy import text
    from lostflops.privacy.cleaner import Cleaner

    total = 0
    deadline = time.monotonic() + PACKS_FOR
    written = [(log.path.parent / window["file"], log.path.parent.name) for log, window in outcome.kept]
    written += [(trace, run_folder.ON_DEMAND) for trace in _on_demand(outcome)]
    for plain, name in written:
        if time.monotonic() > deadline:
            with suppress(OSError):
                total += plain.stat().st_size
            continue
        packed = plain.with_name(plain.name + ".gz")
        beside = plain.with_name(f".{packed.name}{run_folder.UNFINISHED}")
        try:
            # A machine is called as the folder of its node is.
            cleaner = Cleaner(node=lambda _, node=name: node)
            text.packed(plain, beside, cleaner, zipped=True, level=2)
            beside.replace(packed)
            plain.unlink()
            total += packed.stat().st_size
        except (OSError, LostflopsError):  # a full disk: the trace stays as it is
            with suppress(OSError):
                beside.unlink(missing_ok=True)
                total += plain.stat().st_size
    make_private(outcome.recording.run)
    return total


def _on_demand(outcome: Outcome) -> list[Path]:
    return sorted(outcome.recording.run.glob(f"{run_folder.ON_DEMAND}/*.json"))


def slowdown(logs: Iterable[RankLog]) -> float | None:
    """By what share steps took longer inside the window than around it: the median rank's, if it is known."""
    measured = [found for log in logs if (found := _slowdown(log.steps)) is not None]
    return statistics.median(measured) if measured else None


def _slowdown(steps: Sequence[Mapping[str, Any]]) -> float | None:
    inside = {s["step"] for s in steps if s["window"]}
    if not inside:
        return None
    near = range(max(WARM_UP, min(inside) - NEARBY), max(inside) + NEARBY + 1)
    # The step before the window prepares the profiler, so it belongs to neither.
    around = [
        s["duration"] for s in steps if s["step"] in near and not s["window"] and s["step"] + 1 not in inside
    ]
    recorded = [s["duration"] for s in steps if s["window"]]
    if len(recorded) < ENOUGH or len(around) < ENOUGH:
        return None
    return statistics.median(recorded) / statistics.median(around) - 1


def summary(outcome: Outcome) -> list[str]:
    """The lines that `record` ends with: what was recorded, what was not and why, and what to do next."""
    if outcome.recording.nsys:
        logs = [log.path for log in outcome.logs]
        return [*nsys_outcome.summary(outcome.recording, logs, _ending(outcome.status)), *_faults(outcome)]
    on_demand = _on_demand(outcome)
    if not outcome.kept and on_demand:
        compress(outcome)
        many = f"{len(on_demand)} trace{'s' * (len(on_demand) != 1)}"
        said = f"recorded {many} on demand -> {shown(on_demand[0].parent)}"
        return [said, *_faults(outcome), f"next: lostflops why {as_argument(outcome.recording.run)}"]
    if not outcome.kept:
        # The step log alone tells how long steps took and how the job ended.
        log = any(log.steps for log in outcome.logs)
        then = [f"next: lostflops why {as_argument(outcome.recording.run)}"] if log else []
        return [*_nothing(outcome), *_faults(outcome), *then]
    size = compress(outcome)
    ranks = {log.rank for log, _ in outcome.kept}
    facts = [amount(size)]
    slower = slowdown(log for log, _ in outcome.kept)
    if slower is not None:
        facts.append(
            f"{slower:.1%} slower while recording".replace("%", " %") if slower > 0 else "not slower"
        )
    writing = max(window["took"] for _, window in outcome.kept) / 1e9
    facts.append(f"{writing:.1f} s to write")
    many = f"{len(ranks)} rank{'s' * (len(ranks) != 1)}"
    lines = [f"recorded {_steps(outcome)} on {many} -> {shown(outcome.recording.run)}  ({', '.join(facts)})"]
    early = {w["reason"] for _, w in outcome.kept if w["reason"]}
    lines += [f"ended early: {why}" for why in sorted(early)]
    lines += [f"rank {log.rank} is missing one window: {why}" for log, why in outcome.lost]
    world = max((log.who.get("world") or 1 for log in outcome.logs), default=1)
    absent = sorted(set(range(min(world, 1 << 20))) - {log.rank for log in outcome.logs})
    if absent and outcome.whole:
        lines.append(f"{_listed(absent)} logged no step in this folder")
    lines += [*_as_written(outcome), *_unmarked(outcome.logs), *_faults(outcome)]
    path = as_argument(outcome.recording.run)
    partly = " --allow-missing-ranks" if 1 < len(ranks) < world else ""
    return [*lines, f"next: lostflops why {path}{partly}"]


def _as_written(outcome: Outcome) -> list[str]:
    """Say what was not packed, and so not cleaned either."""
    plain = sum((log.path.parent / window["file"]).exists() for log, window in outcome.kept)
    traces = f"{plain} trace{'s are' if plain != 1 else ' is'} not packed"
    return [f"{traces} and may name machines and folders: `lostflops scrub` before sharing"] if plain else []


def _steps(outcome: Outcome) -> str:
    """The recorded steps: of each window from the first to the last of any rank."""
    windows: dict[object, list[Mapping[str, Any]]] = {}
    for _, window in outcome.kept:
        windows.setdefault(window.get("request") or window.get("number"), []).append(window)
    ranges = sorted((min(w["first"] for w in of), max(w["last"] for w in of)) for of in windows.values())
    named = [f"{first}" if first >= last else f"{first}-{last}" for first, last in ranges]
    shown = ", ".join(named[:MOST_NAMED]) + (
        f" and {len(named) - MOST_NAMED} more windows" if named[MOST_NAMED:] else ""
    )
    return f"step {shown}" if len(named) == 1 and "-" not in shown else f"steps {shown}"


ITS_OUTPUT = "Hint: the job's own output, above, says why it ended"


def amount(size: int) -> str:
    if size < 1e6:
        return f"{size / 1e3:.0f} kB"
    return f"{size / 1e6:.1f} MB" if size < 1e9 else f"{size / 1e9:.2f} GB"


def _listed(ranks: Sequence[int]) -> str:
    named = ", ".join(map(str, ranks[:12])) + (", …" if len(ranks) > 12 else "")
    return f"rank{'s' * (len(ranks) != 1)} {named}"


def _unmarked(logs: Sequence[RankLog]) -> Iterable[str]:
    """Which annotations left no mark on any rank, and why."""
    told = [log.annotations for log in logs if log.annotations]
    if not told:
        return
    marked = {name for said in told for name, calls in said.get("calls", {}).items() if calls}
    why: dict[str, list[str]] = {}
    for said in told:
        for name, failure in said.get("failed", {}).items():
            why.setdefault(f"not annotated, {failure}", []).append(name)
        why.setdefault("not annotated, the module was not imported", []).extend(said.get("not_imported", ()))
        why.setdefault("annotated, but not called while recording", []).extend(said.get("calls", ()))
    for cause, found in why.items():
        names = [name for name in dict.fromkeys(found) if name not in marked]
        marked.update(names)  # said once
        if names:
            more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
            yield f"{cause}: {', '.join(names[:MOST_NAMED])}{more}"


def _faults(outcome: Outcome) -> list[str]:
    shown = [f"{run_folder.MESSAGES}: {message}" for message in outcome.messages[:3]]
    more = len(outcome.messages) - len(shown)
    return shown + ([f"{run_folder.MESSAGES}: {more} more line{'s' * (more != 1)}"] if more > 0 else [])


def _nothing(outcome: Outcome) -> list[str]:
    """Why there is no window, as far as the folder tells, and what to do."""
    ended = _ending(outcome.status)
    recording = outcome.recording
    seen = {file.name.removeprefix(run_folder.SEEN) for file in recording.boot.glob(f"{run_folder.SEEN}*")}
    first = recording.steps[0][0]
    made = max((log.steps[-1]["step"] + 1 for log in outcome.logs if log.steps), default=0)
    advice = f"Hint: `--steps {max(1, made // 2)}-{made - 1}`" if made > 1 else "Hint: run it for more steps"
    if outcome.lost:
        reasons = sorted({why for _, why in outcome.lost})
        codes = {window.get("code") for log in outcome.logs for window in log.windows}
        hints = {**WHAT_TO_DO, reason.JOB_ENDED: advice}
        hint = next((said for code, said in hints.items() if code in codes), None)
        return [f"nothing was recorded: {'; '.join(reasons)}", *([hint] if hint else [])]
    if outcome.logs:
        steps = f"{made} step{'s' * (made != 1)}"
        if recording.ranks is not None and not any(
            low <= log.rank <= high for log in outcome.logs for low, high in recording.ranks
        ):
            had = _listed(sorted({log.rank for log in outcome.logs}))
            return [f"nothing was recorded: --ranks selects none of the ranks in the log ({had})"]
        if recording.delay is not None:
            why = f"before the window opened: --delay is {recording.delay:g} s"
            return [f"nothing was recorded: the job {ended} after {steps}, {why}", "Hint: shorten --delay"]
        if made > first:
            why = f"the job {ended} in its step {made}, while the window was open"
            return [f"nothing was recorded: {why}", advice]
        return [
            (
                f"nothing was recorded: the job {ended} after {steps}, before step {first}, where "
                "recording starts"
            ),
            advice,
        ]
    if run_folder.SEEN_TORCH in seen:
        if outcome.status:
            return [f"nothing was recorded: the job {ended} before its first step", ITS_OUTPUT]
        if recording.step_on:
            batches = recording.step_on.function is None
            what = "no DataLoader returned a batch" if batches else f"{recording.step_on} was never called"
            return [
                f"nothing was recorded: {what}, so no step ended",
                f"Hint: if lostflops could not hook it, {recording.run / run_folder.MESSAGES} says why",
            ]
        return [
            "nothing was recorded: PyTorch was imported, but no `torch.optim` optimizer finished a step",
            (
                "Hint: a step ends when `optimizer.step()` returns; name another function with "
                "`--step-on MODULE:FUNCTION`"
            ),
        ]
    if run_folder.SEEN_PYTHON in seen:
        why = f"the job {ended}, and " if outcome.status else ""
        return [
            f"nothing was recorded: {why}no Python process of it imported torch.optim",
            ITS_OUTPUT
            if outcome.status
            else "Hint: only PyTorch is recorded: give the command that starts it",
        ]
    return [
        (
            f"nothing was recorded: no Python process of the job started with "
            f"PYTHONPATH={shown(recording.boot)} (the job {ended})"
        ),
        "Hint: a container, `sudo`, `env -i` or `python -I` inside the command drops the variable",
    ]


def _ending(status: int) -> str:
    if status < 0:
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"
