"""Read a pickle that holds nothing but builtin containers and scalars, without executing anything of it.

A pickle is a program that can name any function and call it. Here every name is refused, so that there is
nothing to call. Python's own unpickler is used and not the faster one in C, whose memory a hostile file of a
few bytes can exhaust with one index.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, NoReturn

from lostflops.errors import NotATrace, Unreadable, shown

LARGEST = 4 << 30  # bytes of a file: its objects take several times as much


class _OnlyData(pickle._Unpickler):  # pyright: ignore[reportPrivateUsage]
    """Refuses whatever a pickle could run."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names '{shown(module)}.{shown(name)}', which could be run")

    def persistent_load(self, pid: object) -> NoReturn:
        raise pickle.UnpicklingError("it refers to objects outside of it")

    def get_extension(self, code: int) -> NoReturn:
        raise pickle.UnpicklingError("it names an extension, which could be run")


def loaded(path: Path, hint: str) -> Any:
    """What the pickle holds. Raises NotATrace where that is not only data, or damaged, and Unreadable."""
    try:
        if path.stat().st_size > LARGEST:
            raise NotATrace(path, f"it is larger than {LARGEST >> 30} GiB.", hint)
        content = path.read_bytes()
    except OSError as error:
        raise Unreadable(path, error) from error
    try:
        unpickler: Any = _OnlyData(io.BytesIO(content))
        return unpickler.load()
    except pickle.UnpicklingError as error:
        raise NotATrace(path, f"{error}.".replace("..", "."), hint) from error
    # Whatever else a damaged pickle leads to is of these.
    except (
        EOFError,
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:
        raise NotATrace(path, "the pickle is damaged.", hint) from error
    except MemoryError as error:
        raise NotATrace(path, "reading it takes more memory than there is.", hint) from error
