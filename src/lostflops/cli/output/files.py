"""Files that a command writes: whole or not at all, and never in the place of what it reads."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from glob import has_magic
from pathlib import Path
from typing import Any

from lostflops.errors import BadOption, CannotWrite, shown

from .safe import printable_json

PAGE = re.compile(rb'\{"schema":\d+,"lostflops":"')


def check(target: Path, inputs: Sequence[str]) -> None:
    """Raise early, before minutes of work, when `target` cannot be written or is one of the inputs."""
    if _is_input(target, inputs):
        raise BadOption(f"'{shown(target)}' is an input: it would be overwritten.", "choose another name.")
    try:
        beside = _beside(target)
        if target.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        if not beside.parent.is_dir():
            raise FileNotFoundError(0, "its folder does not exist")
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise CannotWrite(target, error) from error


def check_document(target: str | None, inputs: Sequence[str] = ()) -> None:
    """The same for what `--json F` names: nothing, '-' for standard output, or a file."""
    if target == "":  # an unset shell variable, which Path would take for the current folder
        raise BadOption("--json names no file.", "write '--json FILE', or '--json -' to print it.")
    if target is not None and target != "-":
        check(Path(target), inputs)


def check_named(option: str, target: str, inputs: Sequence[str] = ()) -> None:
    """The same for an option that names a file."""
    if target == "":  # an unset shell variable, which Path would take for the current folder
        raise BadOption(f"--{option} names no file.", f"write '--{option} FILE'.")
    check(Path(target), inputs)


def check_apart(targets: Mapping[str, Path]) -> None:
    """Raise BadOption where two options name one file: what is written last would replace the other."""
    seen: dict[str, str] = {}
    for option, target in targets.items():
        other = seen.setdefault(os.path.realpath(target), option)
        if other != option:
            raise BadOption(f"--{other} and --{option} name one file: {shown(target)}.", "give each its own.")


def document(target: str | None, content: Mapping[str, Any]) -> bool:
    """Write one JSON document to what `--json F` names.

    Whether that is standard output, where nothing else then belongs.
    """
    if target is None:
        return False
    import json
    import sys

    text = json.dumps(content, ensure_ascii=False, indent=1) + "\n"
    if target == "-":
        sys.stdout.write(printable_json(text.encode()).decode())
        return True
    with replacing(Path(target)) as file:
        file.write_text(text, encoding="utf-8")
    return False


def _is_input(target: Path, inputs: Sequence[str]) -> bool:
    """Whether `target` is an input, or among those that lie in a folder or match a pattern."""
    if any(target == Path(given) or same(target, Path(given)) for given in inputs):
        return True
    several = [given for given in inputs if _is_folder(Path(given)) or has_magic(given)]
    if not several:
        return False
    if _is_page(target):  # what an earlier question left among the traces
        return False
    from lostflops.ingest import job

    return job.reads(target, several)


def _is_page(target: Path) -> bool:
    """Whether a file is a page that `--json` wrote."""
    try:
        if not target.is_file():
            return False
        with target.open("rb") as file:
            return PAGE.match(file.read(40)) is not None
    except OSError:
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.expanduser().is_dir()
    except OSError:
        return False


def same(a: Path, b: Path) -> bool:
    """Whether both name one file or folder that is there."""
    try:
        return a.samefile(b.expanduser())
    except OSError:
        return False


def _beside(target: Path) -> Path:
    """A name in the folder of `target`, or of the file that it is a link to."""
    real = Path(os.path.realpath(target))
    return real.with_name(f".{real.name[:60]}.{os.getpid()}.tmp")


@contextmanager
def replacing(target: Path, inputs: Sequence[str] = ()) -> Generator[Path]:
    """A file to fill beside `target`, which takes its place when the block ends without an error.

    Raises what `check` does: minutes may have passed since it was asked.
    """
    check(target, inputs)
    if target.exists() and not target.is_file():  # a device or a pipe: there is nothing to replace
        try:
            yield target
        except OSError as error:
            raise CannotWrite(target, error) from error
        return
    beside = _beside(target)
    try:
        yield beside
        beside.replace(os.path.realpath(target))
    except OSError as error:
        raise CannotWrite(target, error) from error
    finally:
        beside.unlink(missing_ok=True)
