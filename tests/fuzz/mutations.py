"""What can go wrong with a recording: in its events or rows, in the text they are written as, in the file."""

from __future__ import annotations

import re
import sqlite3
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

from .jobs import ANNOTATIONS, KERNELS, OPERATORS

Row = dict[str, Any]

NUMBERS = (
    0,
    -1,
    1,
    0.5,
    1e308,
    -1e308,
    2**53 + 1,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
    2**64,
    10**30,
    1e15,
    8.64e10,
    1712345678901234.567,
    float("nan"),
    float("inf"),
    None,
    "",
    "12",
    "x",
    [],
    {},
    True,
)
WHOLE = (0, -1, 1, 2**31, 2**53 + 1, 2**61, 2**62, 2**63 - 1, -(2**63), 10**15, None, "x", 0.5, b"\xff")
NAMES = (
    *KERNELS,
    *OPERATORS,
    *(name.format(n=4) for name in ANNOTATIONS),
    "ProfilerStep#99999999999999999999",
    "ProfilerStep#3",
    "step 18446744073709551616",
    "Memcpy PtoP (Device -> Device)",
    "\ud800",
    "a" * 5000,
    "[memory]",
    "[1, 2]",
    "Record Window End",
    "Iteration Start: PyTorch Profiler",
    "\u202egpj.exe",
    "nul\0",
)
CATEGORIES = (
    "kernel",
    "cpu_op",
    "user_annotation",
    "gpu_user_annotation",
    "cuda_runtime",
    "cuda_driver",
    "gpu_memcpy",
    "gpu_memset",
    "cuda_sync",
    "overhead",
    "python_function",
    "cpu_instant_event",
    "Trace",
    "ac2g",
    "mtia_runtime",
    "",
)
JSON_TEXTS = (
    b"null",
    b"true",
    b'""',
    b'"x"',
    b"[]",
    b"{}",
    b"-1",
    b"0",
    b"1e308",
    b"NaN",
    b"-Infinity",
    b"18446744073709551615",
    b"-9223372036854775809",
    b"99999999999999999999999999",
    b'"\\ud800"',
    b'"\xff"',
    b'"a"b"',
    b"[[4, 5], [6]]",
    b"86400000000",
)
KEY = re.compile(rb'"(?:ts|dur|cat|name|pid|tid|ph|device|stream|correlation|bytes|[A-Z][\w ]+)": ')


def spoiled_events(random: Random, events: list[Row], before: Row) -> None:
    """Some changes to the events of a trace and to its head, in place."""
    for _ in range(random.choice((1, 1, 2, 3, 6))):
        if not events:
            return
        random.choice(
            (
                _delete,
                _double,
                _stretch,
                _nest,
                _cross,
                _field,
                _field,
                _argument,
                _rekey,
                _threads,
                _rename,
                _recast,
                _move,
                _order,
            )
        )(random, events)
    if random.random() < 0.1:
        key = random.choice(("distributedInfo", "deviceProperties", "baseTimeNanoseconds", "schemaVersion"))
        before[key] = random.choice(
            (
                *NUMBERS[:12],
                None,
                "x",
                [],
                {},
                [{}],
                {"rank": -1, "world_size": 0},
                {"rank": 2**40, "world_size": 3},
                [{"id": "x", "name": "\x1b]0;x\x07"}],
            )
        )


def _delete(random: Random, events: list[Row]) -> None:
    kind = random.choice(events).get("cat")
    if random.random() < 0.3:
        events[:] = [event for event in events if event.get("cat") != kind] or events[:1]
    else:
        events.pop(random.randrange(len(events)))


def _double(random: Random, events: list[Row]) -> None:
    chosen = random.choice(events)
    events.insert(random.randrange(len(events) + 1), deepcopy(chosen))


def _stretch(random: Random, events: list[Row]) -> None:
    event = random.choice(events)
    event["dur"] = random.choice((0, -5, 1, 0.001, 1e4, 1e9, 1e12, 9e15))


def _nest(random: Random, events: list[Row]) -> None:
    """One more of the kind inside another: a `step` that calls `super().step`."""
    event = random.choice(events)
    ts, dur = event.get("ts"), event.get("dur")
    if isinstance(ts, float | int) and isinstance(dur, float | int) and not isinstance(ts, bool):
        inner = {
            **event,
            "ts": ts + dur * random.choice((0, 0.1, 0.5)),
            "dur": dur * random.choice((0, 0.3, 1)),
        }
        if random.random() < 0.5:
            inner["name"] = random.choice(NAMES)
        events.append(inner)


def _cross(random: Random, events: list[Row]) -> None:
    """One more of the kind that begins in another and ends behind it."""
    event = random.choice(events)
    ts, dur = event.get("ts"), event.get("dur")
    if isinstance(ts, float | int) and isinstance(dur, float | int) and not isinstance(ts, bool):
        tid = random.choice((event.get("tid"), 2))
        events.append({**event, "ts": ts + dur / 2, "dur": dur, "tid": tid})


def _field(random: Random, events: list[Row]) -> None:
    event = random.choice(events)
    key = random.choice(("ts", "dur", "ts", "dur", "pid", "tid", "ph", "cat", "name", "args"))
    if random.random() < 0.15:
        event.pop(key, None)
    elif random.random() < 0.5 and isinstance(event.get(key), float | int):
        event[key] = event[key] + random.choice((1e-3, -1, 1, 55.5, -1000, 1e9, -1e9))
    else:
        event[key] = random.choice(NUMBERS)


def _argument(random: Random, events: list[Row]) -> None:
    args = random.choice(events).get("args")
    if isinstance(args, dict) and args:
        key = random.choice([*args, "device", "stream", "correlation", "bytes", "Group size", "Rank"])
        args[key] = random.choice((*NUMBERS, "[0, 1, 2]", "[-1]", "0", 7, 20))


def _rename(random: Random, events: list[Row]) -> None:
    random.choice(events)["name"] = random.choice(NAMES)


def _rekey(random: Random, events: list[Row]) -> None:
    """A key by another name, of one event or of all of its kind."""
    chosen = random.choice(events)
    key = random.choice(list(chosen) or ["ts"])
    new = random.choice(("ts", "dur", "tid", "TS", "Dur", "", "args", "cat", "id", key + " ", "x" * 300))
    kind = chosen.get("cat") if random.random() < 0.3 else None
    for event in events:
        if (event is chosen or (kind and event.get("cat") == kind)) and key in event:
            event[new] = event.pop(key)


def _threads(random: Random, events: list[Row]) -> None:
    """All of one name once more, on another thread and a little apart."""
    name = random.choice(events).get("name")
    ts = [e for e in events if e.get("name") == name and type(e.get("ts")) in (int, float)][:20]
    apart, tid = random.choice((0, 0.5, 3, -2, 40)), random.choice((2, 99, "7", -1, None))
    events += [{**event, "ts": event["ts"] + apart, "tid": tid} for event in ts]


def _recast(random: Random, events: list[Row]) -> None:
    random.choice(events)["cat"] = random.choice(CATEGORIES)


def _move(random: Random, events: list[Row]) -> None:
    """All of one kind earlier or later, as a clock that went wrong leaves them."""
    kind, by = random.choice(events).get("cat"), random.choice((-300, 0.5, 77, 1e6, -1e12))
    for event in events:
        ts = event.get("ts")
        if event.get("cat") == kind and isinstance(ts, float | int) and not isinstance(ts, bool):
            event["ts"] = ts + by


def _order(random: Random, events: list[Row]) -> None:
    random.shuffle(events)


def spoiled_text(random: Random, text: bytes) -> bytes:
    """The file's bytes with some of them changed, lost or doubled."""
    data = bytearray(text)
    for _ in range(random.choice((1, 1, 2, 4))):
        if not data:
            break
        at = random.randrange(len(data))
        until = min(len(data), at + random.choice((1, 2, 7, 40, 300, 5000)))
        match random.choice(("flip", "flip", "delete", "double", "cut", "value", "value", "twice")):
            case "flip":
                data[at] ^= 1 << random.randrange(8)
            case "delete":
                del data[at:until]
            case "double":
                data[at:at] = data[at:until]
            case "cut":
                del data[at:]
            case "twice":  # a key that is there already
                if key := KEY.search(data, at):
                    data[key.start() : key.start()] = key[0] + random.choice(JSON_TEXTS) + b", "
            case _:
                if (key := KEY.search(data, at)) and (end := re.compile(rb"[,}\n]").search(data, key.end())):
                    data[key.end() : end.start()] = random.choice(JSON_TEXTS)
    return bytes(data)


def spoiled_tables(random: Random, tables: dict[str, list[Row]]) -> None:
    """Some changes to the rows of an export, in place."""
    for _ in range(random.choice((1, 1, 2, 3, 6))):
        filled = [name for name, rows in tables.items() if rows]
        if not filled:
            return
        rows = tables[random.choice(filled)]
        at = random.randrange(len(rows))
        row = rows[at]
        match random.choice(("delete", "double", "field", "field", "shift", "swap", "nest", "clear", "text")):
            case "delete":
                rows.pop(at)
            case "double":
                rows.append({**row, "start": row.get("start", 0), "end": row.get("end")})
            case "field":
                row[random.choice(list(row))] = random.choice(WHOLE)
            case "shift":
                by = random.choice((1, -1, 10**6, -(10**12), 2**60))
                for key in ("start", "end"):
                    if isinstance(row.get(key), int) and abs(row[key]) < 2**62:
                        row[key] += by
            case "swap":
                row["start"], row["end"] = row.get("end"), row.get("start")
            case "nest":
                if isinstance(row.get("start"), int) and isinstance(row.get("end"), int):
                    rows.append({**row, "end": (row["start"] + row["end"]) // 2})
            case "clear":
                key = random.choice(list(row))
                for one in rows:
                    one[key] = None
            case _:
                if "text" in row:
                    row["text"] = random.choice(NAMES).encode(errors="surrogatepass").decode(errors="replace")


VIEWS = (
    'CREATE VIEW "{t}" AS WITH RECURSIVE c(start) AS (SELECT 1 UNION ALL SELECT 2 FROM c) SELECT * FROM c',
    'CREATE VIEW "{t}" AS SELECT 1 AS start, zeroblob(900000000) AS end',
    'CREATE TABLE "{t}" (start, "end" GENERATED ALWAYS AS (start + 1))',
    'CREATE TABLE "{t}" (id INTEGER PRIMARY KEY) WITHOUT ROWID',
    'CREATE TABLE "{t}" (start TEXT, end BLOB)',
)


def spoiled_schema(random: Random, file: Path, tables: list[str]) -> None:
    """Something else in the place of a table, or one column less."""
    with sqlite3.connect(file) as database:
        table = random.choice(tables)
        try:
            if random.random() < 0.4:
                database.execute(f'DROP TABLE "{table}"')
                database.execute(random.choice(VIEWS).format(t=table))
            else:
                columns = [row[1] for row in database.execute(f"PRAGMA table_info('{table}')")]
                database.execute(f'ALTER TABLE "{table}" DROP COLUMN "{random.choice(columns)}"')
        except sqlite3.Error:
            pass
    database.close()


def spoiled_file(random: Random, file: Path) -> None:
    """Bits flipped, bytes lost, or the file emptied."""
    data = bytearray(file.read_bytes())
    match random.choice(("flip", "flip", "flip", "cut", "zero", "empty", "swap")):
        case "flip":
            for _ in range(random.choice((1, 1, 3, 20))):
                if data:
                    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        case "cut":
            del data[random.randrange(len(data) + 1) :]
        case "zero":
            at = random.randrange(len(data) + 1)
            data[at : at + 512] = bytes(min(512, len(data) - at))
        case "swap":
            at, to = random.randrange(len(data) + 1), random.randrange(len(data) + 1)
            data[at : at + 64] = data[to : to + 64]
        case _:
            data.clear()
    file.write_bytes(data)
