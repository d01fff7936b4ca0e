"""Files that a command writes: whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lostflops.errors import BadOption, CannotWrite, shown


def check(target: Path, inputs: Sequence[str]) -> None:
    """Raise early, before minutes of work, when `target` cannot be written or is one of the inputs."""
    if any(target == Path(given) or _same(target, Path(given)) for given in inputs):
        raise BadOption(f"'{shown(target)}' is an input: it would be overwritten.", "choose another name.")
    if target.is_dir():
        raise CannotWrite(target, IsADirectoryError(0, "it is a folder"))
    if not target.parent.is_dir():
        raise CannotWrite(target, FileNotFoundError(0, "its folder does not exist"))


def check_document(target: str | None, inputs: Sequence[str] = ()) -> None:
    """The same for what `--json F` names: nothing, '-' for standard output, or a file."""
    if target and target != "-":
        check(Path(target), inputs)


def document(target: str | None, content: Mapping[str, Any]) -> bool:
    """Write one JSON document to what `--json F` names.

    Whether that is standard output, where nothing else then belongs.
    """
    if not target:
        return False
    import json
    import sys

    text = json.dumps(content, ensure_ascii=False, indent=1) + "\n"
    if target == "-":
        sys.stdout.write(text)
        return True
    with replacing(Path(target)) as file:
        file.write_text(text, encoding="utf-8")
    return False


def _same(a: Path, b: Path) -> bool:
    try:
        return a.samefile(b)
    except OSError:
        return False


@contextmanager
def replacing(target: Path) -> Generator[Path]:
    """A file to fill beside `target`, which takes its place when the block ends without an error."""
    if target.exists() and not target.is_file():  # a device or a pipe: there is nothing to replace
        try:
            yield target
        except OSError as error:
            raise CannotWrite(target, error) from error
        return
    beside = target.with_name(f".{target.name[:200]}.{os.getpid()}.tmp")
    try:
        yield beside
        beside.replace(target)
    except OSError as error:
        raise CannotWrite(target, error) from error
    finally:
        beside.unlink(missing_ok=True)
