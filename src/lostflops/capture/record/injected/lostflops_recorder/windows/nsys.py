"""Puts the user's nsys around this rank: as its parent, not in its place.

`nsys profile ... python train.py` ends without starting the program when a switch, a device or a permission
does not suit it. Here that costs the recording and not the rank: this process waits for nsys, and if the
program never came to life, it goes on and becomes the program itself.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from typing import Any, cast

from .. import log, run_folder
from ..rank import Rank, identify
from ..settings import within

TRIED = "LOSTFLOPS_NSYS_TRIED"
MARKER = "LOSTFLOPS_NSYS_MARKER"
LEADER = ".leader"  # behind the marker's name
METHOD = "LOSTFLOPS_NSYS_METHOD"
SESSION = "LOSTFLOPS_NSYS_SESSION"
LAUNCHER = "LOSTFLOPS_NSYS_LAUNCHER"
INSIDE = "NSYS_PROFILING_SESSION_ID"

GPU = "/dev/nvidiactl"  # where there is a driver
PATIENCE = 900.0  # seconds that nsys may take to write its report when the program has ended
FORWARDED = {
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
}
ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
SI_KERNEL = 0x80  # the terminal sent it to the whole group, so nsys and the program have it already
PR_SET_PDEATHSIG = 1

# Programs that start ranks, and never are one, by file name or by the module of `python -m`.
LAUNCHERS = re.compile(
    r"(torchrun|accelerate(-launch)?|deepspeed|dask(-\w+)?|ray|horovodrun|lightning|composer)$"
    r"|(torch\.distributed\.(run|launch|launcher)|accelerate\.commands|deepspeed\.launcher|distributed\.cli|dask)\b"
)
# Programs that are neither.
HELPERS = re.compile(
    r"(pip|venv|ensurepip|http\.server|json\.tool|multiprocessing|torch\._inductor)\b|.*/ray/.*"
)
FRAMEWORKS = (b"torch", b"deepspeed", b"transformers", b"lightning", b"accelerate", b"jax", b"megatron")
SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "csh", "tcsh", "fish", "busybox"}


def inside() -> bool:
    """Whether this process runs under an nsys that we started."""
    return bool(os.environ.get(INSIDE) and os.environ.get(MARKER))


def supervise() -> None:
    """Run this rank under nsys and end as it ends; or return, and the program runs without."""
    if os.environ.get(INSIDE):
        if os.environ.get(MARKER):
            _arrived(os.environ[MARKER])
        return
    if os.environ.get(TRIED):
        return
    asked = read_settings()
    rank = identify()
    if _launches():
        os.environ[LAUNCHER] = str(os.getpid())
        return
    if not within(rank.rank, asked["ranks"]) or not _is_rank(rank, asked["parent"]):
        return
    os.environ[TRIED] = "1"
    ending = ""
    for role in ("node", "lean") if asked["node"] and _node_duties(rank) else ("lean",):
        attempt = Attempt(rank, role, asked)
        status = attempt.run()
        if status is not None:
            os._exit(status)
        ending = attempt.ending
    sys.stderr.write(
        f"lostflops: nsys did not start rank {rank.rank} (it {ending}, and may have said why above); "
        "the rank runs without being recorded.\n"
    )


def read_settings() -> dict[str, Any]:
    """What nsys is started with. Raises OSError or ValueError."""
    with open(os.path.join(log.BOOT, run_folder.NSYS)) as file:
        return cast("dict[str, Any]", json.load(file))


def _arrived(marker: str) -> None:
    """Tell the waiting parent that the program lives. The first process under nsys is the program."""
    try:
        file = os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY, log.MODE)
        os.write(file, str(os.getpid()).encode())
        os.close(file)
    except OSError:
        return
    atexit.register(_leaves, marker, os.getpid())


def leads() -> bool:
    """Whether this process is the first of those under its nsys that asks."""
    try:
        os.close(os.open(os.environ[MARKER] + LEADER, os.O_CREAT | os.O_EXCL | os.O_WRONLY, log.MODE))
    except FileExistsError:
        return False
    return True


def _leaves(marker: str, pid: int) -> None:
    """What the program's exit status probably is, should nsys never pass it on."""
    if os.getpid() == pid and os.path.exists(marker):
        try:
            with open(marker, "a") as file:
                file.write(" 1" if getattr(sys, "last_value", None) is not None else " 0")
        except OSError:
            pass


def _node_duties(rank: Rank) -> bool:
    """One rank of a node reads the counters of the whole node."""
    return rank.local == 0 or (rank.local is None and rank.rank == 0)


def _program() -> tuple[str, str]:
    """How this Python was started: 'script', 'module', 'code' or 'input', and what was named."""
    words = iter(sys.orig_argv[1:])
    for word in words:
        if word == "-" or not word.startswith("-"):
            return ("input", "") if word == "-" else ("script", word)
        if word.startswith("--"):
            continue
        for place, letter in enumerate(word[1:], start=2):
            if letter in "cm":
                named = word[place:] or next(words, "")
                return ("module", named) if letter == "m" else ("code", "")
            if letter in "WX":
                if place == len(word):
                    next(words, None)
                break
    return "input", ""


def _launches() -> bool:
    kind, name = _program()
    if kind == "script":
        return bool(LAUNCHERS.match(os.path.basename(name)))
    return kind == "module" and bool(LAUNCHERS.match(name))


def _is_rank(rank: Rank, recorder: int) -> bool:
    """Whether this process is a rank, rather than some other Python that the job's scripts call."""
    kind, name = _program()
    if rank.source == "RANK" or str(os.getppid()) in (str(recorder), os.environ.get(LAUNCHER)):
        return not (kind == "module" and HELPERS.match(name)) and "multiprocessing" not in " ".join(sys.argv)
    if kind in ("code", "input") or HELPERS.match(name):
        return False
    if rank.source != run_folder.ASSUMED and _name_of(os.getppid()) not in SHELLS:
        return True
    # A line of a shell script: what it prints may be read by the script, and nsys prints too.
    return kind == "module" or _trains(name)


def _name_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def _trains(script: str) -> bool:
    try:
        with open(script, "rb") as file:
            text = file.read(1 << 20)
    except OSError:
        return False
    return any(name in text for name in FRAMEWORKS)


class Attempt:
    """One start of nsys around this rank, with a file that says what was tried and what came of it."""

    def __init__(self, rank: Rank, role: str, asked: dict[str, Any]) -> None:
        self.ending = "could not be started"
        self._asked = asked
        self._folder = os.path.join(log.RUN, rank.node)
        self._name, self._file = self._claim(rank)
        self._marker = os.path.join(self._folder, f".{self._name}.started")
        self._session = f"lostflops-{asked['id']}-r{rank.rank}-a{rank.attempt}-{self._name[-4:]}"
        self._method = self._methods()
        self._options: list[str] = [*asked["lean"], *(asked["node"] if role == "node" else [])]
        self._options += [word.format(session=self._session) for word in asked["ranges"][self._method]]
        self._scratch = ""
        self._say(
            kind=run_folder.START,
            rank=rank.rank,
            local=rank.local,
            attempt=rank.attempt,
            role=role,
            method=self._method,
            session=self._session if self._method == "session" else None,
            version=asked["version"],
            options=self._options,
        )

    def run(self) -> int | None:
        """The exit status of the program; None when it was not started, and this process is to be it."""
        environment = self._environment()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED | {signal.SIGCHLD})
        fatal: int | None = None
        try:
            child = self._start(environment, blocked)
            status, fatal = self._wait(child)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            if self._scratch:
                shutil.rmtree(self._scratch, ignore_errors=True)
        started = os.path.exists(self._marker)
        for mark in (self._marker, self._marker + LEADER):
            if os.path.exists(mark):
                os.unlink(mark)
        self._say(kind=run_folder.END, status=status, started=started)
        self.ending = f"ended with status {status}" if status >= 0 else f"was ended by signal {-status}"
        if started:
            return status if status >= 0 else 128 - status
        if fatal is not None:  # whoever sent it meant the rank
            signal.signal(fatal, signal.SIG_DFL)
            os.kill(os.getpid(), fatal)
        return None

    def _claim(self, rank: Rank) -> tuple[str, int]:
        """A name that no other process has, even one that claims to be the same rank."""
        os.makedirs(self._folder, exist_ok=True)
        for number in range(1000):
            name = run_folder.nsys_report(run_folder.log_name(rank.rank, rank.attempt), number)
            try:
                path = os.path.join(self._folder, f"{name}.jsonl")
                return name, os.open(
                    path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, log.MODE
                )
            except FileExistsError:
                continue
        raise FileExistsError(f"a thousand reports of rank {rank.rank}")

    def _methods(self) -> str:
        ranges = self._asked["ranges"]
        if "time" in ranges:
            return "time"
        gpu = "cuda" in ranges and os.path.exists(self._asked.get("gpu") or GPU)
        return "session" if "session" in ranges and not gpu else "cuda"

    def _environment(self) -> dict[str, str]:
        given = dict(os.environ)
        given[MARKER], given[METHOD], given[SESSION] = self._marker, self._method, self._session
        given.setdefault("PYTHONUNBUFFERED", "1")  # nsys makes a pipe of the program's output
        if self._asked["ranks"] is not None and any(name.startswith(("OMPI_", "PMI")) for name in given):
            given.setdefault("NSYS_MPI_STORE_TEAMS_PER_RANK", "1")  # else MPI waits for ranks without nsys
        shared = os.path.join(given.get("TMPDIR") or "/tmp", "nvidia")
        if os.path.isdir(shared) and not os.access(shared, os.W_OK | os.X_OK):
            # Somebody else made it: nsys could not write its own files below it.
            self._scratch = given["TMPDIR"] = tempfile.mkdtemp(prefix="lostflops-nsys-")
        return given

    def _start(self, environment: dict[str, str], mask: Any) -> int:
        python = sys.executable or sys.orig_argv[0]
        target = os.path.join(self._folder, self._name)
        nsys: str = self._asked["nsys"]
        words = [nsys, "profile", *self._options, f"--output={target}", python, *sys.orig_argv[1:]]
        parent = os.getpid()
        die = _prctl()
        child = os.fork()
        if child:
            return child
        try:
            # Nobody else would end nsys and the program when a launcher kills this process.
            die(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
            if os.getppid() != parent:
                os._exit(127)
            for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python
                signal.signal(ignored, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.execve(nsys, words, environment)
        finally:
            os._exit(127)

    def _wait(self, child: int) -> tuple[int, int | None]:
        """How nsys ended, and a signal that was meant to end the rank meanwhile."""
        fatal: int | None = None
        gone = 0.0
        hung: int | None = None
        while True:
            arrived = signal.sigtimedwait(FORWARDED | {signal.SIGCHLD}, 1.0)
            if arrived is not None and arrived.si_signo != signal.SIGCHLD:
                if arrived.si_signo in ENDING:
                    fatal = arrived.si_signo
                if arrived.si_code != SI_KERNEL:
                    os.kill(child, arrived.si_signo)
            pid, how = os.waitpid(child, os.WNOHANG)
            if pid:
                return (os.waitstatus_to_exitcode(how) if hung is None else hung), fatal
            status = _ended(self._marker)
            if status is None or hung is not None:
                continue
            gone = gone or time.monotonic()
            if time.monotonic() - gone > self._asked.get("patience", PATIENCE):
                # The job must not hang because nsys does.
                log.write(f"{self._name}: nsys kept running after the program ended and was stopped")
                self._say(kind=run_folder.HUNG)
                hung = status
                _end(child)

    def _say(self, **fields: Any) -> None:
        try:
            os.write(self._file, (json.dumps({**fields, "wall": time.time_ns()}) + "\n").encode())
        except OSError as error:
            log.fault(self._name, error)


def _ended(marker: str) -> int | None:
    """The exit status of the program, as far as it can be known; None while it has not ended."""
    try:
        with open(marker) as file:
            pid, *leaving = file.read().split()
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        if not os.path.exists(marker):
            return None  # it has not even begun
        return int(leaving[0]) if leaving else 1  # pyright: ignore[reportPossiblyUnboundVariable]
    except (OSError, ValueError):
        return None
    if fields[0] not in ("Z", "X"):
        return None
    return os.waitstatus_to_exitcode(int(fields[-1]))  # its parent has not asked for it yet


def _end(child: int) -> None:
    os.kill(child, signal.SIGTERM)
    for _ in range(100):
        time.sleep(0.1)
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
    os.kill(child, signal.SIGKILL)


def _prctl() -> Any:
    import ctypes

    return ctypes.CDLL(None).prctl
