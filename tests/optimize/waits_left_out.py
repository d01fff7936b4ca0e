"""Every wait of a file, found in its source; and a device on which one of them is left out.

    for site in sites(slots):
        device = Omitting(site)
        ...
    assert device.faults

A *site* is a call of a device's `wait`, `synchronize` or `before_reuse`, which then does nothing, or of
`is_done`, which then says that everything is done. New ones are found as they are written.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from simulated_devices import RaceDevice, Stream

Place = tuple[str, int, str]  # file, line and verb of a call
VERBS = ("wait", "synchronize", "before_reuse", "is_done")


@dataclass(frozen=True)
class Site:
    file: str
    function: str
    number: int  # of those of its function
    verb: str
    first: int  # line
    last: int

    def __str__(self) -> str:
        return f"{Path(self.file).stem}.{self.function} {self.number} {self.verb}"

    def is_at(self, file: str, line: int, verb: str) -> bool:
        return (file, verb) == (self.file, self.verb) and self.first <= line <= self.last


def sites(module: ModuleType) -> list[Site]:
    """In order. Calls of the devices' verbs on `device`, `on`, `self._device` and the like."""
    file = str(module.__file__)
    found: list[Site] = []
    for function in ast.walk(ast.parse(Path(file).read_text())):
        if not isinstance(function, ast.FunctionDef):
            continue
        inner = {
            id(node)
            for each in ast.walk(function)
            if isinstance(each, ast.FunctionDef) and each is not function
            for node in ast.walk(each)
        }
        calls = [
            node
            for node in ast.walk(function)
            if isinstance(node, ast.Call)
            and id(node) not in inner
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in VERBS
            and ast.unparse(node.func.value).rpartition(".")[2].lstrip("_") in ("device", "on")
        ]
        calls.sort(key=lambda node: (node.lineno, node.col_offset))
        for number, node in enumerate(calls):
            verb = node.func.attr  # type: ignore[attr-defined]
            last = node.end_lineno or node.lineno
            found.append(Site(file, function.name, number, verb, node.lineno, last))
    return found


class Omitting(RaceDevice):
    """Leaves out one site, or none. `faults` are races, times that were asked for too early, and what a
    program finds wrong itself (`early`). An event is done when the host has waited for it, or by `done`.
    `places` are the files, lines and verbs that a program came by."""

    def __init__(self, site: Site | None, done: str | int = "never") -> None:
        self._site = site
        self.omitted = 0
        self.places: set[Place] = set()
        self.early: list[str] = []
        self.own_races = False
        super().__init__(done)

    @property
    def faults(self) -> list[str]:
        """Where the program has races of its own, only those with copies in them."""
        races = [race for race in self.races if "copy" in race or "host memory" in race]
        return (races if self.own_races else self.races) + self.early

    def _left_out(self, verb: str) -> bool:
        frame = sys._getframe(2)
        place = (frame.f_code.co_filename, frame.f_lineno, verb)
        self.places.add(place)
        here = self._site is not None and self._site.is_at(*place)
        self.omitted += here
        return here

    def wait(self, stream: Stream, event: Any) -> None:
        if not self._left_out("wait"):
            super().wait(stream, event)

    def synchronize(self, event: Any) -> None:
        if not self._left_out("synchronize"):
            super().synchronize(event)

    def before_reuse(self, memory: torch.Tensor, stream: Stream) -> None:
        if not self._left_out("before_reuse"):
            super().before_reuse(memory, stream)

    def is_done(self, event: Any) -> bool:
        return self._left_out("is_done") or self._is_known(event) or super().is_done(event)

    def _is_known(self, event: Any) -> bool:
        """To the host, which has waited for it, or for something later."""
        clocks = self._detectors[0]
        return all(clocks._host.get(s, -1) >= n for s, n in clocks._events[event.number].items())

    def elapsed(self, start: Any, end: Any) -> int:
        if not (self._is_known(start) and self._is_known(end)):
            self.early.append("a time was asked for before its event was done")
        return super().elapsed(start, end)
