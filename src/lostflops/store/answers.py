"""What recipes said of a stored run, kept beside its tables, so that asking again reads instead of computing.

    RUN/answers/<recipe>-<key>
    RUN/answers/first_page-<key>     the page as it was printed

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
from typing import Any, BinaryIO
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
        content = self._read(self._file(recipe, options))
        with suppress(PolarsError):
            return None if content is None else pl.read_ipc_stream(io.BytesIO(content))
        return None

    def keep(self, recipe: str, options: Mapping[str, Any], table: pl.DataFrame) -> None:
        """Keep a table if that is possible. Readers meet it whole or not at all."""
        content = io.BytesIO()
        table.write_ipc_stream(content, compression="lz4")
        self._keep(self._file(recipe, options), content.getbuffer())

    def read_text(self, name: str, asked: Mapping[str, Any]) -> str | None:
        """A text that was kept, or None. A file that is damaged counts as none."""
        content = self._read(self._file(name, asked))
        with suppress(UnicodeDecodeError):
            return None if content is None else bytes(content).decode()
        return None

    def keep_text(self, name: str, asked: Mapping[str, Any], text: str) -> None:
        """Keep a text that `asked` tells from all others of its name, if that is possible."""
        self._keep(self._file(name, asked), memoryview(text.encode()))

    def _read(self, file: Path) -> memoryview | None:
        try:
            kept = memoryview(file.read_bytes())
        except OSError:
            return None
        content = kept[DIGEST:]
        return content if bytes(kept[:DIGEST]) == _digest(file, content) else None

    def _keep(self, file: Path, content: memoryview) -> None:
        written = file.with_name(f".{uuid4().hex}")
        with suppress(OSError):
            try:
                with self._opened(written) as kept:
                    kept.write(_digest(file, content))
                    kept.write(content)
                written.replace(file)
            except BaseException:
                written.unlink(missing_ok=True)
                raise

    def _opened(self, file: Path) -> BinaryIO:
        try:
            return file.open("wb")
        except FileNotFoundError:  # the first answer of the run
            self._folder.mkdir(exist_ok=True)
            return file.open("wb")

    def _file(self, recipe: str, options: Mapping[str, Any]) -> Path:
        key = self._asked.copy()
        key.update(f"|{recipe}|{sorted(options.items())}".encode())
        return self._folder / f"{recipe}-{key.hexdigest()}"


def _digest(file: Path, content: memoryview) -> bytes:
    digest = hashlib.blake2b(file.name.encode(), digest_size=DIGEST)
    digest.update(content)
    return digest.digest()
