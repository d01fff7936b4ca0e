"""Tables through a pipe: a line of JSON says how many bytes each has; those follow, as streams of Arrow.

What else is sent beside them comes pickled, from processes of our own.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Mapping
from typing import IO, Any

import polars as pl


def send(into: IO[bytes], tables: Mapping[str, pl.DataFrame], beside: Any = None) -> None:
    """Write tables, and something beside them."""
    streams = {name: _stream(table) for name, table in tables.items()}
    more = pickle.dumps(beside, protocol=5)
    sizes = {name: stream.nbytes for name, stream in streams.items()}
    into.write(json.dumps([sizes, len(more)]).encode() + b"\n")
    for stream in (*streams.values(), more):
        into.write(stream)
    into.flush()


def received(source: IO[bytes]) -> tuple[dict[str, pl.DataFrame], Any]:
    """What was sent. Raises ValueError where it ends before."""
    sizes, more = json.loads(source.readline())
    streams = {name: source.read(size) for name, size in sizes.items()}
    beside = source.read(more)
    if len(beside) < more or any(len(streams[name]) < size for name, size in sizes.items()):
        raise ValueError
    return {name: pl.read_ipc_stream(io.BytesIO(s)) for name, s in streams.items()}, pickle.loads(beside)


def _stream(table: pl.DataFrame) -> memoryview:
    content = io.BytesIO()
    table.write_ipc_stream(content)
    return content.getbuffer()
