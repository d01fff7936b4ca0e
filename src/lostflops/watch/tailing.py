"""Follows the step logs of a run that is still being written, and reads only what was appended.

Logs may lie on a folder that nodes share: each is opened anew for every look, because a file system such as
NFS shows what other machines wrote when a file is opened, not while it is open.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from lostflops import run_folder
from lostflops.ingest.step_log.reader import LINE, UNDECODABLE, WHO, StepLine, Who
from lostflops.watch.steps import FULL, ROWS

LOG = re.compile(run_folder.A_STEP_LOG)
CHUNK = 1 << 16  # bytes of a log in one turn
# Of what was written before the first look, so many bytes are read, of all logs together and of each.
BACK, LEAST_BACK, MOST_BACK = 1 << 28, 1 << 18, 1 << 22
LONGEST_LINE = 1 << 16
FIRST_LINE = 1 << 13


@dataclass
class Tail:
    """One rank's log: how far it was read. `notes` say what became of the file besides growing.

    `waiting` are lines of steps that are too far ahead of the other ranks'.
    """

    path: Path
    node: str
    rank: int
    attempt: int
    who: Who | None = None
    offset: int = 0
    inode: int = 0
    rest: bytes = b""
    waiting: list[StepLine] = field(default_factory=list[StepLine])
    written: float = 0.0  # when the file changed last, by the clock of its file system
    unread: bool = True
    torn: int = 0
    last: int = -1  # number of the last step that was given
    first_read: int = 0  # bytes that were left out at the first look
    ended: bool = False
    gone: bool = False
    notes: list[str] = field(default_factory=list[str])

    @property
    def lags(self) -> bool:
        """Whether it has something that was not given yet."""
        return self.unread or bool(self.waiting)

    def lines(self, before: int | None, back: int) -> list[StepLine]:
        """The lines that follow, at most a chunk, and none from the first of the step `before` on."""
        if not self.waiting:
            self.waiting = self._read_on(back) if self.unread else []
        if not self.waiting:
            return []
        numbers = [line.of if line.step is None else line.step for line in self.waiting]
        if before is None:
            before = next((number for number in numbers if number is not None), 0) + ROWS - FULL
        at = next((n for n, number in enumerate(numbers) if number is not None and number >= before), None)
        given, self.waiting = self.waiting[:at], [] if at is None else self.waiting[at:]
        for line in given:
            if line.step is not None:
                self.last = line.step
            elif line.kind == run_folder.END:
                self.ended = True
        return given

    def _read_on(self, back: int) -> list[StepLine]:
        """The whole lines that were appended since, at most a chunk of them."""
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            if not self.gone:
                self.notes.append("is gone")
            self.gone, self.unread = True, False
            return []
        try:
            return self._read(file, back)
        finally:
            os.close(file)

    def _read(self, file: int, back: int) -> list[StepLine]:
        found = os.fstat(file)
        size = found.st_size
        if self.gone or (self.inode and found.st_ino != self.inode):
            self._restart("was replaced: it is read from its beginning")
        elif size < self.offset:
            self._restart("is shorter than it was: it is read from its beginning")
        self.gone, self.inode, self.written = False, found.st_ino, found.st_mtime
        if self.who is None and not self._introduced(file, size, back):
            self.unread = False
            return []
        if size <= self.offset:
            self.unread = False
            return []
        data = os.pread(file, min(CHUNK, size - self.offset), self.offset)
        self.offset += len(data)
        self.unread = self.offset < size
        whole, _, rest = (self.rest + data).rpartition(b"\n")
        if len(rest) > LONGEST_LINE:  # no log has such a line
            self.torn += 1
            rest = b""
        self.rest = rest
        return self._decoded(whole) if whole else []

    def _introduced(self, file: int, size: int, back: int) -> bool:
        """Whether the first line is there, which says who writes. Reading goes on where it ends, or later."""
        first, newline, _ = os.pread(file, FIRST_LINE, 0).partition(b"\n")
        if not newline:
            return False
        try:
            self.who = WHO.decode(first)
        except UNDECODABLE:
            self.who = Who(kind=run_folder.RANK, rank=self.rank)
            self.torn += 1
        self.offset = len(first) + 1
        if size - self.offset > back:
            self.first_read = size - back - self.offset
            self.offset = size - back
            # What follows begins in the middle of a line: all up to its end is dropped.
            part = os.pread(file, LONGEST_LINE, self.offset)
            self.offset += part.find(b"\n") + 1
        return True

    def _restart(self, why: str) -> None:
        self.notes.append(why)
        self.who, self.offset, self.rest, self.last, self.ended = None, 0, b"", -1, False
        self.waiting = []

    def _decoded(self, data: bytes) -> list[StepLine]:
        try:
            lines = LINE.decode_lines(data)
        except UNDECODABLE:
            lines = [line for raw in data.splitlines() if (line := self._line(raw)) is not None]
        return lines

    def _line(self, raw: bytes) -> StepLine | None:
        try:
            return LINE.decode(raw) if raw else None
        except UNDECODABLE:
            self.torn += 1
            return None

    def wall(self, monotonic: int) -> int:
        """A time of this log in UTC, ns."""
        who = self.who
        if who is None or who.wall is None or who.monotonic is None:
            return monotonic
        return who.wall + monotonic - who.monotonic


@dataclass
class Tails:
    """The logs of a run's last attempt, by rank."""

    run: Path
    attempt: int = -1
    by_rank: dict[int, Tail] = field(default_factory=dict[int, Tail])
    seen: set[str] = field(default_factory=set[str])
    notes: list[str] = field(default_factory=list[str])

    def look(self) -> bool:
        """Look for new logs. True where a new attempt of the job has begun, whose logs take their place."""
        found = list(self._logs())
        latest = max((attempt for *_, attempt in found), default=-1)
        begun = latest > self.attempt >= 0
        if latest > self.attempt:
            self.attempt = latest
            self.by_rank, self.seen = {}, set()
        # The first process that was a rank has the short name, and is the one that counts.
        for path, node, rank, attempt in sorted(found, key=lambda log: (len(log[0].name), str(log[0]))):
            if attempt != self.attempt or str(path) in self.seen:
                continue
            self.seen.add(str(path))
            if rank in self.by_rank:
                self.notes.append(f"two logs are of rank {rank}: {path.name} is not read")
            else:
                self.by_rank[rank] = Tail(path, node, rank, attempt)
        return begun

    def _logs(self) -> Iterator[tuple[Path, str, int, int]]:
        for folder in self.run.glob(run_folder.NODES):
            try:
                names = os.listdir(folder)  # noqa: PTH208  a Path of each costs more than all else here
            except OSError:
                continue
            for name in names:
                if match := LOG.fullmatch(name):
                    yield folder / name, folder.name, int(match["rank"]), int(match["attempt"])

    def turn(self, reach: Callable[[], int | None]) -> Iterator[tuple[Tail, Sequence[StepLine]]]:
        """What each log has more, at most a chunk, and of no step from `reach` on. None: nothing more."""
        tails = list(self.by_rank.values())
        back = min(MOST_BACK, max(LEAST_BACK, BACK // max(1, len(tails))))
        for tail in tails:
            offset = tail.offset
            lines = tail.lines(reach(), back)
            if tail.notes:
                self.notes += [f"the log of rank {tail.rank} {note}" for note in tail.notes]
                tail.notes.clear()
            if lines or tail.offset != offset:
                yield tail, lines

    def renew(self) -> None:
        """A new look at all logs: there may be more in each."""
        for tail in self.by_rank.values():
            tail.unread = True

    def quiet(self) -> dict[int, float]:
        """Seconds that each log was not written to while another was; of ranks that have not ended."""
        newest = max((tail.written for tail in self.by_rank.values()), default=0.0)
        return {
            rank: newest - tail.written
            for rank, tail in self.by_rank.items()
            if 0 < tail.written < newest and not (tail.ended or tail.gone or tail.lags)
        }

    def command_ended(self) -> int | None:
        """The exit status of the recorded command, None while it runs or where nobody wrote it."""
        status = None
        try:
            lines = (self.run / run_folder.RECORDING).read_bytes().splitlines()
        except OSError:
            return None
        for raw in lines:
            try:
                entry = NOTE.decode(raw)
            except UNDECODABLE:
                continue
            if entry.kind in (run_folder.START, run_folder.END):
                status = entry.status if entry.kind == run_folder.END else None
        return status


class Note(msgspec.Struct):
    """A line of the recording's own notes."""

    kind: str = ""
    status: int | None = None


NOTE = msgspec.json.Decoder(Note)
