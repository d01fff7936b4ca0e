"""A file of lines that is only ever appended to, in a folder of its own: what is known survives a kill."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from lostflops.errors import CannotWrite, OutputExists, Unreadable


def fresh_folder(path: Path) -> None:
    """Make a folder that nobody else can read. Raises OutputExists where it holds something; CannotWrite."""
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise OutputExists(path)
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)
    except OSError as error:
        raise CannotWrite(path, error) from error


def write(file: Path, kind: str, fields: Mapping[str, Any], hint: str) -> None:
    """Add a line of a kind, with its time. Raises CannotWrite with the hint."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    try:
        append(file, {"kind": kind, **fields, "time": when})
    except OSError as error:
        raise CannotWrite(file, error, hint) from error


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Add a line to a file of lines. What a kill or a full disk cut off before it stays a line of its own."""
    with path.open("ab+") as file:
        file.seek(0, os.SEEK_END)
        torn = file.tell() > 0 and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n"
        file.write((b"\n" if torn else b"") + json.dumps(line).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def replay(file: Path, take: Callable[[dict[str, Any]], None]) -> None:
    """Call `take` with each line, in order. Raises Unreadable.

    What a kill or a full disk cut off is passed over, and so is what `take` cannot convert.
    """
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise Unreadable(file, error) from error
    for raw in lines:
        try:
            take(msgspec.json.decode(raw, type=dict[str, Any]))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue
