"""Ends steps elsewhere than at the optimizer, as `lostflops record --step-on` says.

A batch ends when the next one is asked for, so that a step is what was done with it. A function ends a step
when its outermost call returns.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
import threading
from types import FunctionType
from typing import Any

from .. import log, run_folder
from . import hooks
from .clock import CLOCK


def modules() -> list[str]:
    """The module to wait for. From now on optimizers end no steps."""
    with open(os.path.join(log.BOOT, run_folder.STEP_ON), encoding="utf-8") as file:
        asked = json.load(file)
    CLOCK.elsewhere = True
    _asked.update(asked)
    return [asked["module"]]


def executed(module: Any) -> None:
    name: str | None = _asked.get("function")
    if name is None:
        _batches(module._BaseDataLoaderIter)
        return
    *path, last = name.split(".")
    try:
        holder = functools.reduce(getattr, path, module)
        raw = inspect.getattr_static(holder, last)
    except AttributeError:
        raise AttributeError(f"there is no {name}") from None
    setattr(holder, last, _ending(raw, name))
    log.mark(run_folder.SEEN_TORCH)


_asked: dict[str, Any] = {}


def _batches(cls: Any) -> None:
    inner = cls.__next__

    @functools.wraps(inner)
    def following(self: Any) -> Any:
        # The end of an epoch ends its last batch; what follows until the next one's first is no step.
        if getattr(self, "_lostflops_gave", False):
            self._lostflops_gave = False
            CLOCK.passed(self._dataset)
        batch = inner(self)
        self._lostflops_gave = True
        return batch

    cls.__next__ = following
    log.mark(run_folder.SEEN_TORCH)


def _ending(raw: Any, name: str) -> Any:
    if isinstance(raw, (staticmethod, classmethod)):
        return type(raw)(_ending(raw.__func__, name))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType, reportUnknownVariableType]
    if not isinstance(raw, FunctionType):
        raise TypeError(f"{name} is a {type(raw).__name__}, not a function")
    if inspect.isgeneratorfunction(raw) or inspect.isasyncgenfunction(raw):
        raise TypeError(f"{name} is a generator, and a call of it cannot be a step")
    if inspect.iscoroutinefunction(raw):

        @functools.wraps(raw)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            result = await raw(*args, **kwargs)  # others run meanwhile: calls that overlap are steps each
            CLOCK.passed(raw)
            return result

        return awaited

    running = threading.local()

    @functools.wraps(raw)
    def called(*args: Any, **kwargs: Any) -> Any:
        # A compiler that traces through here must see nothing but the call.
        compiling = "torch" in sys.modules and hooks.compiling_test()()
        if compiling or not CLOCK.on or getattr(running, "inside", False):
            return raw(*args, **kwargs)
        running.inside = True
        try:
            result = raw(*args, **kwargs)
        finally:
            running.inside = False
        CLOCK.passed(raw)
        return result

    return called
