"""Asks PyTorch processes that already run for a trace, as the agent that their profiler's client looks for.

A process that was started with KINETO_USE_DAEMON sends a datagram to a local socket every few seconds, to
ask whether it is to record. Nobody answers until a trace is wanted; that costs the process nothing but the
question, and at its end a wait for the last one.

A datagram is the size of its body (8 bytes), the type (32 bytes, padded with NUL) and the body, little
endian. The body of a question, type `req`: what the process could do (bit 2: it has no profiler open), the
number of process ids, a job id, then its own process id and its ancestors'. The body of the answer: nothing,
or the profiler's settings, a line each.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from lostflops import run_folder
from lostflops.capture.record.injected.lostflops_recorder.rank import launched
from lostflops.errors import BadOption, CannotWrite

AGENT = "dynolog"  # the name under which every client looks
HEADER = struct.Struct("<Q32s")
QUESTION = struct.Struct("<iiq")
IDLE = 2
ANSWERED = b"req"
CONFIG = "ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1\n"
LOOK_AGAIN = 6.0  # seconds between two questions of a client that nobody configured
LOOK = 1.0  # seconds from the answer to a client's first look at the clock; a start before it is missed
AHEAD = 1.5 * LOOK  # so long after the last answer a window begins
ATTEMPTS = 3
PATIENCE = 60.0  # seconds for writing a trace
EMPTY = 2048  # bytes; a process that did nothing, like a launcher, leaves less
LONGEST = 54  # bytes of a socket folder's path, so that the names in it fit
LONGEST_SECONDS, MOST_STEPS = 2.0, 20  # where nothing holds up the end of a process that is being recorded


@dataclass(frozen=True)
class Client:
    """A process that asked."""

    address: str | bytes
    pids: tuple[int, ...]  # its own, then its ancestors'
    idle: bool


@dataclass(frozen=True)
class Request:
    """What to record: so many seconds, or so many steps of `torch.optim` optimizers."""

    duration: float | None
    steps: int | None
    shapes: bool = True

    def settings(self, file: Path, start: float) -> str:
        keys: dict[str, object] = {"ACTIVITIES_LOG_FILE": file}
        if self.steps is not None:
            # At the next multiple, because ranks ask at different times.
            keys |= {"PROFILE_START_ITERATION": 0, "PROFILE_START_ITERATION_ROUNDUP": 10}
            keys |= {"ACTIVITIES_ITERATIONS": self.steps, "ACTIVITIES_WARMUP_ITERATIONS": 1}
        else:
            keys |= {"PROFILE_START_TIME": int(start * 1000), "ACTIVITIES_WARMUP_PERIOD_SECS": 0}
            keys |= {"ACTIVITIES_DURATION_MSECS": max(1, round((self.duration or 0) * 1000))}
        keys["PROFILE_REPORT_INPUT_SHAPES"] = str(self.shapes).lower()
        return "".join(f"{key}={value}\n" for key, value in keys.items())


@dataclass(frozen=True)
class Collected:
    """What came of it, by process id."""

    traces: Mapping[int, Path]
    lost: Mapping[int, str]


class Agent:
    """The socket that clients look for, in their folder or, without one, under an abstract name."""

    def __init__(self, folder: Path | None) -> None:
        self._address: str | bytes = str(folder / AGENT) if folder else b"\0" + AGENT.encode() + b"\0"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def __enter__(self) -> Agent:
        if isinstance(self._address, str) and self._dead(self._address):
            Path(self._address).unlink(missing_ok=True)
        try:
            self._socket.bind(self._address)
        except OSError as error:
            self._socket.close()
            if error.errno in (98, 13):  # taken, or somebody else's
                raise BadOption(
                    "Another profiling agent already serves these processes (dynolog, for example).",
                    "request the trace from that agent.",
                ) from error
            raise BadOption(
                f"lostflops cannot open a socket in the folder where the processes ask: {error.strerror}."
            ) from error
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()
        if isinstance(self._address, str):
            Path(self._address).unlink(missing_ok=True)

    def question(self, patience: float) -> Client | None:
        """The next process that asks, if one does in time."""
        self._socket.settimeout(patience)
        try:
            data, address = self._socket.recvfrom(1 << 16)
        except OSError:
            return None
        try:
            size, kind = HEADER.unpack_from(data)
            able, count, _ = QUESTION.unpack_from(data, HEADER.size)
            if kind.rstrip(b"\0") != ANSWERED or not 0 < count < 1000 or size < QUESTION.size + 4 * count:
                return None
            pids = struct.unpack_from(f"<{count}i", data, HEADER.size + QUESTION.size)
        except struct.error:
            return None
        return Client(address, pids, bool(able & IDLE))

    def answer(self, client: Client, settings: str = "") -> None:
        body = settings.encode()
        with suppress(OSError):  # it has ended
            self._socket.sendto(HEADER.pack(len(body), ANSWERED) + body, client.address)

    @staticmethod
    def _dead(path: str) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as trying:
            try:
                trying.connect(path)
            except ConnectionRefusedError:
                return True
            except OSError:
                return False
        return False


def ask(
    folder: Path | None,
    request: Request,
    output: Path,
    *,
    wanted: Callable[[Client], bool] = lambda client: True,
    lead: float = LOOK_AGAIN,
) -> Collected:
    """Have every process that asks and is wanted record the same time, and wait for the traces.

    Raises BadOption when no process asks, or none is free.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotWrite(output, error) from error
    name = f"asked-{secrets.token_hex(4)}"
    file = (output / f"{name}.json").absolute()  # each process adds its number
    start = time.time() + lead + AHEAD
    last_answer = time.monotonic() + lead  # whoever asks later could miss the time
    until = last_answer + _longest(request)
    told: dict[int, _Told] = {}
    busy: set[int] = set()
    lost: dict[int, str] = {}
    with Agent(folder) as agent:
        while True:
            now = time.monotonic()
            if client := agent.question(0.1):
                pid = client.pids[0]
                begins = None
                if not wanted(client):
                    pass
                elif pid in told:
                    if told[pid].missed(client, request):
                        if len(told) == 1 and told[pid].attempts < ATTEMPTS:
                            begins = time.time() + AHEAD
                            told[pid] = replace(told[pid], start=begins, attempts=told[pid].attempts + 1)
                            until = now + _longest(request)
                        else:
                            lost[pid] = told[pid].why
                elif now <= last_answer and client.idle:
                    begins = start
                    told[pid] = _Told(file.with_name(f"{name}_{pid}.json"), start)
                    busy.discard(pid)
                elif now <= last_answer:
                    busy.add(pid)
                agent.answer(client, "" if begins is None else request.settings(file, begins))
            if now <= last_answer:
                continue
            waiting = [pid for pid in told if pid not in lost and not told[pid].trace.exists()]
            for pid in waiting:
                if not Path(f"/proc/{pid}").exists():
                    lost[pid] = "it ended during the recording"
            if not waiting or now > until:
                break
    lost |= dict.fromkeys(
        (pid for pid in busy if pid not in told), "another profiler was already running in it"
    )
    for pid, one in told.items():
        if not one.trace.exists() and pid not in lost:
            lost[pid] = "it wrote nothing; it may have made no steps" if request.steps else "it wrote nothing"
        with suppress(OSError):
            one.unfinished.unlink(missing_ok=True)
    if not told and not busy:
        raise BadOption(
            "No process of the job asked for instructions.",
            "this needs PyTorch 2.7 or later, started with KINETO_USE_DAEMON=1.",
        )
    return Collected(_named({pid: one.trace for pid, one in told.items() if one.trace.exists()}, name), lost)


def _longest(request: Request) -> float:
    return AHEAD + (request.duration or PATIENCE) + PATIENCE


@dataclass
class _Told:
    """A process that was told to record `trace` from `start` on."""

    trace: Path
    start: float
    attempts: int = 1
    why: str = "PyTorch missed the start of the window; run `lostflops trigger` again"

    @property
    def unfinished(self) -> Path:
        return self.trace.with_name(f"{self.trace.name}{run_folder.UNFINISHED}")

    def missed(self, client: Client, request: Request) -> bool:
        """Whether it is free although its time has come, and has nothing written."""
        late = time.time() - self.start
        if not client.idle:
            if late < 0:
                self.why = "the job's own profiler was started meanwhile"
            return False
        if request.duration is None or late < LOOK / 2:
            return False
        with suppress(OSError):
            # In this order: a trace gets its name when it is finished.
            return not (self.unfinished.stat().st_size or self.trace.exists())
        return not self.trace.exists()


def _named(files: Mapping[int, Path], name: str) -> dict[int, Path]:
    """Give the traces their ranks' names, and drop those of processes that did nothing."""
    sizes = {pid: file.stat().st_size for pid, file in files.items()}
    kept: dict[int, Path] = {}
    for pid, file in files.items():
        if sizes[pid] < EMPTY < max(sizes.values()):
            file.unlink()
            continue
        placed = launched(environment_of(pid))
        if placed[3] == run_folder.ASSUMED:
            kept[pid] = file
        else:
            kept[pid] = file.rename(file.with_name(f"{name}-rank-{placed[0]:05d}.json"))
    return kept


def environment_of(pid: int) -> dict[str, str]:
    """With what environment a process was started. Empty where it may not be read."""
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def environment(sockets: Path, run: Path) -> dict[str, str]:
    """What a job must be started with to be asked later."""
    return {
        "KINETO_USE_DAEMON": "1",
        "KINETO_IPC_SOCKET_DIR": str(sockets),
        "KINETO_ONDEMAND_TRACE_DIR": str(run.absolute() / run_folder.ON_DEMAND),
        "KINETO_CONFIG": str(run.absolute() / run_folder.BOOT / run_folder.KINETO),
    }


@contextmanager
def answerable(sockets: Path | None, run: Path) -> Generator[None]:
    """Make what such a job needs, for as long as it runs: a private folder for the sockets."""
    if sockets is None:
        yield
        return
    try:
        sockets.mkdir(mode=0o700)
        (run / run_folder.ON_DEMAND).mkdir(exist_ok=True)
        (run / run_folder.BOOT / run_folder.KINETO).write_text(CONFIG)
        with (run / run_folder.BOOT / run_folder.SOCKETS).open("a") as file:
            file.write(f"{sockets}\n")
    except OSError as error:
        raise CannotWrite(sockets, error) from error
    try:
        yield
    finally:
        with suppress(OSError):
            for name in sockets.iterdir():
                name.unlink()
            sockets.rmdir()


def new_folder() -> Path:
    return Path("/tmp") / f"lf-{secrets.token_hex(4)}"


def folders(run: Path) -> list[Path]:
    """The socket folders on this machine of a job that was recorded with --on-demand, and still runs."""
    with suppress(OSError, UnicodeError):
        lines = (run / run_folder.BOOT / run_folder.SOCKETS).read_text().splitlines()
        return [Path(line) for line in lines if Path(line).is_dir() and os.access(line, os.W_OK)]
    return []
