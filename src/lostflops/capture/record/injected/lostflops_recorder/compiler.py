"""Keeps torch.compile from looking at our functions.

What a compiled function calls outside its graphs is compiled too, frame by frame. Ours would be, and what
they call: six times as many frames in a loop whose optimizer step is compiled.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any


def _unchanged(callback: Any) -> Any:
    """Stands for `set_eval_frame` before the compiler can be there."""


skip: Callable[[CodeType], Any] = _unchanged  # has the compiler pass over a code object

# Sets what is called for each new frame of this thread and gives what was set before.
watch: Callable[[Any], Any] = _unchanged


def hide() -> None:
    """Be skipped by the compiler from now on. Does not import it."""
    global watch, skip
    eval_frame: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    if eval_frame is None:
        return
    watch = eval_frame.set_eval_frame
    if hasattr(eval_frame, "skip_code"):  # older PyTorch
        skip = eval_frame.skip_code
    else:
        actions = eval_frame._FrameAction
        strategy = eval_frame._FrameExecStrategy(actions.SKIP, actions.DEFAULT)
        skip = functools.partial(_mark, eval_frame, strategy)
    for code in _codes():
        skip(code)


def _mark(eval_frame: Any, strategy: Any, code: CodeType) -> None:
    eval_frame.set_code_exec_strategy(code, strategy)


def _codes() -> Iterator[CodeType]:
    package = __name__.rpartition(".")[0]
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(package + "."):
            for value in list(vars(module).values()):
                for function in list(vars(value).values()) if isinstance(value, type) else [value]:
                    code = getattr(function, "__code__", None)
                    if isinstance(code, CodeType):
                        yield from _with_inner(code)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
