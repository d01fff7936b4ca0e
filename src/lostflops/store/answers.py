"""What recipes said of a stored run, kept beside its tables, so that asking again reads instead of computing.

    RUN/answers/<recipe>-<key>

The key tells the run, the slice of it, the recipe's options and which lostflops asks: an answer under it is
what computing would give. A file begins with a digest of its name and of what follows, so one that was
damaged or put in another's place counts as none. A run that cannot be written to keeps none.

Answers are streams of Arrow: most are a few rows, and a Parquet file of those takes twenty times as long.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import polars as pl
from polars.exceptions import PolarsError

from .installation import fingerprint
from .trace import Trace

FOLDER = "answers"
DIGEST = 16  # bytes


class Answers:
    """The tables kept of one trace."""

    def __init__(self, trace: Trace) -> None:
        self._folder = trace.path / FOLDER
        self._asked = hashlib.blake2b(msgspec.json.encode(trace.manifest), digest_size=16)
        ranks = None if trace.ranks is None else sorted(trace.ranks)
        self._asked.update(f"|{ranks}|{trace.steps}|{fingerprint()}".encode())

    def read(self, recipe: str, options: Mapping[str, Any]) -> pl.DataFrame | None:
        """What was kept, or None. A file that is damaged counts as none."""
        file = self._file(recipe, options)
        try:
            kept = memoryview(file.read_bytes())
            content = kept[DIGEST:]
            return (
                pl.read_ipc_stream(io.BytesIO(content))
                if bytes(kept[:DIGEST]) == _digest(file, content)
                else None
            )
        except (OSError, PolarsError):
            return None

    def keep(self, recipe: str, options: Mapping[str, Any], table: pl.DataFrame) -> None:
        """Keep a table if that is possible. Readers meet it whole or not at all."""
        file = self._file(recipe, options)
        written = file.with_name(f".{uuid4().hex}")
        content = io.BytesIO()
        table.write_ipc_stream(content, compression="lz4")
        with suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            try:
                with written.open("wb") as kept:
                    kept.write(_digest(file, content.getbuffer()))
                    kept.write(content.getbuffer())
                written.replace(file)
            except BaseException:
                written.unlink(missing_ok=True)
                raise

    def _file(self, recipe: str, options: Mapping[str, Any]) -> Path:
        key = self._asked.copy()
        key.update(f"|{recipe}|{sorted(options.items())}".encode())
        return self._folder / f"{recipe}-{key.hexdigest()}"


def _digest(file: Path, content: memoryview) -> bytes:
    digest = hashlib.blake2b(file.name.encode(), digest_size=DIGEST)
    digest.update(content)
    return digest.digest()
