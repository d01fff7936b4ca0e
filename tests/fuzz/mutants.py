"""A number in, a broken recording on disk out: the same number always gives the same one."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import polars as pl

import lostflops
import nsys_exports as nsys
from kineto_files import event_text, trace
from lostflops.ingest import job

from . import mutations
from .jobs import kineto_rank, nsys_tables

REAL = Path(__file__).parents[3] / "shared" / "traces" / "kineto"
# Small ones of every kind: CUDA and ROCm, synchronisation, graphs, Triton, gloo, 2021 to 2026.
SMALL = (
    "aorta/smci350_200691",
    "hta/amd_trace__mi250",
    "hta/critical_path__cuda_event_sync_multi_stream",
    "hta/cpu_only__rank-34.Jul",
    "hta/trace_compare__base",
    "hta/triton_example",
    "kineto_tb/after_fix",
    "kineto_tb/tb_plugin_gpu_metrics_input",
    "tracelens/torch_compile_triton",
    "hta/large_integer_trace",
    "hta/trace_file_list",
    "hta/critical_path__end_to_end__simple_add__input",
)
SMALLEST = 400_000  # bytes: a mutant of a larger one costs more than ten others


@dataclass(frozen=True)
class Mutant:
    """What is asked about, and how."""

    kind: str
    paths: list[Path]
    salvage: bool


def mutant(number: int, seed: int, folder: Path) -> Mutant:
    """Write the mutant of this number into a folder."""
    random = Random(f"{seed}-{number}")
    kind: Callable[[Random, Path], list[Path]] = random.choices(
        (_kineto, _sqlite, _columns, _stored, _real), (50, 18, 14, 10, 8)
    )[0]
    if kind is _real and not _real_ones():
        kind = _kineto
    return Mutant(kind.__name__.strip("_"), kind(random, folder), random.random() < 0.3)


def _kineto(random: Random, folder: Path) -> list[Path]:
    world = random.choices((1, 2, 3), (8, 1, 1))[0]  # a rank more costs as much as a mutant more
    paths: list[Path] = []
    for rank in range(world):
        events, before, after = kineto_rank(random, rank, world)
        if world == 1 or random.random() < 0.6:
            mutations.spoiled_events(random, events, before)
        layout = random.choice(("torch", "lines", "line"))
        bare = random.random() < 0.03
        texts = [_text(event, layout) for event in events]
        text = f"[{','.join(texts)}]".encode() if bare else _whole(texts, before, after, layout)
        if random.random() < 0.25:
            text = mutations.spoiled_text(random, text)
        packed = random.random() < 0.3
        path = folder / (f"rank-{rank}.json.gz" if packed else f"rank-{rank}.json")
        path.write_bytes(gzip.compress(text, 1, mtime=0) if packed else text)
        if packed and random.random() < 0.3:
            mutations.spoiled_file(random, path)
        paths.append(path)
    return paths if random.random() < 0.8 else [folder]


def _text(event: Any, layout: str) -> str:
    if isinstance(event.get("args", {}), dict):
        return event_text(event, layout)
    return json.dumps(event)


def _whole(texts: list[str], before: Any, after: Any, layout: str) -> bytes:
    return trace(texts, before, after, layout)


@cache
def _real_ones() -> tuple[bytes, ...]:
    found = [next(iter(REAL.glob(f"{name}*.gz")), None) for name in SMALL]
    texts = [gzip.decompress(path.read_bytes()) for path in found if path is not None]
    return tuple(text for text in texts if len(text) <= SMALLEST)


def _real(random: Random, folder: Path) -> list[Path]:
    path = folder / "rank-0.json"
    path.write_bytes(mutations.spoiled_text(random, random.choice(_real_ones())))
    return [path]


def _sqlite(random: Random, folder: Path) -> list[Path]:
    tables = nsys_tables(random)
    mutations.spoiled_tables(random, tables)
    path = nsys.sqlite(folder / "profile.sqlite", tables, random.choice((2, 12, 25, 28)))
    if random.random() < 0.2:
        mutations.spoiled_schema(random, path, [*tables, "StringIds", "META_DATA_EXPORT"])
    if random.random() < 0.25:
        mutations.spoiled_file(random, path)
    return [path]


def _columns(random: Random, folder: Path) -> list[Path]:
    tables = nsys_tables(random)
    mutations.spoiled_tables(random, tables)
    form = random.choice((".parquet", ".parquet", ".arrow", ".arrows"))
    place = folder / ("profile_pqtdir" if form == ".parquet" else "profile_arwdir")
    place.mkdir()
    for name, rows in nsys.complete(tables).items():
        types = nsys.columns(name, 25)
        schema = {column: pl.Int64 if kind == "INTEGER" else pl.String for column, kind in types.items()}
        # Something else where a number belongs is SQLite's alone: here a column has one type.
        kept = [
            {
                c: row.get(c) if isinstance(row.get(c), int if t == pl.Int64 else str) else None
                for c, t in schema.items()
            }
            for row in rows
        ]
        frame = pl.DataFrame(kept, schema)
        if random.random() < 0.05:
            kinds = (pl.Int8, pl.UInt64, pl.Float64, pl.String)
            frame = frame.cast({random.choice(frame.columns): random.choice(kinds)}, strict=False)
        if random.random() < 0.05:
            frame = frame.drop(random.choice(frame.columns))
        if form == ".parquet":
            frame.write_parquet(place / f"{name}{form}")
        elif form == ".arrow":
            frame.write_ipc(place / f"{name}{form}")
        else:
            frame.write_ipc_stream(place / f"{name}{form}")
    if random.random() < 0.6:
        mutations.spoiled_file(random, random.choice(sorted(place.iterdir())))
    return [place]


def _stored(random: Random, folder: Path) -> list[Path]:
    """A run that was imported, or a recording's folder with its logs, with a file spoiled."""
    place = folder / "run"
    shutil.copytree(random.choice(_runs), place)
    files = sorted(p for p in place.rglob("*") if p.is_file())
    for _ in range(random.choice((1, 1, 2))):
        chosen = random.choice([*files, *(f for f in files if f.suffix in (".json", ".jsonl"))])
        if random.random() < 0.1:
            chosen.unlink(missing_ok=True)
        elif chosen.exists():
            mutations.spoiled_file(random, chosen)
    return [place]


_runs: list[Path] = []


def prepared(home: Path) -> None:
    """Make whole runs below a folder, for mutants of theirs: of one rank, of two, and recordings' folders."""
    _runs.clear()
    for world in (1, 2):
        random = Random(world)
        traces = home / f"traces-{world}"
        (traces / "node-0000").mkdir(parents=True)
        for rank in range(world):
            events, before, after = kineto_rank(random, rank, world)
            text = _whole([_text(event, "torch") for event in events], before, after, "torch")
            name = f"window-{rank:05}-a0-w000.pt.trace.json.gz"
            (traces / "node-0000" / name).write_bytes(gzip.compress(text, mtime=0))
            (traces / "node-0000" / f"steps-{rank:05}-a0.jsonl").write_text(_step_log(rank, world))
        (traces / "recording.jsonl").write_text(
            '{"kind":"start","command":["python"]}\n{"kind":"end","status":0}\n'
        )
        _runs.append(traces)
        stored = home / f"stored-{world}"
        job.open(traces, output=stored)
        lostflops.ask(lostflops.open(stored), "step_ledger")
        _runs.append(stored)


def _step_log(rank: int, world: int) -> str:
    lines: list[dict[str, Any]] = [
        {
            "kind": "process",
            "rank": rank,
            "world": world,
            "source": "optimizer",
            "pid": 7,
            "host": "n",
            "monotonic": 5_000_000,
            "wall": 1_790_857_026_000_000_000,
        },
        *({"step": n, "end": 6_000_000 + n * 1_000_000, "duration": 1_000_000} for n in range(9)),
        {"kind": "end", "end": 20_000_000},
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)
