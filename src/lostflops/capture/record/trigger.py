"""Records a window of a job that runs already: asks the recorder inside it, or PyTorch itself."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lostflops import run_folder
from lostflops.capture.record import on_demand
from lostflops.capture.record.outcome import RankLog, read_log
from lostflops.capture.record.recording import LENGTH, Ranges
from lostflops.errors import BadOption, CannotWrite, NothingThere, shown

LOOK_EVERY = 0.2
STANDSTILL = 120.0  # seconds without a step of any rank, after which nobody waits on


@dataclass(frozen=True)
class Triggered:
    """What was recorded, in words, and what `lostflops why` can be asked about."""

    lines: Sequence[str]
    paths: Sequence[Path]


def run_of(process: int) -> Path | None:
    """The run folder that a process is recorded into, by what is on its PYTHONPATH."""
    for entry in on_demand.environment_of(process).get("PYTHONPATH", "").split(os.pathsep):
        if (
            entry
            and (Path(entry) / run_folder.RECORDER).is_dir()
            and (Path(entry) / run_folder.SETTINGS).is_file()
        ):
            return Path(entry).parent
    return None


def below(process: int) -> Iterator[int]:
    """The process and those that it started, and those that they started; parents first."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            # The name in parentheses may hold anything.
            parents.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(
                int(stat.parent.name)
            )
    waiting = [process]
    while waiting:
        yield (one := waiting.pop(0))
        waiting += sorted(parents.get(one, ()))


def record(target: str, request: on_demand.Request, ranks: Ranges | None, output: Path | None) -> Triggered:
    """Have `target`, a run folder or a process id, record now. Raises a LostflopsError that says why not."""
    process = int(target) if target.isdigit() and not Path(target).exists() else None
    if process is None:
        run = Path(target)
        if not (run / run_folder.BOOT / run_folder.RECORDER).is_dir():
            if not run.exists():
                raise NothingThere(
                    run, "give the folder that `lostflops record` made, or the id of a process."
                )
            raise BadOption(
                f"'{shown(run)}' is not the folder of a job recorded by `lostflops record`.",
                "give that folder, or the id of a process of the job.",
            )
    else:
        if not Path(f"/proc/{process}").exists():
            raise BadOption(f"There is no process {process} on this machine.", "run this on the job's node.")
        # `record` itself, a shell or a launcher has the job below it.
        found = next((run for one in below(process) if (run := run_of(one))), None)
        if found is None:
            return _without_recorder(process, request, output)
        run = found
    if output is not None:
        raise BadOption(
            "--output cannot be used here: the recording goes into the job's own run folder.",
            "leave out --output.",
        )
    alive = [log for log in _logs(run) if _alive(log)]
    if process is not None and any(log.who.get("pid") == process for log in alive):
        alive = [log for log in alive if log.who.get("pid") == process]
        ranks = tuple((log.rank, log.rank) for log in alive)
    if alive:
        return _inside(run, request, ranks, alive)
    if ranks is not None:
        raise BadOption(
            "--ranks cannot be used yet: no process has finished a step, which is when its rank is known.",
            "leave out --ranks.",
        )
    return _by_pytorch(run, request)


def _inside(run: Path, request: on_demand.Request, ranks: Ranges | None, alive: list[RankLog]) -> Triggered:
    """Ask the recorder in each rank, which looks for a request between steps."""
    asked = [log for log in alive if ranks is None or any(a <= log.rank <= b for a, b in ranks)]
    if not asked:
        had = ", ".join(str(log.rank) for log in alive[:12])
        raise BadOption("None of these ranks runs on this machine.", f"ranks here: {had}.")
    steps = LENGTH if request.steps is None and request.duration is None else request.steps
    name = secrets.token_hex(4)
    body = {"id": name, "steps": steps, "duration": request.duration, "ranks": ranks}
    path = run / run_folder.BOOT / run_folder.REQUEST
    beside = path.with_name(f".{run_folder.REQUEST}.{name}")
    try:
        beside.write_text(json.dumps(body) + "\n")
        beside.replace(path)
    except OSError as error:
        raise CannotWrite(path, error) from error
    try:
        done, silent = _answers(asked, name)
    finally:
        # Ranks that have not looked yet are not to begin when nobody waits.
        with suppress(OSError):
            if json.loads(path.read_text()).get("id") == name:
                path.unlink()
    kept = [window for window in done.values() if window.get("file")]
    lines = [f"rank {rank}: {w.get('reason')}" for rank, w in sorted(done.items()) if not w.get("file")]
    lines += [f"rank {rank}: {why}" for rank, why in sorted(silent.items())]
    if not kept:
        raise BadOption("\n".join(["Nothing was recorded.", *lines]))
    first, last = min(w["first"] for w in kept), max(w["last"] for w in kept)
    named = f"step {first}" if first >= last else f"steps {first}-{last}"
    many = f"{len(kept)} rank{'s' * (len(kept) != 1)}"
    return Triggered([f"recorded {named} on {many} -> {shown(run)}", *lines], [run])


def _answers(asked: Iterable[RankLog], name: str) -> tuple[dict[int, Mapping[str, Any]], dict[int, str]]:
    """The window of each rank, and of the others why there is none."""
    waiting = {log.path: log for log in asked}
    sizes = {path: path.stat().st_size for path in waiting}
    read = dict(sizes)
    done: dict[int, Mapping[str, Any]] = {}
    silent: dict[int, str] = {}
    moved = time.monotonic()
    while waiting:
        time.sleep(LOOK_EVERY)
        for path, log in list(waiting.items()):
            gone = not _alive(log)  # before the file is read: what it wrote last counts
            lines, read[path] = _new_lines(path, read[path])
            if lines:
                moved = time.monotonic()
            for line in lines:
                over = (
                    line.get("kind") in (run_folder.WINDOW, run_folder.NSYS_WINDOW)
                    and line.get("state") != run_folder.OPEN
                )
                if over and line.get("request") == name:
                    done[log.rank] = line
                    waiting.pop(path, None)
            if gone and path in waiting:
                waiting.pop(path)
                silent[log.rank] = "it ended before it wrote its window"
        if time.monotonic() - moved > STANDSTILL:
            why = f"it finished no step for {STANDSTILL:.0f} s"
            return done, silent | {log.rank: why for log in waiting.values()}
    return done, silent


def _new_lines(path: Path, at: int) -> tuple[list[Mapping[str, Any]], int]:
    with path.open("rb") as file:
        file.seek(at)
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    lines: list[Mapping[str, Any]] = []
    for line in whole.splitlines():
        with suppress(ValueError):
            lines.append(json.loads(line))
    return lines, at + len(whole)


def _logs(run: Path) -> list[RankLog]:
    return [read_log(path) for path in sorted(run.glob(run_folder.STEP_LOGS_OF_RUN))]


def _alive(log: RankLog) -> bool:
    """Whether the process that writes this log runs on this machine."""
    pid = log.who.get("pid")
    if not isinstance(pid, int):
        return False
    found = on_demand.environment_of(pid).get("PYTHONPATH", "")
    boot = log.path.parent.parent / run_folder.BOOT
    return any(
        os.path.realpath(entry) == os.path.realpath(boot) for entry in found.split(os.pathsep) if entry
    )


def _by_pytorch(run: Path, request: on_demand.Request) -> Triggered:
    """No rank makes steps: ask PyTorch, if the job was started so that it asks us."""
    folders = on_demand.folders(run)
    if not folders:
        raise BadOption(
            f"No running process of '{shown(run)}' on this machine has finished a step.",
            "run this on the job's node while it trains. A job without optimizer steps can be recorded "
            "only if it was started with `lostflops record --on-demand`.",
        )
    asked = [on_demand.ask(f, _bounded(request), run / run_folder.ON_DEMAND, lead=1.5) for f in folders]
    return _said([one for one in asked if one.traces or one.lost], [run])


def _without_recorder(process: int, request: on_demand.Request, output: Path | None) -> Triggered:
    """A process that `lostflops record` did not start."""
    variables = on_demand.environment_of(process)
    if not variables:
        raise BadOption(
            f"The environment of process {process} cannot be read.", "run this as the user who started it."
        )
    if "KINETO_USE_DAEMON" not in variables:
        raise BadOption(
            f"Process {process} was started without lostflops and without KINETO_USE_DAEMON=1: it cannot be "
            "recorded while it runs.",
            "start the job again with `lostflops record`, or with KINETO_USE_DAEMON=1 set.",
        )
    folder = variables.get("KINETO_IPC_SOCKET_DIR")
    if (request.duration or 0) > on_demand.LONGEST_SECONDS or (request.steps or 0) > on_demand.MOST_STEPS:
        raise BadOption(
            "This window is too long: a job that ends while PyTorch records it this way crashes.",
            f"ask for at most `--duration {on_demand.LONGEST_SECONDS:g}` or "
            f"`--steps {on_demand.MOST_STEPS}`; a job started with `lostflops record` allows more.",
        )
    where = output or Path("runs") / f"process-{process}-{time.strftime('%Y%m%d-%H%M%S')}"
    asked = on_demand.ask(
        Path(folder) if folder else None,
        _bounded(request),
        where,
        wanted=lambda client: process in client.pids,
    )
    return _said([asked], [where])


def _bounded(request: on_demand.Request) -> on_demand.Request:
    if request.steps is None and request.duration is None:
        return on_demand.Request(duration=1.0, steps=None)
    return request


def _said(asked: Sequence[on_demand.Collected], paths: Sequence[Path]) -> Triggered:
    traces = [trace for one in asked for trace in one.traces.values()]
    lines = [f"process {pid}: {why}" for one in asked for pid, why in sorted(one.lost.items())]
    if not traces:
        raise BadOption("\n".join(["Nothing was recorded.", *lines]))
    many = f"{len(traces)} process{'es' * (len(traces) != 1)}"
    return Triggered([f"recorded {many} -> {shown(traces[0].parent)}", *lines], paths)
