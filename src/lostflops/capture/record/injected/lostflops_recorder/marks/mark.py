"""Marks code by name in whatever records this process: torch.profiler, or Nsight Systems through NVTX.

While nothing records, a mark is the test of two flags. Nothing is imported for it: PyTorch is noticed when
the job has imported it, and without PyTorch or NVTX the code just runs. A fault in here ends the marking, not
the job.

In a trace the text of a range that has a domain is `lostflops:DOMAIN:TEXT`; reading takes it apart again.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Generator
from types import FunctionType, TracebackType
from typing import Any, TypeVar, overload

from .. import compiler

PREFIX = "lostflops:"
GENERATOR, COROUTINE, ASYNC_GENERATOR = 0x20, 0x80, 0x200  # of a code object's flags
BUILT_IN = (type(len), type(str.join), type(object.__init__))
OPAQUE = 0xFF000000
COLORS = {
    "black": 0x000000,
    "blue": 0x0000FF,
    "brown": 0xA52A2A,
    "cyan": 0x00FFFF,
    "darkgreen": 0x006400,
    "gray": 0x808080,
    "green": 0x008000,
    "grey": 0x808080,
    "lime": 0x00FF00,
    "magenta": 0xFF00FF,
    "navy": 0x000080,
    "orange": 0xFFA500,
    "pink": 0xFFC0CB,
    "purple": 0x800080,
    "rapids": 0x7400FF,
    "red": 0xFF0000,
    "teal": 0x008080,
    "white": 0xFFFFFF,
    "yellow": 0xFFFF00,
}

Closing = Callable[[], Any]
Marked = TypeVar("Marked", bound=Callable[..., Any])


class _NothingRecords:
    """Stands for `torch.autograd.profiler` until that is there."""

    _is_profiler_enabled = False


class _OlderProfiler:
    """`torch.autograd.profiler` of a PyTorch that keeps no flag of its own."""

    def __init__(self, torch: Any) -> None:
        self._enabled = torch._C._autograd._profiler_enabled
        self.record_function = torch.autograd.profiler.record_function

    @property
    def _is_profiler_enabled(self) -> bool:
        return self._enabled()


def _look() -> bool:
    """Stands for `torch.compiler.is_compiling` until PyTorch is there, and looks whether it is."""
    look()
    return False


def _never() -> bool:
    return False


def _unheard(error: Exception) -> None:
    """What becomes of a fault where nobody asked to hear of it."""


_is_compiling: Callable[[], bool] = _look
_profiler: Any = _NothingRecords
_fast: Any = None  # PyTorch's range for sessions that were opened from outside the process
_under_nsys = any(name in os.environ for name in ("NSYS_PROFILING_SESSION_ID", "NVTX_INJECTION64_PATH"))
_always = _under_nsys  # whether something may record that the profiler's flag does not tell of
faults: Callable[[Exception], None] = _unheard


def look() -> None:
    """Notice PyTorch if it has been imported, and to its end."""
    global _is_compiling, _profiler, _fast, _always
    torch: Any = sys.modules.get("torch")
    profiler: Any = sys.modules.get("torch.autograd.profiler")
    if torch is None or not hasattr(profiler, "record_function") or not hasattr(torch, "compiler"):
        return
    _profiler = profiler if hasattr(profiler, "_is_profiler_enabled") else _OlderProfiler(torch)
    if "KINETO_USE_DAEMON" in os.environ:
        _fast = getattr(torch._C._profiler, "_RecordFunctionFast", None)
        _always = _always or _fast is not None
    _is_compiling = getattr(torch.compiler, "is_compiling", _never)


def label(text: str, domain: str) -> str:
    """The text under which a range stands in a trace."""
    return f"{PREFIX}{domain}:{text}" if domain else text


def argb(color: int | str | None) -> int | None:
    """A colour as Nsight Systems writes it: a name, 'E8B795', '#E8B795', '0xE8B795' or a number.

    Raises ValueError for anything else.
    """
    if color is None:
        return None
    value = color if isinstance(color, int) and not isinstance(color, bool) else None
    if isinstance(color, str):
        word = color.strip().lower()
        digits = word[1:] if word.startswith("#") else word[2:] if word.startswith("0x") else word
        value = COLORS.get(word)
        if value is None and len(digits) in (6, 8) and all(c in "0123456789abcdef" for c in digits):
            value = int(digits, 16)
    if value is None or not 0 <= value <= 0xFFFFFFFF:
        raise ValueError(f"{color!r} is no colour")
    return value if value > 0xFFFFFF else value | OPAQUE


def _open(text: str, domain: str, color: int | None) -> list[Closing]:
    """Begin a range in everything that records. What is returned ends it, last first."""
    closing: list[Closing] = []
    watched = compiler.watch(None)
    try:
        # The fast one looks like an operator in the trace: only the prefix tells it from one.
        entered = (
            _profiler.record_function(label(text, domain))
            if _profiler._is_profiler_enabled
            else _fast and _fast(f"{PREFIX}{domain}:{text}")
        )
        if entered is not None:
            entered.__enter__()
            closing.append(functools.partial(entered.__exit__, None, None, None))
        if _under_nsys:
            closing.extend(_nvtx(text, domain, color))
    except Exception as error:
        _fault(error)
    finally:
        compiler.watch(watched)
    return closing


def _nvtx(text: str, domain: str, color: int | None) -> list[Closing]:
    """Begin an NVTX range. Not verified with Nsight Systems.

    PyTorch's own ranges are preferred: not every Nsight Systems sees those of the `nvtx` package.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None and getattr(torch.version, "cuda", None):
        torch.cuda.nvtx.range_push(label(text, domain))
        return [torch.cuda.nvtx.range_pop]
    nvtx = _nvtx_package()
    if nvtx is None:
        return []
    more = {"domain": domain} if domain else {}
    nvtx.push_range(text, color=color, **more)
    return [functools.partial(nvtx.pop_range, **more)]


@functools.lru_cache(maxsize=1)
def _nvtx_package() -> Any:
    try:
        import nvtx  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    return nvtx  # pyright: ignore[reportUnknownVariableType]


def _close(closing: list[Closing]) -> None:
    watched = compiler.watch(None)
    while closing:
        try:
            closing.pop()()
        except Exception as error:
            _fault(error)
    compiler.watch(watched)


def _fault(error: Exception) -> None:
    """Mark nothing any more in this process."""
    global _profiler, _fast, _always, _under_nsys
    _profiler, _fast, _always, _under_nsys = _NothingRecords, None, False, False
    faults(error)


class Range:
    """A stretch of code under a name: `with lostflops.range("tokenise"): ...`.

    `domain` puts it beside others of its kind; `color` is a name or '#rrggbb' for viewers that show NVTX.
    """

    __slots__ = ("_color", "_domain", "_opened", "_text")

    def __init__(self, text: str, *, domain: str = "", color: int | str | None = None) -> None:
        self._text, self._domain, self._color = text, domain, color
        self._opened: list[list[Closing]] | None = None

    def __enter__(self) -> Range:
        if not _is_compiling() and (_always or _profiler._is_profiler_enabled):
            if self._opened is None:
                self._opened = []
            self._opened.append(_open(str(self._text), _domain(self._domain), _color(self._color)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened:
            _close(self._opened.pop())


def _domain(given: object) -> str:
    """A domain as it may stand in a label."""
    return str(given).replace(":", ".") if given else ""


def _color(given: int | str | None) -> int | None:
    try:
        return argb(given)
    except ValueError:  # no reason to stop a training for
        return None


class Annotation:
    """What an annotated function is called in a trace, and how often it was while something recorded."""

    def __init__(self, text: str, domain: str = "", color: int | str | None = None) -> None:
        self.text, self.domain, self.color = text, _domain(domain), _color(color)
        self.calls = 0

    def open(self) -> list[Closing]:
        self.calls += 1
        return _open(self.text, self.domain, self.color)


@overload
def annotate(what: Marked, /) -> Marked: ...
@overload
def annotate(
    what: str | None = None, /, *, domain: str = "", color: int | str | None = None
) -> Callable[[Marked], Marked]: ...
def annotate(what: Any = None, /, *, domain: str = "", color: int | str | None = None) -> Any:
    """Mark each call of a function: `@annotate`, `@annotate("text")`, `@annotate(domain="model")`.

    The text is the function's module and name unless it is given. Ranges of generators and coroutines end
    where those yield or wait, and begin again where they go on.
    """

    def decorate(function: Any) -> Any:
        own = f"{getattr(function, '__module__', None) or ''}.{getattr(function, '__qualname__', '')}"
        text = what if isinstance(what, str) else own.strip(".")
        look()
        try:
            return annotated(function, Annotation(text, domain, color))
        except TypeError as error:
            raise TypeError(f"lostflops.annotate marks functions and methods; this is {error}") from None

    return decorate(what) if what is not None and not isinstance(what, str) else decorate


def annotated(found: Any, annotation: Annotation) -> Any:
    """A function, method, property or partial that does the same under a range.

    Raises TypeError for anything else: what is more than a function may be used as more than one.
    """
    if isinstance(found, (staticmethod, classmethod)):
        return type(found)(annotated(found.__func__, annotation))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType, reportUnknownVariableType]
    if type(found) is property and found.fget is not None:
        return property(annotated(found.fget, annotation), found.fset, found.fdel, found.__doc__)
    if type(found) is functools.partial:
        partial: Any = found  # pyright: ignore[reportUnknownVariableType]
        same: Any = functools.partial(annotated(partial.func, annotation), *partial.args, **partial.keywords)
        same.__dict__.update(partial.__dict__)
        return same
    if isinstance(found, FunctionType):
        flags = found.__code__.co_flags
        if flags & ASYNC_GENERATOR:
            raise TypeError("an asynchronous generator")
        make = _coroutine if flags & COROUTINE else _generator if flags & GENERATOR else _function
        return make(found, annotation)
    if type(found) in BUILT_IN:
        return _function(found, annotation)
    raise TypeError(
        "a class: annotate its methods" if isinstance(found, type) else f"a {type(found).__name__}"
    )


def _function(function: Any, annotation: Annotation) -> Any:
    @functools.wraps(function)
    def marked(*args: Any, **kwargs: Any) -> Any:
        # First, so that a compiler that traces through here sees nothing but the call.
        if _is_compiling() or not (_always or _profiler._is_profiler_enabled):
            return function(*args, **kwargs)
        closing = annotation.open()
        try:
            return function(*args, **kwargs)
        finally:
            _close(closing)

    return marked


def _generator(function: Any, annotation: Annotation) -> Any:
    @functools.wraps(function)
    def marked(*args: Any, **kwargs: Any) -> Any:
        return (yield from _resumed(function(*args, **kwargs), annotation))

    return marked


def _coroutine(function: Any, annotation: Annotation) -> Any:
    @functools.wraps(function)
    async def marked(*args: Any, **kwargs: Any) -> Any:
        return await _Waiting(function(*args, **kwargs), annotation)

    return marked


class _Waiting:
    def __init__(self, coroutine: Any, annotation: Annotation) -> None:
        self._coroutine, self._annotation = coroutine, annotation

    def __await__(self) -> Generator[Any, Any, Any]:
        return _resumed(self._coroutine, self._annotation)


def _resumed(inner: Any, annotation: Annotation) -> Generator[Any, Any, Any]:
    """`yield from inner`, with a range around each stretch in which it runs."""
    resume, sent = inner.send, None
    while True:
        closing: list[Closing] = []
        if not _is_compiling() and (_always or _profiler._is_profiler_enabled):
            closing = annotation.open()
        try:
            given = resume(sent)
        except StopIteration as end:
            return end.value
        finally:
            _close(closing)
        try:
            sent = yield given
            resume = inner.send
        except GeneratorExit:
            inner.close()
            raise
        except BaseException as error:
            resume, sent = inner.throw, error
