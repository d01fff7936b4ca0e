"""Applies the annotations that `lostflops record --annotate` was given: no line of the job's source changes.

A module's functions are replaced when the module has executed, before anybody can have taken one from it.
Those of the script itself, `__main__`, are when the first step has ended. Whoever took one before keeps the
old one, so a plain function stays the same object there and gets another body.
"""

from __future__ import annotations

import inspect
import itertools
import json
import os
import sys
from types import CodeType, FunctionType
from typing import Any

from .. import compiler, log, run_folder
from . import mark

MAIN = "__main__"
MOST_SAID = 200  # names per list

_entries: dict[str, list[dict[str, Any]]] = {}  # by module, those that wait for it
_applied: list[mark.Annotation] = []
_failed: dict[str, str] = {}  # text -> why
_early: set[str] = set()  # modules from which somebody may have taken a function before
_numbers = itertools.count()


def modules() -> list[str]:
    """The modules whose execution is waited for."""
    try:
        with open(os.path.join(log.BOOT, run_folder.ANNOTATIONS), encoding="utf-8") as file:
            for line in file:
                entry = json.loads(line)
                _entries.setdefault(entry["module"], []).append(entry)
    except Exception as error:
        log.fault("reading the annotations", error)
    mark.faults = _fault
    _early.update(name for name in _entries if name in sys.modules)
    # PyTorch is waited for, so that the first annotated call may already be one that is compiled.
    return [name for name in {*_entries, "torch"} if name != MAIN]


def executed(module: Any) -> None:
    """Annotate what was asked for of a module."""
    name = module.__name__
    for entry in _entries.pop(name, ()):
        try:
            _apply(module, entry, name in _early)
        except Exception as error:
            _failed[entry["text"]] = str(error) or type(error).__name__
    mark.look()


def first_step() -> None:
    """The job has made a step: its script has defined what it defines."""
    mark.look()
    main = sys.modules.get(MAIN)
    if main is not None and MAIN in _entries:
        _early.add(MAIN)
        executed(main)


def summary() -> dict[str, Any] | None:
    """What became of the annotations, for this rank's log; None when there were none."""
    if not (_entries or _applied or _failed):
        return None
    waiting = [entry["text"] for entries in _entries.values() for entry in entries]
    return {
        "calls": {annotation.text: annotation.calls for annotation in _applied[:MOST_SAID]},
        "failed": dict(itertools.islice(_failed.items(), MOST_SAID)),
        "not_imported": waiting[:MOST_SAID],
    }


def _fault(error: Exception) -> None:
    log.fault("marking annotated functions; none is marked from here on", error)


def _apply(module: Any, entry: dict[str, Any], early: bool) -> None:
    *path, last = entry["function"].split(".")
    holder = module
    for name in path:
        holder = _attribute(holder, name)
    raw = inspect.getattr_static(holder, last, None)
    if raw is None:
        raise AttributeError(_missing(holder, last))
    annotation = mark.Annotation(entry["text"], entry["domain"], entry["color"])
    try:
        if early and isinstance(raw, FunctionType) and not raw.__closure__ and not isinstance(holder, type):
            _give_body(raw, annotation)
        else:
            setattr(holder, last, mark.annotated(raw, annotation))
    except TypeError as error:
        raise TypeError(f"it is {error}") from error
    _applied.append(annotation)


def _attribute(holder: Any, name: str) -> Any:
    try:
        return getattr(holder, name)
    except AttributeError:
        raise AttributeError(_missing(holder, name)) from None


def _missing(holder: Any, name: str) -> str:
    return f"{getattr(holder, '__qualname__', getattr(holder, '__name__', 'it'))} has no '{name}'"


def _give_body(function: FunctionType, annotation: mark.Annotation) -> None:
    """Have `function` call an annotated copy of itself.

    A replacement under its name would leave those who hold it already with the old function, which then can
    no longer be pickled, as spawned loader workers require.
    """
    copy = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    for attribute in ("__kwdefaults__", "__qualname__", "__module__", "__doc__", "__annotations__"):
        setattr(copy, attribute, getattr(function, attribute))
    copy.__dict__.update(function.__dict__)
    name = f"_lostflops_annotated_{next(_numbers)}"
    function.__globals__[name] = mark.annotated(copy, annotation)
    code = _calling(function.__code__, name)
    compiler.skip(code)
    function.__code__ = code


def _calling(like: CodeType, name: str) -> CodeType:
    """The code of a function with the parameters of `like` that passes all of them to the global `name`."""
    some, named = like.co_argcount, like.co_argcount + like.co_kwonlyargcount
    parameters = list(like.co_varnames[:some])
    passed = list(parameters)
    if like.co_posonlyargcount:
        parameters.insert(like.co_posonlyargcount, "/")
    rest = list(like.co_varnames[named:])
    if like.co_flags & inspect.CO_VARARGS:
        parameters.append(f"*{rest[0]}")
        passed.append(f"*{rest.pop(0)}")
    elif like.co_kwonlyargcount:
        parameters.append("*")
    parameters += like.co_varnames[some:named]
    passed += [f"{keyword}={keyword}" for keyword in like.co_varnames[some:named]]
    if like.co_flags & inspect.CO_VARKEYWORDS:
        parameters.append(f"**{rest[0]}")
        passed.append(f"**{rest[0]}")
    call = f"{name}({', '.join(passed)})"
    waits, yields = like.co_flags & mark.COROUTINE, like.co_flags & mark.GENERATOR
    result = f"await {call}" if waits else f"(yield from {call})" if yields else call
    source = f"{'async ' if waits else ''}def f({', '.join(parameters)}): return {result}"
    made: dict[str, Any] = {}
    exec(compile(source, like.co_filename, "exec"), made)
    # Whoever asks for the source is shown the function's own.
    return made["f"].__code__.replace(co_name=like.co_name, co_firstlineno=like.co_firstlineno)
