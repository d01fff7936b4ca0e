"""Names the forward and backward passes in the trace of a recorded step.

PyTorch itself names the data loader's and the optimizer's part. A forward pass is a call of a module that no
other module holds. Hooks on modules would be pickled with them and make torch.compile compile again, so the
call is replaced in their classes, and only while a window is open.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

from .. import compiler, log
from .frameworks import driving

MOST_MODULES = 1_000_000


class Ranges:
    """Opens ranges on the thread that `attach` was called on, until `detach`."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.attached = False  # no property: the compiler is told to skip functions only
        self._thread = 0
        self._depth = 0
        self.frameworks: list[str] = []  # that drive the job, as `attach` found
        self._replaced: dict[type, tuple[Callable[..., Any] | None, Callable[..., Any]]] = {}

    def attach(self) -> None:
        self.attached, self._thread, self._depth = True, threading.get_ident(), 0
        try:
            self._follow_models()
        except Exception as error:  # the window goes on without their names
            log.fault("finding the model", error)

    def _follow_models(self) -> None:
        roots: dict[type, set[int]] = {}
        objects = gc.get_objects()
        self.frameworks = driving(objects)
        for module in _roots(objects, self._torch.nn.Module):
            roots.setdefault(module.__class__, set()).add(id(module))
        for kind, modules in roots.items():
            self._replace(kind, modules)

    def detach(self) -> None:
        self.attached, self._thread = False, 0
        for kind, (own, ours) in self._replaced.items():
            if kind.__dict__.get("__call__") is not ours:
                continue  # somebody replaced it again and calls ours, which now does nothing
            if own is None:
                del kind.__call__
            else:
                kind.__call__ = own
        self._replaced = {}

    def named(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `function`, in a range when it is the outermost of this thread."""
        if self._thread != threading.get_ident() or self._depth:
            return function(*args, **kwargs)
        self._depth = 1
        entered = self._opened(name)
        try:
            return function(*args, **kwargs)
        finally:
            self.end(entered)
            self._depth = 0

    def within(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `function` in a range on this thread, inside others too."""
        entered = self.begin(name)
        try:
            return function(*args, **kwargs)
        finally:
            self.end(entered)

    def begin(self, name: str) -> Any:
        """A range that `end` closes; None on other threads."""
        return self._opened(name) if self._thread == threading.get_ident() else None

    def _opened(self, name: str) -> Any:
        # What PyTorch does to open and close a range is not the compiler's business either.
        watched = compiler.watch(None)
        try:
            entered = self._torch.autograd.profiler.record_function(name)
            entered.__enter__()
            return entered
        except Exception as error:
            log.fault(f"naming {name}", error)
            self.detach()
            return None
        finally:
            compiler.watch(watched)

    def end(self, entered: Any) -> None:
        watched = compiler.watch(None)
        try:
            if entered is not None:
                entered.__exit__(None, None, None)
        except Exception as error:
            log.fault("naming a part of a step", error)
        finally:
            compiler.watch(watched)

    def _replace(self, kind: type, modules: set[int]) -> None:
        called = kind.__call__
        name = f"forward#{kind.__name__}"
        compiling = getattr(getattr(self._torch, "compiler", None), "is_compiling", None)

        def __call__(module: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            # First, so that a compiler that traces through here sees nothing but the call.
            if (compiling is not None and compiling()) or id(module) not in modules:
                return called(module, *args, **kwargs)
            return self.named(name, called, module, *args, **kwargs)

        own = kind.__dict__.get("__call__")
        try:
            kind.__call__ = __call__
        except (AttributeError, TypeError):  # a class that cannot be changed
            return
        self._replaced[kind] = own, __call__


def _roots(objects: list[Any], base: type) -> list[Any]:
    """The modules that no other one holds, and that have something to train."""
    kinds: set[type] = {base}
    waiting = [base]
    for kind in waiting:  # grows while it is walked
        for below in type.__subclasses__(kind):
            if below not in kinds:
                kinds.add(below)
                waiting.append(below)
    # Only types are looked at: touching foreign objects may run their code.
    modules = [thing for thing in objects if type(thing) in kinds]
    held = {id(child) for module in modules for child in _held(module, "_modules")}
    return [module for module in modules if id(module) not in held and _trains(module)]


def _held(module: Any, name: str) -> list[Any]:
    found: Any = module.__dict__.get(name)
    return list(found.values()) if isinstance(found, dict) else []  # pyright: ignore[reportUnknownArgumentType]


def _trains(root: Any) -> bool:
    waiting, seen = [root], {id(root)}
    for module in waiting:  # grows while it is walked
        if any(p is not None and p.requires_grad for p in _held(module, "_parameters")):
            return True
        for child in _held(module, "_modules"):
            if child is not None and id(child) not in seen and len(seen) < MOST_MODULES:
                seen.add(id(child))
                waiting.append(child)
    return False
