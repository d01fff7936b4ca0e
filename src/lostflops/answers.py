"""What recipes said of a stored run, kept beside its tables, so that asking again reads instead of computing.

    RUN/answers/<recipe>-<key>.parquet

The key tells the run, the slice of it, the recipe's options and which lostflops asks: an answer under it is
what computing would give. A run that cannot be written to keeps none.
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


class Answers:
    """The tables kept of one trace."""

    def __init__(self, trace: Trace) -> None:
        self._folder = trace.path / FOLDER
        self._asked = hashlib.blake2b(msgspec.json.encode(trace.manifest), digest_size=16)
        ranks = None if trace.ranks is None else sorted(trace.ranks)
        self._asked.update(f"|{ranks}|{trace.steps}|{fingerprint()}".encode())

    def read(self, recipe: str, options: Mapping[str, Any]) -> pl.DataFrame | None:
        """What was kept, or None. A file that is damaged counts as none."""
        try:
            return pl.read_parquet(self._file(recipe, options).read_bytes())
        except (OSError, PolarsError):
            return None

    def keep(self, recipe: str, options: Mapping[str, Any], table: pl.DataFrame) -> None:
        """Keep a table if that is possible. Readers meet it whole or not at all."""
        file = self._file(recipe, options)
        written = file.with_name(f".{uuid4().hex}")
        content = io.BytesIO()
        table.write_parquet(content, compression="lz4", statistics=False)
        with suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            try:
                written.write_bytes(content.getbuffer())
                written.replace(file)
            finally:
                written.unlink(missing_ok=True)

    def _file(self, recipe: str, options: Mapping[str, Any]) -> Path:
        key = self._asked.copy()
        key.update(f"|{recipe}|{sorted(options.items())}".encode())
        return self._folder / f"{recipe}-{key.hexdigest()}.parquet"
