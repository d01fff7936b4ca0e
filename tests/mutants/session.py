"""Mutants of functions, tried without importing or collecting anything again.

One child process collects a module's tests. For each mutant it forks: the fork gives the code of the mutant
to every function that is changed and runs the tests that called it before, up to the first failure. What it
finds to be noticed is; what seems to survive may owe that to a value that was computed when modules were
imported, so the caller tries it once more from the start. So it does with what is changed outside of
functions.
"""

from __future__ import annotations

import gc
import inspect
import marshal
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import hypothesis
import pytest

Key = tuple[str, int]  # a function's qualified name and its first line
NOT_HERE = "not here"
NOTICED = "noticed"
SURVIVES = "survives"


class _Honest(NamedTuple):
    """What tests did without a change, each by its place: what they called, and seconds."""

    failed: int
    called: list[set[Key]]
    took: list[float]


def functions(code: CodeType) -> Iterator[tuple[tuple[CodeType, ...], CodeType]]:
    """Every code below a module's, with those that it lies in, outermost first."""
    open_: list[tuple[tuple[CodeType, ...], CodeType]] = [((), code)]
    while open_:
        outside, here = open_.pop()
        yield outside, here
        open_ += [((*outside, here), inner) for inner in here.co_consts if isinstance(inner, CodeType)]


def changed(honest: CodeType, mutant: CodeType) -> list[tuple[CodeType, ...]] | None:
    """The mutant's codes whose own instructions differ, each after those that it lies in.

    None where both have other functions, or where what runs at import differs.
    """
    before, after = list(functions(honest)), list(functions(mutant))
    if [_key(code) for _, code in before] != [_key(code) for _, code in after]:
        return None
    found = [
        (*outside, code)
        for (_, old), (outside, code) in zip(before, after, strict=True)
        if _own(old) != _own(code)
    ]
    at_import = any(not code.co_flags & inspect.CO_OPTIMIZED for *_, code in found)
    return None if at_import else found


def _own(code: CodeType) -> CodeType:
    """A code without those that lie in it, and without its lines."""
    kept = tuple(None if isinstance(c, CodeType) else (type(c), c) for c in code.co_consts)
    return code.replace(co_consts=kept, co_linetable=b"")


def _key(code: CodeType) -> Key:
    return code.co_qualname, code.co_firstlineno


class Session:
    """A child process that has collected a module's tests, and what it answers.

    `options` are for pytest, `plugins` as well; `path` is the module's file and `honest` its code.
    """

    def __init__(
        self, path: Path, honest: CodeType, options: Sequence[str], plugins: Sequence[object], log: Path
    ) -> None:
        self._ours, theirs = Pipe()
        self._child = os.fork()
        if not self._child:
            try:
                os.setsid()
                out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(out, 1)
                os.dup2(out, 2)
                pytest.main([*options], [*plugins, _Asked(path, honest, theirs)])
            finally:
                os._exit(0)
        theirs.close()
        self.failed: int | None = self._answer()

    def tried(self, mutant: CodeType) -> str:
        """NOTICED, SURVIVES or NOT_HERE."""
        self._ours.send_bytes(marshal.dumps(mutant))
        return self._answer() or NOT_HERE

    def end(self) -> None:
        """Let the child go."""
        self._ours.close()
        os.killpg(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)

    def _answer(self) -> Any:
        try:
            return self._ours.recv()
        except EOFError:
            return None


class _Asked:
    """A pytest plugin: in place of running the tests once, run them for each mutant that is asked for."""

    def __init__(self, path: Path, honest: CodeType, asked: Connection) -> None:
        self.path, self.honest, self.asked = str(path), honest, asked

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        gc.unfreeze()
        gc.collect()
        live = [
            one
            for one in gc.get_objects()
            if isinstance(one, FunctionType) and one.__code__.co_filename == self.path
        ]
        honest = _in_fork(lambda: _honest(session, self.path), None)
        self.asked.send(None if honest is None else honest.failed)
        kills: Counter[int] = Counter()
        while honest is not None:
            try:
                mutant = marshal.loads(self.asked.recv_bytes())
            except EOFError:
                break
            swaps = self._swaps(live, mutant)
            if swaps is None:
                self.asked.send(NOT_HERE)
                continue
            names = {_key(function.__code__) for function, _ in swaps}
            items = [n for n, called in enumerate(honest.called) if called & names]
            items.sort(key=lambda n: (_draws(session.items[n]), -kills[n], honest.took[n]))
            patience = max(10.0, 4 * sum(honest.took[n] for n in items))
            first = _in_fork(lambda s=swaps, i=items: _first_failure(session, s, i), patience)
            kills.update([first] if first is not None and first >= 0 else [])
            self.asked.send(SURVIVES if first == -1 else NOTICED)
        return True

    def _swaps(
        self, live: Sequence[FunctionType], mutant: CodeType
    ) -> list[tuple[FunctionType, CodeType]] | None:
        """Which functions get which code; None where that does not make the mutant."""
        found = changed(self.honest, mutant)
        if found is None:
            return None
        by_key: dict[Key, list[FunctionType]] = {}
        for function in live:
            by_key.setdefault(_key(function.__code__), []).append(function)
        swaps: list[tuple[FunctionType, CodeType]] = []
        for codes in found:
            # Functions that are made anew by calling another come with its code.
            outermost = next((code for code in codes if _key(code) in by_key), None)
            if outermost is None or "<lambda>" in outermost.co_qualname:
                return None
            swaps += [(function, outermost) for function in by_key[_key(outermost)]]
        free = all(function.__code__.co_freevars == code.co_freevars for function, code in swaps)
        return swaps if free else None


def _draws(item: pytest.Item) -> bool:
    return hypothesis.is_hypothesis_test(getattr(item, "function", None))


def _honest(session: pytest.Session, path: str) -> _Honest:
    called: list[set[Key]] = []
    took: list[float] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename == path:
            called[-1].add(_key(frame.f_code))

    threading.setprofile(note)
    for number in range(len(session.items)):
        called.append(set())
        began = time.monotonic()
        sys.setprofile(note)
        _run(session, number, number + 1)
        sys.setprofile(None)
        took.append(time.monotonic() - began)
    return _Honest(session.testsfailed, called, took)


def _first_failure(
    session: pytest.Session, swaps: Sequence[tuple[FunctionType, CodeType]], items: Sequence[int]
) -> int:
    """The place of the first test that fails; -1 where none does."""
    for function, code in swaps:
        function.__code__ = code
    for place, number in enumerate(items):
        _run(session, number, items[place + 1] if place + 1 < len(items) else None)
        if session.testsfailed:
            return number
    return -1


def _run(session: pytest.Session, number: int, following: int | None) -> None:
    after = session.items[following] if following is not None and following < len(session.items) else None
    item = session.items[number]
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)


def _in_fork(work: Callable[[], Any], patience: float | None) -> Any:
    """What `work` gives in a fork of this process; None where that ends otherwise, or not in time."""
    ours, theirs = Pipe(duplex=False)
    child = os.fork()
    if not child:
        try:
            os.setsid()
            theirs.send(work())
        finally:
            os._exit(0)
    theirs.close()
    try:
        return ours.recv() if ours.poll(patience) else None
    except EOFError:
        return None
    finally:
        ours.close()
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
