"""Chrome's JSON as the PyTorch profiler writes it: for lostflops, HTA, Perfetto and chrome://tracing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lostflops import run_folder
from lostflops.export import lanes
from lostflops.export.asked import Exported, ExportRequest
from lostflops.export.json_text import arguments, microseconds, quoted
from lostflops.export.selection import RunPart
from lostflops.export.timeline import BACKWARD, Drawn, Launching, label, with_backward, without_device
from lostflops.export.writing import compressed, writing, writing_folder
from lostflops.ingest.kineto.collectives import DTYPE_BYTES
from lostflops.intervals import innermost
from lostflops.naming.classification import COLLECTIVE_OF
from lostflops.store.trace import REPLAYED, SIMULATED

ENDINGS = (".json", ".json.gz")
OPENED_BY = "open it at https://ui.perfetto.dev or chrome://tracing; HTA and `lostflops why` read it too"
TIMELINE = False
TABLE = False
STACKS = False
# The host's process stands beside the devices, which are numbered from 0.
HOST = 1_000_000
# What separates events is what the profiler puts there: readers find the events by it.
BEGIN, BETWEEN, END = b'"traceEvents": [\n  {', b"\n  },\n  {", b"\n  }\n  ]"
BLOCK = 1 << 16
VERSIONS = (
    "cuda_runtime", "cuda_driver", "cupti", "hip_runtime", "hip_driver", "roctracer", "rocprofiler-sdk",
)  # fmt: skip
ON_DEVICE = {
    "device": "device", "stream": "stream", "correlation": "correlation", "graph node id": "graph_node",
    "registers per thread": "registers", "shared memory": "shared_memory", "bytes": "bytes",
}  # fmt: skip
OF_COLLECTIVES = {
    "Collective name": "kind", "In msg nelems": "_in", "Out msg nelems": "_out", "dtype": "dtype",
    "Group size": "group_size", "Process Group Name": "_group", "Process Group Ranks": "_members",
    "Seq": "sequence", "Src Rank": "_source", "Dst Rank": "_target",
}  # fmt: skip
# How PyTorch spells what collectives do.
SPELLED = {kind: spelling for spelling, kind in reversed(COLLECTIVE_OF.items())}
GROUP = r"(?s)^(.*?)(?: (\[[\d, ]*\]))?$"


def write(asked: ExportRequest, output: Path) -> Exported:
    """A file of one rank; of several ranks a folder with a file each."""
    drawn = Drawn()
    ranks = asked.selection.ranks
    if len(ranks) == 1:
        with writing(output) as place:
            _file(asked, ranks[0], place, output.name, drawn)
        return asked.exported(output, drawn)
    ending = ".json" if output.name.endswith(".json") else ".json.gz"
    written: list[str] = []
    with writing_folder(output) as folder:
        for number, rank in enumerate(ranks):
            asked.tell(f"rank {rank}", number / len(ranks))
            written.append(f"rank{rank}.pt.trace{ending}")
            _file(asked, rank, folder / written[-1], written[-1], drawn)
    return asked.exported(output, drawn, [output / name for name in written])


def _file(asked: ExportRequest, rank: int, place: Path, name: str, drawn: Drawn) -> None:
    with compressed(place, Path(name)) as file:
        frame, base = _frame(asked.selection, rank)
        file.write(b"{\n" + b"".join(f"  {json.dumps(k)}: {json.dumps(v)},\n".encode() for k, v in frame))
        file.write(b"  " + BEGIN)
        first = True
        for block in _events(asked.selection, rank, base, drawn):
            file.write((b"" if first else BETWEEN) + block)
            first = False
        file.write(END + b',\n  "displayTimeUnit": "ns"\n}\n')


def _frame(selection: RunPart, rank: int) -> tuple[list[tuple[str, Any]], int]:
    """What stands around the events, and the time that they count from."""
    rows = selection.recorded
    known = rows.filter(pl.col("rank") == rank).collect().sort("device").row(0, named=True)
    manifest = selection.trace.manifest
    base = selection.origin
    if manifest.origin_ns + base < 0:
        base = -manifest.origin_ns
    groups = [
        {"pg_name": g["name"], "pg_desc": g["description"], "ranks": g["ranks"], "pg_size": len(g["ranks"])}
        for g in known["groups"] or ()
    ]
    distributed = {
        "backend": known["backend"], "rank": rank, "world_size": known["world_size"],
        "pg_count": len(groups), "pg_config": groups,
    }  # fmt: skip
    device = {
        "id": known["device"], "name": known["gpu"], "totalGlobalMem": known["memory_bytes"],
        "numSms": known["num_sms"],
    }  # fmt: skip
    frame: list[tuple[str, Any]] = [
        ("schemaVersion", 1),
        ("baseTimeNanoseconds", manifest.origin_ns + base),
        ("distributedInfo", {k: v for k, v in distributed.items() if v is not None}),
        ("deviceProperties", [device] if known["gpu"] else []),
        ("with_stack", int(selection.trace.has("frames"))),
        ("profile_memory", int(selection.trace.has("allocations"))),
    ]
    if known["host"] is not None:
        frame.append(("host_name", f"node{known['host']}"))
    versions, packages = _versions(known["versions"] or "")
    frame += versions
    told = {key: (known[key] or "").split() for key in ("frameworks", "bf16_units")}
    ours: dict[str, Any] = {"versions": packages, **told}
    # Who reads the file again has to know that nobody measured this.
    facts = {fact.name: fact.text for fact in manifest.quality}
    if SIMULATED in facts:
        ours[run_folder.SIMULATED] = facts[SIMULATED]
    ours[run_folder.REPLAYED] = facts.get(REPLAYED)
    if any(ours.values()):
        frame.append(("lostflops", {key: value for key, value in ours.items() if value}))
    return frame, base


def _versions(said: str) -> tuple[list[tuple[str, Any]], dict[str, str]]:
    """'cuda runtime 12040, torch 2.9' as fields of the file, and as packages."""
    fields: list[tuple[str, Any]] = []
    packages: dict[str, str] = {}
    for part in filter(None, said.split(", ")):
        name, _, version = part.rpartition(" ")
        key = name.replace(" ", "_")
        if key in VERSIONS:
            fields.append((f"{key}_version", int(version) if version.isdecimal() else version))
        else:
            packages[name] = version
    return fields, packages


def _events(selection: RunPart, rank: int, base: int, drawn: Drawn) -> Iterator[bytes]:
    """The bodies of events, in blocks: names of tracks, the host's threads, the device, flows, memory."""
    pid = HOST + rank
    name = label(selection, rank)
    yield _joined(
        [_meta("process_name", pid, {"name": name}), _meta("process_sort_index", pid, {"sort_index": rank})]
    )
    calls = Launching(selection.rows("launches", rank))
    device = list(_on_device(selection, rank, calls, drawn))
    host = _on_host(selection, rank, calls, drawn)
    for part in (*host, *device):
        flows = part.select("_pid", "_tid", "start", "flow_from", "flow_to")
        yield from _slices(part, base)
        yield from _arrows(flows, base)
    yield from _memory(selection, rank, base, pid, drawn)
    yield _joined([_window(selection, rank, base)])


def _meta(kind: str, pid: int, args: dict[str, Any]) -> str:
    return f'\n    "ph": "M", "name": "{kind}", "pid": {pid}, "tid": 0, "ts": 0, "args": {json.dumps(args)}'


def _window(selection: RunPart, rank: int, base: int) -> str:
    """The profiler's own row, from which readers know how long it recorded."""
    rows = selection.rows("ranks", rank, ["rank", "start", "end"])
    start, end = (base, base) if rows is None else (int(rows["start"][0]), int(rows["end"][0]))
    times = pl.DataFrame({"a": [max(0, start - base)], "b": [max(0, end - start)]})
    ts, dur = times.select(microseconds(pl.col("a")), microseconds(pl.col("b"))).row(0)
    return (
        '\n    "ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", '
        f'"tid": "PyTorch Profiler", "ts": {ts}, "dur": {dur}, "args": {{"Op count": 0}}'
    )


def _joined(events: list[str]) -> bytes:
    return BETWEEN.join(event.encode() for event in events)


COLUMNS = ("start", "end", "_category", "_name", "_pid", "_tid", "_args", "flow_from", "flow_to")


def _part(rows: pl.DataFrame, category: str | pl.Expr, args: pl.Series, pid: pl.Expr) -> pl.DataFrame:
    """The texts of a table's rows; their thread is put there when all tables are together."""
    missing = [pl.lit(0, dtype=pl.UInt64).alias(c) for c in ("flow_from", "flow_to") if c not in rows.columns]
    return rows.with_columns(
        *missing,
        _category=pl.lit(category) if isinstance(category, str) else category,
        _name=quoted(rows["name"]).fill_null('""'),
        _pid=pid,
        _args=args,
    )


def _on_device(selection: RunPart, rank: int, calls: Launching, drawn: Drawn) -> Iterator[pl.DataFrame]:
    if without_device(selection, rank):
        return
    described = _described(selection, rank)
    parts: list[pl.DataFrame] = []
    pid = pl.col("device").cast(pl.String).fill_null('"device"')
    for table in ("kernels", "copies"):
        rows = selection.rows(table, rank)
        if rows is None:
            continue
        drawn.count(table, rows.height)
        rows = calls.work(rows)
        named = dict(ON_DEVICE)
        if table == "kernels":
            if described is not None:
                keys = ["start", "end", "stream", "correlation", "name"]
                rows = rows.join(described, on=keys, how="left", nulls_equal=True, maintain_order="left")
                named |= OF_COLLECTIVES
            # The product is what was kept.
            extents = {"grid": "_grid", "block": "_block"}
            rows = rows.with_columns(
                ("[" + pl.col(column).cast(pl.String) + ", 1, 1]").alias(place)
                for column, place in extents.items()
            )
            args = _with_raw(arguments(rows, named), rows, extents)
            parts.append(_part(rows, "kernel", args, pid))
        else:
            kind = pl.when(pl.col("direction").cast(pl.String) == "memset").then(pl.lit("gpu_memset"))
            parts.append(_part(rows, kind.otherwise(pl.lit("gpu_memcpy")), arguments(rows, named), pid))
    if parts:
        rows = pl.concat([p.select("device", "stream", *(c for c in COLUMNS if c != "_tid")) for p in parts])
        group = rows.select(pl.struct("device", "stream").rank("dense")).to_series().cast(pl.Int64).to_numpy()
        lane = lanes.flat(rows["start"].to_numpy(), rows["end"].to_numpy(), group)
        yield rows.with_columns(_tid=_thread(pl.col("stream"), pl.Series(lane), "stream")).select(COLUMNS)


def _with_raw(args: pl.Series, rows: pl.DataFrame, named: dict[str, str]) -> pl.Series:
    """Arguments with more of them that are JSON already."""
    more = pl.concat_str(
        [(pl.lit(f", {json.dumps(key)}: ") + pl.col(column)).fill_null("") for key, column in named.items()]
    )
    inner = pl.concat_str([pl.col("args").str.strip_suffix("}"), more]).str.replace("{, ", "{", literal=True)
    return rows.with_columns(args=args).select(inner + "}").to_series()


def _thread(number: pl.Expr, lane: pl.Series, noun: str) -> pl.Expr:
    """The track of a row. Readers take the last number of a text for the thread; overlap has its own text."""
    known = number.cast(pl.String)
    first = known.fill_null(f'"no {noun}"')
    other = (
        pl.lit('"lane ') + lane.cast(pl.String) + pl.lit(f" of {noun} ") + known.fill_null("unknown") + '"'
    )
    return pl.when(lane == 0).then(first).otherwise(other)


def _described(selection: RunPart, rank: int) -> pl.DataFrame | None:
    """What collectives' kernels say of them, where the recording said it rather than a name."""
    rows = selection.rows("collectives", rank)
    if rows is None:
        return None
    width = _width(pl.col("dtype"))
    group = pl.col("group").cast(pl.String)
    sends = pl.col("kind").cast(pl.String) == "send"
    return (
        rows.filter(pl.col("evidence") == 1)
        .select(
            "start", "end", "stream", "correlation", "name", "dtype", "group_size", "sequence",
            _in=pl.col("bytes_in") // width,
            _out=pl.col("bytes_out") // width,
            kind=pl.col("kind").cast(pl.String).replace(SPELLED),
            _group=group.str.extract(GROUP, 1),
            _members=group.str.extract(GROUP, 2),
            _source=pl.when(~sends).then("peer"),
            _target=pl.when(sends).then("peer"),
        )
        .unique(["start", "end", "stream", "correlation", "name"], keep="first", maintain_order=True)
    )  # fmt: skip


def _on_host(selection: RunPart, rank: int, calls: Launching, drawn: Drawn) -> list[pl.DataFrame]:
    pid = pl.lit(str(HOST + rank))
    parts: list[pl.DataFrame] = []
    frames = selection.rows("frames", rank)
    if frames is not None:
        parts.append(_part(frames, "python_function", _empty(frames), pid))
    ranges = selection.rows("ranges", rank)
    if ranges is not None:
        parts.append(_ranges(selection, rank, ranges, pid))
    operators = selection.rows("operators", rank)
    if operators is not None:
        parts.append(_operators(selection, rank, with_backward(operators, drawn), pid))
    launches = calls.calls(rank, drawn)
    if launches is not None:
        driver = pl.col("name").cast(pl.String).str.contains("^cu[A-Z]")
        category = pl.when(driver).then(pl.lit("cuda_driver")).otherwise(pl.lit("cuda_runtime"))
        named = {"correlation": "correlation"}
        parts.append(_part(launches, category, arguments(launches, named), pid))
    for table, part in zip(("frames", "ranges", "operators", "launches"),
                           (frames, ranges, operators, launches), strict=True):  # fmt: skip
        if part is not None:
            drawn.count(table, part.height)
    if not parts:
        return []
    rows = pl.concat([p.select("thread", *(c for c in COLUMNS if c != "_tid")) for p in parts])
    group = rows.select(pl.col("thread").rank("dense").fill_null(0)).to_series().cast(pl.Int64).to_numpy()
    lane = lanes.nested(rows["start"].to_numpy(), rows["end"].to_numpy(), group)
    return [rows.with_columns(_tid=_thread(pl.col("thread"), pl.Series(lane), "thread")).select(COLUMNS)]


def _empty(rows: pl.DataFrame) -> pl.Series:
    return pl.Series(["{}"], dtype=pl.String).new_from_index(0, rows.height)


def _ranges(selection: RunPart, rank: int, ranges: pl.DataFrame, pid: pl.Expr) -> pl.DataFrame:
    """Annotations, and what the profiler has categories for. A domain stands before the text."""
    domain = pl.col("domain").cast(pl.String)
    text = pl.col("name").cast(pl.String)
    known = {"overhead": "overhead", "synchronisation": "cuda_sync"}
    plain = domain.is_null() | (domain == "user") | ~pl.col("nested").fill_null(False)
    ranges = ranges.with_columns(
        name=pl.when(plain).then(text).otherwise("lostflops:" + domain + ":" + text),
        _kind=pl.when(plain & (domain != "user"))
        .then(domain.replace(known))
        .otherwise(pl.lit("user_annotation")),
    )
    kind = quoted(ranges["_kind"]).str.strip_prefix('"').str.strip_suffix('"')
    ranges = ranges.with_columns(_kind=kind)
    sizes = _sizes(selection, rank, ranges)
    args = _empty(ranges) if sizes is None else arguments(sizes, {})
    if sizes is not None:
        args = _with_raw(args, sizes, {"Input Dims": "_dims", "Input type": "_types"})
    return _part(ranges, pl.col("_kind").fill_null("user_annotation"), args, pid)


def _sizes(selection: RunPart, rank: int, ranges: pl.DataFrame) -> pl.DataFrame | None:
    """What annotations of communication say of its first tensor, a row per range; None where none does."""
    rows = selection.rows("collectives", rank)
    if rows is None:
        return None
    width = _width(pl.col("dtype"))
    rows = rows.filter(pl.col("evidence").is_in([2, 3]) & pl.col("dtype").is_not_null()).with_columns(
        _elements=pl.col("bytes_in") // width
    )
    text = pl.col("name").cast(pl.String)
    numbered = ranges.with_row_index("_row")
    spoken = numbered.filter(text.str.contains("^(?:nccl|gloo):"))
    if rows.is_empty() or spoken.is_empty():
        return None
    keys = ["_row", "_elements", "dtype"]
    # On the host the annotation itself carries the operation; on a device it lies around the launch.
    own = rows.with_columns(text).join(
        spoken.select("_row", "name", "end", stream="thread"), on=["name", "end", "stream"], how="inner"
    )
    found = [own.select(keys)]
    kernels = selection.rows(
        "kernels", rank, ["rank", "start", "end", "stream", "correlation", "thread", "launch_start"]
    )
    if kernels is not None:
        begun = rows.join(kernels, on=["start", "end", "stream", "correlation"], how="inner").filter(
            pl.col("launch_start").is_not_null()
        )
        points = begun.select("thread", start="launch_start")
        begun = begun.with_columns(_row=innermost(points, spoken, ["thread"], "_row"))
        found.append(begun.drop_nulls("_row").select(pl.col("_row").cast(pl.UInt32), "_elements", "dtype"))
    told = pl.concat(found).unique("_row", keep="first", maintain_order=True)
    dims = ("[[" + pl.col("_elements").cast(pl.String) + "]]").fill_null("[]")
    told = told.select("_row", _dims=dims, _types=pl.format('["{}"]', pl.col("dtype").cast(pl.String)))
    return numbered.select("_row").join(told, on="_row", how="left", maintain_order="left")


def _width(dtype: pl.Expr) -> pl.Expr:
    said = dtype.cast(pl.String).str.to_lowercase()
    return said.replace_strict(DTYPE_BYTES, default=None, return_dtype=pl.Int64)


def _operators(selection: RunPart, rank: int, operators: pl.DataFrame, pid: pl.Expr) -> pl.DataFrame:
    behind = pl.col("phase").cast(pl.String) == "backward"
    operators = operators.with_columns(_forward=pl.when(behind & pl.col("sequence").is_not_null()).then(1))
    args = arguments(operators, {"Sequence number": "sequence", "Fwd thread id": "_forward"})
    texts = operators.select(
        "start",
        pl.col("name").cast(pl.String),
        _shapes=pl.col("shapes").cast(pl.String),
        _dtypes=pl.col("dtypes").cast(pl.String),
    )
    raw = {"Input Dims": "_shapes", "Input type": "_dtypes"}
    places = _places(selection, rank)
    if places is not None:
        # Of sends and receives the third argument is the other side's place in the group.
        texts = texts.join(places, on="start", how="left", maintain_order="left").with_columns(
            _concrete=pl.when(pl.col("name").str.contains(r"^c10d::(?:send|recv)")).then("_concrete")
        )
        raw["Concrete Inputs"] = "_concrete"
    return _part(operators, "cpu_op", _with_raw(args, texts, raw), pid)


def _places(selection: RunPart, rank: int) -> pl.DataFrame | None:
    """Where the other side of each send or receive of the host stands in the group, by when it was called."""
    rows = selection.rows("collectives", rank)
    ranks = selection.recorded
    if rows is None:
        return None
    rows = rows.filter((pl.col("library").cast(pl.String) == "gloo") & pl.col("peer").is_not_null())
    known: list[dict[str, Any]] = (
        ranks.filter(pl.col("rank") == rank).select("groups").collect()["groups"].to_list()[0] or []
    )
    ordered = sorted(known, key=lambda group: "pp" not in group["description"].lower())
    place: dict[int, int] = {
        peer: group["ranks"].index(peer)
        for group in reversed(ordered)
        for peer in group["ranks"]
        if len(group["ranks"]) > 1
    }
    if rows.is_empty() or not place:
        return None
    at = pl.col("peer").replace_strict(place, default=None, return_dtype=pl.Int64)
    said = pl.format('["", "", "{}"]', at)
    return rows.select("start", _concrete=said).unique("start", keep="first", maintain_order=True)


def _slices(rows: pl.DataFrame, base: int) -> Iterator[bytes]:
    """Complete events by time, those that contain others first."""
    order = np.lexsort((-rows["end"].to_numpy(), rows["start"].to_numpy()))
    for first in range(0, len(order), BLOCK):
        block = rows[order[first : first + BLOCK]]
        text = pl.concat_str(
            pl.lit('\n    "ph": "X", "cat": "'), pl.col("_category"), pl.lit('", "name": '), pl.col("_name"),
            pl.lit(', "pid": '), pl.col("_pid"), pl.lit(', "tid": '), pl.col("_tid"),
            pl.lit(',\n    "ts": '), microseconds(pl.col("start") - base),
            pl.lit(', "dur": '), microseconds(pl.max_horizontal(pl.col("end") - pl.col("start"), 0)),
            pl.lit(',\n    "args": '), pl.col("_args"),
        )  # fmt: skip
        yield _joined(block.select(text).to_series().to_list())


def _arrows(rows: pl.DataFrame, base: int) -> Iterator[bytes]:
    """Where a launch, or a forward operator, leads."""
    for column, phase, more in (("flow_from", "s", ""), ("flow_to", "f", ', "bp": "e"')):
        arrows = rows.filter(pl.col(column) > 0)
        kind = pl.when(pl.col(column) > BACKWARD).then(pl.lit("fwdbwd")).otherwise(pl.lit("ac2g"))
        text = pl.concat_str(
            pl.lit(f'\n    "ph": "{phase}", "id": '), pl.col(column).cast(pl.String), pl.lit(', "pid": '),
            pl.col("_pid"), pl.lit(', "tid": '), pl.col("_tid"), pl.lit(', "ts": '),
            microseconds(pl.col("start") - base), pl.lit(', "cat": "'), kind, pl.lit('", "name": "'), kind,
            pl.lit('"' + more),
        )  # fmt: skip
        for block in arrows.iter_slices(BLOCK):
            yield _joined(block.select(text).to_series().to_list())


def _memory(selection: RunPart, rank: int, base: int, pid: int, drawn: Drawn) -> Iterator[bytes]:
    rows = selection.rows("allocations", rank)
    if rows is None:
        return
    drawn.rows += rows.height
    rows = rows.with_columns(_kind=pl.when(pl.col("device").is_null()).then(0).otherwise(1))
    args = arguments(
        rows,
        {
            "Total Reserved": "reserved", "Total Allocated": "allocated", "Bytes": "bytes",
            "Addr": "address", "Device Type": "_kind", "Device Id": "device",
        },
    )  # fmt: skip
    tid = pl.col("thread").cast(pl.String).fill_null('"no thread"')
    text = pl.concat_str(
        pl.lit('\n    "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": '),
        pl.lit(str(pid)), pl.lit(', "tid": '), tid, pl.lit(', "ts": '),
        microseconds(pl.col("start") - base), pl.lit(',\n    "args": '), pl.col("_args"),
    )  # fmt: skip
    for block in rows.with_columns(_args=args).iter_slices(BLOCK):
        yield _joined(block.select(text).to_series().to_list())
