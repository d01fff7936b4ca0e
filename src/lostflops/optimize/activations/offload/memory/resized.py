"""Memory that is given up behind everybody's back: a storage that is resized while a tensor still has it.

Megatron frees the output of a function that it computes again (`untyped_storage().resize_(0)`), and FSDP1
weights. A copy of such a storage that is under way would read what is there next.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, cast

import torch


@contextmanager
def before_resizes(told: Callable[[torch.UntypedStorage], None]) -> Generator[None]:
    """Calls with each storage before it is resized from Python."""
    kind: Any = torch.UntypedStorage
    had = cast("dict[str, Any]", vars(kind)).get("resize_")
    plain = kind.resize_

    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        told(storage)
        return plain(storage, size)

    kind.resize_ = resize_
    try:
        yield
    finally:
        if had is None:
            del kind.resize_
        else:
            kind.resize_ = had
