"""GPU work and CUDA calls of one process of an Nsight Systems export."""

from __future__ import annotations

import polars as pl

from lostflops.ingest.nsys.export import THREAD_BITS, Export, thread_of
from lostflops.ingest.nsys.rows import usable
from lostflops.store.trace import NO_LENGTH, NO_TIME, Quality
from lostflops.tables import NAME, UNLISTED_GRAPH

GPU_WORK = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_MEM_DECOMPRESS",
)
GRAPH = UNLISTED_GRAPH
UNNAMED = "kernel (its name is not in this export)"

MEMCPY_OPER = {
    0: "CUDA_MEMCPY_KIND_UNKNOWN", 1: "CUDA_MEMCPY_KIND_HTOD", 2: "CUDA_MEMCPY_KIND_DTOH",
    3: "CUDA_MEMCPY_KIND_HTOA", 4: "CUDA_MEMCPY_KIND_ATOH", 5: "CUDA_MEMCPY_KIND_ATOA",
    6: "CUDA_MEMCPY_KIND_ATOD", 7: "CUDA_MEMCPY_KIND_DTOA", 8: "CUDA_MEMCPY_KIND_DTOD",
    9: "CUDA_MEMCPY_KIND_HTOH", 10: "CUDA_MEMCPY_KIND_PTOP", 11: "CUDA_MEMCPY_KIND_UVM_HTOD",
    12: "CUDA_MEMCPY_KIND_UVM_DTOH", 13: "CUDA_MEMCPY_KIND_UVM_DTOD",
}  # fmt: skip
MEM_KIND = {
    0: "CUDA_MEMOPR_MEMORY_KIND_PAGEABLE", 1: "CUDA_MEMOPR_MEMORY_KIND_PINNED",
    2: "CUDA_MEMOPR_MEMORY_KIND_DEVICE", 3: "CUDA_MEMOPR_MEMORY_KIND_ARRAY",
    4: "CUDA_MEMOPR_MEMORY_KIND_MANAGED", 5: "CUDA_MEMOPR_MEMORY_KIND_DEVICE_STATIC",
    6: "CUDA_MEMOPR_MEMORY_KIND_MANAGED_STATIC", 7: "CUDA_MEMOPR_MEMORY_KIND_UNKNOWN",
}  # fmt: skip
# By the last part of the enumerator: our direction, the short form for the name, and the host's side.
COPIES = {
    "HTOD": ("host to device", "HtoD", "source"),
    "DTOH": ("device to host", "DtoH", "destination"),
    "HTOA": ("host to device", "HtoA", "source"),
    "ATOH": ("device to host", "AtoH", "destination"),
    "ATOA": ("device to device", "AtoA", "none"),
    "ATOD": ("device to device", "AtoD", "none"),
    "DTOA": ("device to device", "DtoA", "none"),
    "DTOD": ("device to device", "DtoD", "none"),
    "HTOH": ("host to host", "HtoH", "source"),
    "PTOP": ("peer to peer", "PtoP", "none"),
    "UVM_HTOD": ("migration to device", "HtoD, managed", "managed"),
    "UVM_DTOH": ("migration to host", "DtoH, managed", "managed"),
    "UVM_DTOD": ("migration between devices", "DtoD, managed", "managed"),
}
MEMORY = {
    "PAGEABLE": ("Pageable", "pageable"),
    "PINNED": ("Pinned", "pinned"),
    "DEVICE": ("Device", "none"),
    "ARRAY": ("Array", "none"),
    "MANAGED": ("Managed", "managed"),
    "DEVICE_STATIC": ("Device", "none"),
    "MANAGED_STATIC": ("Managed", "managed"),
}
# Named as the PyTorch profiler names them. 2, 6 and 7 are the application's own cost; 8 means the host ran
# ahead; the others are the profiler's.
OVERHEADS = {
    2: "Driver Compiler",
    3: "Buffer Flush",
    4: "Instrumentation",
    5: "Resource",
    6: "Runtime Triggered Module Loading",
    7: "Lazy Function Loading",
    8: "Command Buffer Full",
}
CAUSES = {
    1: "CUDA_UNIFIED_MEMORY_MIGRATION_CAUSE_USER",
    2: "CUDA_UNIFIED_MEMORY_MIGRATION_CAUSE_COHERENCE",
    3: "CUDA_UNIFIED_MEMORY_MIGRATION_CAUSE_PREFETCH",
    4: "CUDA_UNIFIED_MEMORY_MIGRATION_CAUSE_EVICTION",
    5: "CUDA_UNIFIED_MEMORY_MIGRATION_CAUSE_ACCESS_COUNTERS",
}
# By the last part of the enumerator: why a page of managed memory moved.
MIGRATIONS = {
    "USER": ("prefetch by the program",),
    "COHERENCE": ("page fault",),
    "PREFETCH": ("speculative prefetch",),
    "EVICTION": ("eviction",),
    "ACCESS_COUNTERS": ("access counters",),
}
CORRELATION = pl.when(pl.col("correlationId") != 0).then("correlationId")  # 0 is none
SYNCHRONISATIONS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}


def kernels(export: Export, process: int | None, orphans: bool, quality: list[Quality]) -> pl.DataFrame:
    """The kernels of a process, and its whole-graph launches as kernels of unknown content."""
    rows = export.read("CUPTI_ACTIVITY_KIND_KERNEL", process=process, orphans=orphans)
    no_time = rows.filter(pl.col("start") == pl.col("end"), pl.col("start") != 0).height
    rows = usable(rows, "kernels", quality)
    if no_time:  # the times are of nanoseconds, and a kernel takes hundreds
        quality.append(Quality(None, NO_TIME, no_time, NO_LENGTH, "warning", rows.height))
    for column, name in (("demangledName", "_long"), ("shortName", "_short"), ("mangledName", "_mangled")):
        rows = export.named(rows, column, name)
    unnamed = rows.filter(pl.all_horizontal(pl.col("_long", "_short", "_mangled").is_null())).height
    if unnamed:
        quality.append(Quality(None, "kernels without a name", unnamed, "their names are not in this export"))
    ran = rows.select(
        "start",
        "end",
        _context="contextId",
        device="deviceId",
        stream="streamId",
        name=pl.coalesce("_long", "_short", "_mangled", pl.lit(UNNAMED)).cast(NAME),
        grid=_product("gridX", "gridY", "gridZ"),
        block=_product("blockX", "blockY", "blockZ"),
        registers=_count(pl.col("registersPerThread")),
        shared_memory=_count(pl.col("staticSharedMemory")) + _count(pl.col("dynamicSharedMemory")),
        correlation=CORRELATION,
        graph_node="graphNodeId",
        continued=pl.lit(False),
    )
    graphs = export.read("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", process=process, orphans=orphans)
    graphs = usable(graphs, "CUDA graphs", quality).select(
        "start",
        "end",
        _context="contextId",
        device="deviceId",
        stream="streamId",
        name=pl.lit(GRAPH, dtype=NAME),
        correlation=CORRELATION,
        continued=pl.lit(False),
    )
    # A launch whose nodes were traced is there in full already.
    graphs = graphs.join(ran.select("correlation").drop_nulls().unique(), on="correlation", how="anti")
    if graphs.height:
        quality.append(
            Quality(
                None,
                "CUDA graphs of unknown content",
                graphs.height,
                "their time is busy but unclassified; record with `--cuda-graph-trace=node`",
                "warning",
            )
        )
    return _with_makers(
        pl.concat([ran, graphs], how="diagonal_relaxed"),
        export.read("CUDA_GRAPH_NODE_EVENTS", process=process, orphans=orphans),
    )


def _with_makers(kernels: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """When and on which thread the node of a CUDA graph was made that a kernel replays.

    A graph is captured and then copied to be run: the copy's node names the one of the capture.
    """
    made = events.drop_nulls(["graphNodeId", "start"]).sort("start").unique("graphNodeId", keep="first")
    origin = made.join(
        made.select(originalGraphNodeId="graphNodeId", _start="start", _tid="globalTid"),
        on="originalGraphNodeId",
        how="left",
    ).select(
        graph_node="graphNodeId",
        node_made=pl.coalesce("_start", "start"),
        node_thread=pl.coalesce("_tid", "globalTid") & pl.lit(THREAD_BITS, dtype=pl.Int64),
    )
    return kernels.join(origin, on="graph_node", how="left", maintain_order="left")


def _product(x: str, y: str, z: str) -> pl.Expr:
    """Of three extents; null where one is missing or beyond what CUDA allows."""
    sane = (
        pl.col(x).is_between(0, 2**31 - 1) & pl.col(y).is_between(0, 65535) & pl.col(z).is_between(0, 65535)
    )
    return pl.when(sane).then(pl.col(x) * pl.col(y) * pl.col(z))


def _count(of: pl.Expr) -> pl.Expr:
    """Null where it is below 0."""
    return pl.when(of >= 0).then(of)


def own_streams(kernels: pl.DataFrame, copies: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Streams numbered within the device: ids repeat across contexts, so later contexts' get new numbers."""
    place = ["device", "stream"]
    first = (
        pl.concat([t.select(*place, "_context") for t in (kernels, copies)])
        .group_by(place)
        .agg(_first=pl.col("_context").min())
    )

    def numbered(table: pl.DataFrame) -> pl.DataFrame:
        later = pl.col("_context") > pl.col("_first")
        return (
            table.join(first, on=place, how="left", maintain_order="left", nulls_equal=True)
            .with_columns(
                stream=pl.when(later).then(pl.col("_context") * 2**32 + pl.col("stream")).otherwise("stream")
            )
            .drop("_first", "_context")
        )

    return numbered(kernels), numbered(copies)


def copies(export: Export, process: int | None, orphans: bool, quality: list[Quality]) -> pl.DataFrame:
    """The copies, memsets and managed-memory migrations of a process."""
    found = [
        _memcpys(export, process, orphans, quality),
        _memsets(export, process, orphans, quality),
        _decompressions(export, process, orphans, quality),
    ]
    return pl.concat(found, how="diagonal_relaxed").with_columns(
        pl.col("name").cast(NAME),
        bytes=pl.when(pl.col("bytes") >= 0).then("bytes"),
        communication=pl.lit(False),
    )


_PLACE = {
    "_context": pl.col("contextId"),
    "device": pl.col("deviceId"),
    "stream": pl.col("streamId"),
    "correlation": CORRELATION,
}


def _memcpys(export: Export, process: int | None, orphans: bool, quality: list[Quality]) -> pl.DataFrame:
    rows = export.read("CUPTI_ACTIVITY_KIND_MEMCPY", process=process, orphans=orphans)
    rows = usable(rows, "copies", quality)
    batched = rows.filter(pl.col("copyCount") > 1)
    if batched.height:
        quality.append(
            Quality(
                None,
                "rows that stand for several copies",
                batched.height,
                f"{int(batched['copyCount'].sum()):,} copies in all",
            )
        )
    kinds = _by_ending(export.enum("ENUM_CUDA_MEMCPY_OPER", MEMCPY_OPER), "_KIND_", COPIES)
    memory = _by_ending(export.enum("ENUM_CUDA_MEM_KIND", MEM_KIND), "_KIND_", MEMORY)
    # The device of a row is where the copy was issued: that it went to a peer shows in the two ends.
    between = (
        (pl.col("srcDeviceId") != pl.col("dstDeviceId"))
        & pl.col("srcDeviceId").is_not_null()
        & (_looked_up("copyKind", kinds, 0) == "device to device")
    )
    kind = {c: _looked_up("copyKind", kinds, i) for i, c in enumerate(("direction", "short", "side"))}
    source, destination = _looked_up("srcKind", memory, 0), _looked_up("dstKind", memory, 0)
    host_side = (
        pl.when(kind["side"] == "source")
        .then(_looked_up("srcKind", memory, 1))
        .when(kind["side"] == "destination")
        .then(_looked_up("dstKind", memory, 1))
    )
    ends = pl.format(" ({} -> {})", source.fill_null("Unknown"), destination.fill_null("Unknown"))
    short = pl.when(between).then(pl.lit("PtoP")).otherwise(kind["short"].fill_null("of unknown kind"))
    return rows.select(
        "start",
        "end",
        "bytes",
        **_PLACE,
        name=pl.format(
            "Memcpy {}{}", short, pl.when(kind["side"] == "managed").then(pl.lit("")).otherwise(ends)
        ),
        direction=pl.when(between)
        .then(pl.lit("peer to peer"))
        .otherwise(kind["direction"].fill_null("unknown")),
        host_memory=pl.when(kind["side"].is_in(["none", "managed"]))
        .then(kind["side"])
        .when(host_side.is_in(["pageable", "pinned", "managed"]))
        .then(host_side)
        .otherwise(pl.lit("unknown")),
        cause=_looked_up(
            "migrationCause",
            _by_ending(export.enum("ENUM_CUDA_UNIF_MEM_MIGRATION", CAUSES), "_CAUSE_", MIGRATIONS),
            0,
        ).cast(NAME),
    )


def _memsets(export: Export, process: int | None, orphans: bool, quality: list[Quality]) -> pl.DataFrame:
    rows = export.read("CUPTI_ACTIVITY_KIND_MEMSET", process=process, orphans=orphans)
    memory = _by_ending(export.enum("ENUM_CUDA_MEM_KIND", MEM_KIND), "_KIND_", MEMORY)
    return usable(rows, "memsets", quality).select(
        "start",
        "end",
        "bytes",
        **_PLACE,
        name=pl.format("Memset ({})", _looked_up("memKind", memory, 0).fill_null("Unknown")),
        direction=pl.lit("memset"),
        host_memory=_looked_up("memKind", memory, 1).fill_null("none"),
    )


def _decompressions(
    export: Export, process: int | None, orphans: bool, quality: list[Quality]
) -> pl.DataFrame:
    rows = export.read("CUPTI_ACTIVITY_KIND_MEM_DECOMPRESS", process=process, orphans=orphans)
    return usable(rows, "decompressions", quality).select(
        "start",
        "end",
        bytes="sourceBytes",
        **_PLACE,
        name=pl.lit("Memory decompression"),
        direction=pl.lit("unknown"),
        host_memory=pl.lit("unknown"),
    )


def _by_ending(
    enum: dict[int, str], mark: str, known: dict[str, tuple[str, ...]]
) -> dict[int, tuple[str, ...]]:
    """What we know of each enumerator, found by what follows `mark` in its name."""
    endings = {number: name.rpartition(mark)[2].upper() for number, name in enum.items()}
    return {number: known[ending] for number, ending in endings.items() if ending in known}


def _looked_up(column: str, known: dict[int, tuple[str, ...]], place: int) -> pl.Expr:
    return pl.col(column).replace_strict(
        {number: words[place] for number, words in known.items()}, default=None, return_dtype=pl.String
    )


def launches(export: Export, process: int, orphans: bool, quality: list[Quality]) -> pl.DataFrame:
    """The runtime and driver calls of a process, without the version that the export adds to their names."""
    rows = export.read("CUPTI_ACTIVITY_KIND_RUNTIME", process=process, orphans=orphans)
    rows = export.named(usable(rows, "CUDA calls", quality), "nameId", "name")
    return rows.select(
        "start",
        "end",
        thread=thread_of("globalTid"),
        name=pl.col("name").str.replace(r"_v\d{4,5}$", "").fill_null("(name not in this export)").cast(NAME),
        correlation=CORRELATION,
        return_code="returnValue",
    )


def synchronisations(
    export: Export, process: int, orphans: bool, calls: pl.DataFrame, quality: list[Quality]
) -> pl.DataFrame:
    """What blocking calls waited for, as ranges on the thread that called."""
    rows = export.read("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", process=process, orphans=orphans)
    rows = usable(rows, "synchronisations", quality)
    threads = calls.select("correlation", "thread").drop_nulls().unique("correlation", keep="first")
    kind = pl.coalesce("syncType", "deprecatedSyncType")
    return (
        rows.rename({"correlationId": "correlation"})
        .join(threads, on="correlation", how="left", maintain_order="left")
        .select(
            "start",
            "end",
            "thread",
            domain=pl.lit("synchronisation", dtype=NAME),
            name=kind.replace_strict(SYNCHRONISATIONS, default="Unknown Sync", return_dtype=pl.String).cast(
                NAME
            ),
            nested=pl.lit(False),
            complete=pl.lit(True),
        )
    )


def overheads(export: Export, process: int, orphans: bool, quality: list[Quality]) -> pl.DataFrame:
    """Compilation, lazy loading and the profiler's own cost, as ranges."""
    found: list[pl.DataFrame] = []
    for table in ("CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_JIT"):
        rows = usable(export.read(table, process=process, orphans=orphans), "overhead rows", quality)
        kind = pl.lit(2, dtype=pl.Int64) if table.endswith("JIT") else pl.col("overheadType")
        found.append(
            rows.select(
                "start",
                "end",
                thread=thread_of("globalTid"),
                domain=pl.lit("overhead", dtype=NAME),
                name=kind.replace_strict(OVERHEADS, default="Profiler Overhead", return_dtype=pl.String).cast(
                    NAME
                ),
                nested=pl.lit(False),
                complete=pl.lit(True),
            )
        )
    # The same cost is listed in more than one table where both were exported.
    return pl.concat(found).unique(maintain_order=True)
