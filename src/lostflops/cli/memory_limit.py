"""Answers under a limit of memory (`ulimit -v`), and says so where it does not suffice.

What finds no memory ends its process in its own way: Polars aborts, OpenBLAS exits, Python raises. So the
command runs in a process of its own, which this one waits for.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from lostflops.errors import LostflopsError

# Those that only read. The others start jobs, whose signals and output are theirs.
READING = frozenset(
    {"why", "recipe", "import", "inspect", "scrub", "explain", "diff", "check", "export", "sql", "schema"}
)
LACK = re.compile(
    rb"memory allocation of \d+ bytes failed|OpenBLAS error|annot allocate memory|failed to map segment"
    rb"|out of memory|Resource temporarily unavailable|failed to spawn thread|could not spawn threads"
    rb"|can't start new thread|bad_alloc|^Memory ran out",
    re.IGNORECASE | re.MULTILINE,
)
# The first line of what a program says as it ends; the lines behind it are for its authors.
LAST_WORDS = re.compile(
    rb"^\s*$|thread '.*panicked|terminate called|<jemalloc>|Polars binary is missing|" + LACK.pattern,
    re.IGNORECASE,
)
# Without room for a thread, jemalloc may try again for good, and says so each time.
AGAIN = b"<jemalloc>: background thread creation failed"
MOST_AGAIN = 10_000
CRASHES = (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGKILL, -signal.SIGPROF)
# CPU time, s, for what takes a fraction of one. Python's interpreter itself may try again for good where an
# exception finds no memory: no line of Python runs any more, and only a signal's own action ends it.
MOST_IMPORTING = 10.0
# A thread of Polars that found no room is waited for by the others for good: they look now and then. So many
# seconds without a byte read or written, with less than this share of a core, and with so little room left.
STUCK, LOOKS, HARDLY_RUNS, NEARLY_ALL = 20.0, 1.0, 0.1, 0.95


class OutOfMemory(LostflopsError):
    """Memory that was needed and not there."""

    def __init__(self) -> None:
        most = limit()
        allowed = "" if most is None else f": this shell allows {most / 1e6:,.0f} MB a process (`ulimit -v`)"
        hint = "read fewer files at a time." if most is None else "raise it: `ulimit -v unlimited`."
        super().__init__(f"Memory ran out{allowed}.", hint)


def limit() -> int | None:
    """The bytes that this process may map, None where nothing limits them."""
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if most == resource.RLIM_INFINITY else most


def is_lack(error: BaseException) -> bool:
    """Whether an error of no class of ours is that memory ran out."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    # C code that does not look at what it was given leaves these behind, Python's parser among it. So does
    # Polars, which goes on without its binary where that found no room.
    careless = isinstance(error, (SystemError, ImportError, NameError, SyntaxError))
    return limit() is not None and (careless or LACK.search(str(error).encode(errors="replace")) is not None)


def answered(answer: Callable[[], int]) -> int | None:
    """The exit status of `answer` in a process of its own; None where that ended for want of memory."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        os.dup2(writing, 2)
        os.close(writing)
        _answer(answer)
    os.close(writing)
    said, again, watch = bytearray(), 0, _Watch(child)
    for line in _lines(reading, watch.look):
        again += line.startswith(AGAIN)
        if again == MOST_AGAIN:
            os.kill(child, signal.SIGKILL)
            break
        if said or LAST_WORDS.search(line):
            said += line
        else:
            _repeat(line)
    os.close(reading)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status in CRASHES or (status and LACK.search(said)):
        return None
    _repeat(bytes(said))
    return status


def _lines(reading: int, look: Callable[[], None]) -> Iterator[bytes]:
    """The lines that come out of a pipe, each as soon as it is there; `look` is called where none comes."""
    left = b""
    while True:
        if not select.select([reading], [], [], LOOKS)[0]:
            look()
            continue
        read = os.read(reading, 1 << 16)
        *lines, left = (left + read).split(b"\n")
        yield from (line + b"\n" for line in lines)
        if not read:
            break
    if left:
        yield left


class _Watch:
    """Kills a process that has used up its memory and has done nothing since."""

    def __init__(self, process: int) -> None:
        self.place = Path(f"/proc/{process}")
        self.process = process
        self.since, self.ran = time.monotonic(), 0.0
        self.moved: int = 0

    def look(self) -> None:
        """Whether it did anything since it last did; where `/proc` does not tell, it did."""
        try:
            stat = (self.place / "stat").read_bytes().rpartition(b")")[2].split()
            io = (self.place / "io").read_bytes().splitlines()[:2]
            sizes = (self.place / "status").read_bytes().splitlines()
            peak = next((int(line.split()[1]) for line in sizes if line.startswith(b"VmPeak")), 0)
            ran = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
            moved: int = sum(int(line.split()[1]) for line in io)
        except (OSError, IndexError, ValueError):
            return
        now, stopped = time.monotonic(), stat[0] in b"Tt"
        runs = ran - self.ran > HARDLY_RUNS * max(now - self.since, LOOKS)
        if runs or stopped or moved != self.moved or 1024 * peak < NEARLY_ALL * (limit() or 1 << 63):
            self.since, self.ran, self.moved = now, ran, moved
        elif now - self.since >= STUCK:
            os.kill(self.process, signal.SIGKILL)


def _answer(answer: Callable[[], int]) -> None:
    import traceback  # while there is room for it

    status = 1
    signal.setitimer(signal.ITIMER_PROF, MOST_IMPORTING)
    try:
        import_module("lostflops.session")
        signal.setitimer(signal.ITIMER_PROF, 0)
    except BaseException:
        pass  # `answer` meets the same, and says so
    try:
        status = answer()
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
        finally:
            os._exit(status)


def _repeat(words: bytes) -> None:
    sys.stderr.buffer.write(words)
    sys.stderr.flush()
