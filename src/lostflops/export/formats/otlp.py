"""OpenTelemetry: steps, ranges and collectives as spans, for Jaeger, Tempo or a collector's file receiver."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np
import polars as pl

from lostflops.export import lanes
from lostflops.export.asked import Exported, ExportRequest
from lostflops.export.json_text import quoted
from lostflops.export.selection import RunPart
from lostflops.export.timeline import Drawn, label
from lostflops.export.writing import compressed, writing
from lostflops.intervals import nest
from lostflops.tables import NAME
from lostflops.version import __version__

ENDINGS = (".otlp.json", ".otlp.json.gz")
OPENED_BY = "send it to a collector: `curl -H 'Content-Type: application/json' -d @F HOST:4318/v1/traces`"
TIMELINE = False
TABLE = False
STACKS = False
BLOCK = 1 << 16
# Spans of a rank are numbered from here on; its own span is the first.
RANK_BITS = 40
INTERNAL = 1
# What each table's spans say of themselves, by the keys of their attributes.
TOLD: Mapping[str, Mapping[str, str]] = {
    "steps": {"lostflops.step": "step", "lostflops.complete": "complete"},
    "ranges": {"lostflops.domain": "domain", "thread.id": "thread"},
    "collectives": {
        "lostflops.group": "group", "lostflops.bytes_in": "bytes_in", "lostflops.dtype": "dtype",
        "lostflops.library": "library", "lostflops.sequence": "sequence",
    },
}  # fmt: skip


def write(asked: ExportRequest, output: Path) -> Exported:
    drawn = Drawn()
    manifest = msgspec.json.encode(asked.selection.trace.manifest)
    trace = hashlib.blake2b(manifest, digest_size=16).hexdigest()
    with writing(output) as place, compressed(place, output) as file:
        file.write(b'{"resourceSpans": [')
        for number, rank in enumerate(asked.selection.ranks):
            asked.tell(f"rank {rank}", number / len(asked.selection.ranks))
            file.write((b"\n" if not number else b",\n") + _resource(asked.selection, rank))
            for block in _spans(asked.selection, rank, trace, drawn):
                file.write(block)
            file.write(b"]}]}")
        file.write(b"]}\n")
    return asked.exported(output, drawn)


def _resource(selection: RunPart, rank: int) -> bytes:
    said = {"service.name": "training", "lostflops.rank": rank, "lostflops.label": label(selection, rank)}
    attributes = [
        {"key": key, "value": {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)}}
        for key, value in said.items()
    ]
    scope = {"name": "lostflops", "version": __version__}
    resource = json.dumps({"attributes": attributes})
    head = f'{{"resource": {resource}, "scopeSpans": [{{"scope": {json.dumps(scope)}, "spans": ['
    return head.encode()


def _spans(selection: RunPart, rank: int, trace: str, drawn: Drawn) -> Iterator[bytes]:
    """The rank's own span, and below it those of its rows, ranges within ranges."""
    rows = _rows(selection, rank, drawn)
    own = (rank + 1) << RANK_BITS
    if rows is None:
        return
    base = selection.trace.manifest.origin_ns
    whole = pl.DataFrame(
        {"name": [f'"rank {rank}"'], "start": [rows["start"].min()], "end": [rows["end"].max()],
         "id": [own], "parent": [0], "told": ["[]"]}
    )  # fmt: skip
    columns = ("name", "start", "end", "id", "parent", "told")
    numbered = rows.with_columns(
        id=pl.int_range(pl.len(), dtype=pl.Int64) + own + 1,
        parent=pl.when(pl.col("above") >= 0).then(pl.col("above") + own + 1).otherwise(own),
    )
    first = True
    for block in pl.concat([whole, numbered.select(columns)]).iter_slices(BLOCK):
        parent = pl.when(pl.col("parent") > 0).then('"parentSpanId": "' + _hex("parent") + '", ')
        text = pl.concat_str(
            pl.lit(f'{{"traceId": "{trace}", "spanId": "'), _hex("id"), pl.lit('", '),
            parent.otherwise(pl.lit("")),
            pl.lit('"name": '), pl.col("name"), pl.lit(f', "kind": {INTERNAL}, "startTimeUnixNano": "'),
            (pl.col("start") + base).cast(pl.String), pl.lit('", "endTimeUnixNano": "'),
            (pl.max_horizontal("start", "end") + base).cast(pl.String), pl.lit('", "attributes": '),
            pl.col("told"), pl.lit("}"),
        )  # fmt: skip
        said = ",\n".join(block.select(text).to_series().to_list())
        yield (("\n" if first else ",\n") + said).encode()
        first = False


def _hex(column: str) -> pl.Expr:
    """Sixteen digits of a number."""
    number = pl.col(column)
    digits = [(number // 16**place) % 16 for place in range(15, -1, -1)]
    words = {value: f"{value:x}" for value in range(16)}
    return pl.concat_str([digit.replace_strict(words, return_dtype=pl.String) for digit in digits])


def _rows(selection: RunPart, rank: int, drawn: Drawn) -> pl.DataFrame | None:
    """The rows of all tables with their JSON attributes, and the place of the row each lies in, or -1."""
    parts: list[pl.DataFrame] = []
    for table, told in TOLD.items():
        rows = selection.rows(table, rank)
        if rows is None:
            continue
        drawn.count(table, rows.height)
        if table == "steps":
            rows = rows.with_columns(name="step " + pl.col("step").cast(pl.String))
        if table == "collectives":
            rows = rows.with_columns(name=pl.col("kind"))
        nests = pl.col("nested").fill_null(False) if table == "ranges" else pl.lit(False)
        parts.append(
            rows.select(
                "start",
                "end",
                name=quoted(rows["name"]).fill_null('""'),
                told=_attributes(rows, told),
                group=pl.when(nests).then(
                    pl.col("thread") if table == "ranges" else pl.lit(None, dtype=pl.Int64)
                ),
            )
        )
    if not parts:
        return None
    rows = pl.concat(parts)
    inside = rows.with_row_index("row").filter(pl.col("group").is_not_null())
    above = np.full(rows.height, -1, np.int64)
    if inside.height:
        start, end = inside["start"].to_numpy(), inside["end"].to_numpy()
        thread = inside["group"].rank("dense").cast(pl.Int64).to_numpy()
        lane = lanes.nested(start, end, thread)
        forest = nest(start, end, thread + lane * (int(thread.max()) + 1))
        place = inside["row"].to_numpy().astype(np.int64)[forest.order]
        child = forest.parent >= 0
        above[place[child]] = place[forest.parent[child]]
    return rows.with_columns(above=pl.Series(above))


def _attributes(rows: pl.DataFrame, told: Mapping[str, str]) -> pl.Series:
    parts: list[pl.Expr] = []
    texts: list[pl.Series] = []
    for key, column in told.items():
        values = rows[column]
        if isinstance(values.dtype, pl.Boolean):
            kind, said = "boolValue", values.cast(pl.String)
        elif values.dtype.is_integer():
            kind, said = "intValue", '"' + values.cast(pl.String) + '"'
        else:
            kind, said = "stringValue", quoted(values.cast(NAME))
        texts.append(said.alias(key))
        opened = pl.lit(f', {{"key": "{key}", "value": {{"{kind}": ')
        parts.append((opened + pl.col(key) + "}}").fill_null(""))
    inner = pl.concat_str(parts).str.strip_prefix(", ")
    return pl.DataFrame(texts).select(("[" + inner + "]").alias("told")).to_series()
