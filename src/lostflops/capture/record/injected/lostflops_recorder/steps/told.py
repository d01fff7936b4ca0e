"""What the job says of its steps: loss, tokens and samples, each in a line of its own in the step log.

`log` may be called before the optimizer or after it. The first call settles which: before any step has ended
or after a backward pass its numbers are the running step's, else those of the step that has just ended.
Nothing waits for a GPU: a number that it has yet to compute is copied beside the job and written later.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ..step_log import StepLog

FIELDS = {"loss": float, "tokens": int, "samples": int}

# Of a training that nobody records from outside; like the recorder's own it raises nothing.
listener: Callable[[dict[str, Any]], None] | None = None


def log(*, loss: Any = None, tokens: Any = None, samples: Any = None) -> None:
    """Write the loss, tokens or samples of a step into the step log; nothing where there is none.

    Call it once per step, at the same place of the loop: before or after the optimizer. Numbers and tensors
    with one element will do; a GPU is not waited for. Tokens and samples are this process's own, of the whole
    step. `lostflops prove` compares losses and counts time per token.
    """
    clock = sys.modules.get("lostflops_recorder.steps.clock")
    tell = clock.CLOCK.tell if clock is not None and clock.CLOCK.on else listener
    if tell is None:
        return
    given = {"loss": loss, "tokens": tokens, "samples": samples}
    tell({name: value for name, value in given.items() if value is not None})


class ToldNumbers:
    """Numbers that were told of steps, in their order, until they are written."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, dict[str, Any]]] = []

    def add(self, step: int, values: dict[str, Any]) -> None:
        if not values:
            return
        self._waiting.append((step, {name: _number(name, value) for name, value in values.items()}))

    def write(self, steps: StepLog, *, wait: bool = False) -> None:
        """Write what is known by now; with `wait`, all of it."""
        while self._waiting:
            step, values = self._waiting[0]
            late = [value for value in values.values() if isinstance(value, _Late)]
            if late and not wait and not all(value.there() for value in late):
                return
            del self._waiting[0]
            steps.told(step, {n: v.number() if isinstance(v, _Late) else v for n, v in values.items()})


class _Late:
    """A number on a GPU, on its way into host memory."""

    def __init__(self, tensor: Any, kind: Callable[[Any], Any]) -> None:
        torch = sys.modules["torch"]
        self._kind = kind
        self._copy = torch.empty((), dtype=tensor.dtype, pin_memory=True)
        self._copy.copy_(tensor.detach().reshape(()), non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def there(self) -> bool:
        return self._event.query()

    def number(self) -> Any:
        self._event.synchronize()
        return self._kind(self._copy)


def _number(name: str, value: Any) -> Any:
    kind = FIELDS[name]
    if getattr(value, "is_cuda", False):
        return _Late(value, kind)
    return kind(value.detach() if hasattr(value, "detach") else value)
