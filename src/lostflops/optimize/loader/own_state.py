"""What a dataset or a `collate_fn` keeps for itself, and whether making a batch changes it.

A dataset that counts, or that has random numbers of its own, gives other samples the next time. Each worker
has a copy of it, which begins anew in every epoch.
"""

from __future__ import annotations

import functools
import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

import torch

MOST = 5000  # things that are looked at: what lies behind is not watched
DEEP = 2  # a sampler in a sampler of batches, and what it holds
LARGE = 4096  # bytes of an array from which on only its place is looked at

State = dict[str, tuple[str, Any]]  # by path: its kind, and what is compared


def own_state(**roots: Any) -> State:
    """What `roots` and the things they hold are now, breadth first, to `MOST` of them."""
    found: State = {}
    seen: set[int] = set()
    waiting = deque(roots.items())
    while waiting and len(found) < MOST:
        path, thing = waiting.popleft()
        kind, value = _leaf(thing)
        found[path] = kind, value
        if kind != "thing" or id(thing) in seen:
            continue
        seen.add(id(thing))
        waiting.extend((f"{path}{step}", one) for step, one in _held(thing))
    return found


def changed(before: State, **roots: Any) -> tuple[str, str]:
    """Where `roots` are now other than before: anything at all, and what the next batch may depend on."""
    after = own_state(**roots)
    paths = [path for path in {**before, **after} if before.get(path) != after.get(path)]
    counted = [path for path in paths if after.get(path, ("", None))[0] in ("number", "random", "tensor")]
    return next(iter(paths), ""), next((path for path in counted if path in before), "")


def named_by_code(thing: Any) -> dict[str, Any]:
    """What the code of its class, and of those of things that it holds, names elsewhere: globals of modules
    and attributes of classes, as they are now. Not in torch, numpy and Python's own library."""
    inside = [thing]
    for _ in range(DEEP):
        inside += [one for held in inside for _, one in _held(held)][:MOST]
    kinds = {kind: None for held in inside for kind in type(held).__mro__}
    found: dict[str, Any] = {}
    functions: dict[FunctionType, None] = {}
    for kind in filter(lambda kind: _is_users(kind.__module__), kinds):
        for name, value in vars(kind).items():
            if isinstance(value, FunctionType):
                functions[value] = None
            elif not (name.startswith("__") or hasattr(value, "__get__")):
                found[f"{kind.__qualname__}.{name}"] = value
    waiting = [*functions]
    while waiting and len(functions) < MOST:
        function = waiting.pop()
        module = function.__globals__
        for name in _names(function.__code__) & module.keys():
            value = module[name]
            if isinstance(value, FunctionType):
                if value not in functions and _is_users(value.__module__):
                    functions[value] = None
                    waiting.append(value)
            elif not isinstance(value, (ModuleType, type)):
                found[f"{module.get('__name__')}.{name}"] = value
    return found


def _names(code: CodeType) -> frozenset[str]:
    inner = (_names(each) for each in code.co_consts if isinstance(each, CodeType))
    return frozenset(code.co_names).union(*inner)


def _is_users(module: Any) -> bool:
    top = str(module).partition(".")[0]
    return top == "__main__" or (top not in sys.stdlib_module_names and top not in ("torch", "numpy"))


def _leaf(thing: Any) -> tuple[str, Any]:
    if isinstance(thing, (int, float, complex)) and not isinstance(thing, bool):
        return "number", thing
    if thing is None or isinstance(thing, (str, bytes, bool)):
        return "word", thing
    if isinstance(thing, torch.Tensor):
        return "tensor", (id(thing), thing._version)
    if isinstance(thing, torch.Generator):
        return "random", thing.get_state().numpy().tobytes()
    if isinstance(thing, random.Random):
        return "random", thing.getstate()
    module = cast("type[Any]", type(thing)).__module__
    if module.startswith("numpy.random"):
        state: Any = getattr(thing, "bit_generator", None)
        return "random", repr(thing.get_state() if state is None else state.state)
    if module == "numpy" and hasattr(thing, "tobytes"):
        return "tensor", (id(thing), thing.tobytes() if thing.nbytes <= LARGE else None)
    return "thing", (id(thing), _length(thing))


def _length(thing: Any) -> int | None:
    return len(cast("Any", thing)) if isinstance(thing, (list, dict, set, deque, bytearray)) else None


def _held(thing: Any) -> Iterator[tuple[str, Any]]:
    """What it holds, each with the step that leads there. Its code is not run."""
    if isinstance(thing, type):
        return
    if isinstance(thing, Mapping):
        for key, value in (
            list(cast("Mapping[Any, Any]", thing).items())[:MOST] if isinstance(thing, dict) else ()
        ):
            yield f"[{key!r}]", value
    elif isinstance(thing, (list, tuple, deque)):
        for number, value in enumerate(cast("list[Any]", thing)):
            if number == MOST:
                return
            yield f"[{number}]", value
    elif isinstance(thing, functools.partial):
        some = cast("functools.partial[Any]", thing)
        yield from ((".func", some.func), (".args", some.args), (".keywords", some.keywords))
    elif (owner := getattr(thing, "__self__", None)) is not None and callable(thing):
        yield ".__self__", owner
    elif cells := getattr(thing, "__closure__", None):
        for number, cell in enumerate(cells):
            yield f".{thing.__code__.co_freevars[number]}", _content(cell)
    else:
        held = getattr(thing, "__dict__", None)
        if isinstance(held, dict):
            for name, value in list(cast("dict[str, Any]", held).items()):
                yield f".{name}", value


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty so far
        return None
