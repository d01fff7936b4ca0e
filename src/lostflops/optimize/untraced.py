"""Functions that torch.compile runs as they are, with all that they call.

Where compiled code stops in the middle of a layer (a graph break, too many recompilations), torch goes on by
compiling whatever function runs next: hooks on saved tensors, which it would compile anew for each tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

_FRAMES: Any = cast("Any", torch)._C._dynamo.eval_frame
_SKIP: Any = _FRAMES._FrameAction.SKIP
_Function = TypeVar("_Function", bound=Callable[..., Any])


def untraced(function: _Function) -> _Function:
    """The same function, whose code is marked; so is that of each closure of it."""
    code = cast("Any", function).__code__
    _FRAMES.set_code_exec_strategy(code, _FRAMES._FrameExecStrategy(_SKIP, _SKIP))
    return function
