"""The data model: every table, its columns, their types, units and meaning.

Time is int64 nanoseconds, half-open `[start, end)`, on the run's common clock. Every table has `rank`.
A table that a source cannot give is absent, never empty by accident. Strings are dictionary-encoded.
The documentation page `docs/reference/tables.md` is generated from this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

import polars as pl

FAMILIES = (
    "gemm",
    "attention",
    "convolution",
    "norm",
    "elementwise",
    "reduction",
    "embedding",
    "optimizer",
    "quantize",
    "copy",
    "communication",
    "other",
    "unclassified",
)
PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8", "integer")
PHASES = ("forward", "backward", "recompute", "optimizer")
DIRECTIONS = (
    "host to device",
    "device to host",
    "device to device",
    "peer to peer",
    "host to host",
    "memset",
    "migration to device",
    "migration to host",
    "migration between devices",
    "unknown",
)
HOST_MEMORY = ("pageable", "pinned", "managed", "none", "unknown")
STEP_SOURCES = ("profiler", "range", "optimizer", "period", "whole trace")
# Why a step does not count in means: the recording or the job cut it; the device was at other work when it
# began; it is not like the others; or that is so on another rank.
LEFT_OUT_BECAUSE = (
    "recording began in it",
    "recording ended in it",
    "job ended in it",
    "waits at its end",
    "device was behind",
    "nothing in it",
    "outlier",
    "left out on another rank",
)

FAMILY = pl.Enum(FAMILIES)
PRECISION = pl.Enum(PRECISIONS)
PHASE = pl.Enum(PHASES)
DIRECTION = pl.Enum(DIRECTIONS)
HOST_MEMORY_KIND = pl.Enum(HOST_MEMORY)
STEP_SOURCE = pl.Enum(STEP_SOURCES)
LEFT_OUT = pl.Enum(LEFT_OUT_BECAUSE)
NAME = pl.Categorical()
# What a CUDA graph is called that was recorded as a whole.
UNLISTED_GRAPH = "CUDA graph (contents not recorded)"
GROUPS = pl.List(pl.Struct({"name": pl.String, "description": pl.String, "ranks": pl.List(pl.Int32)}))


@dataclass(frozen=True)
class Column:
    """One documented column. What is not `stored`, opening a run adds."""

    name: str
    dtype: pl.DataType | type[pl.DataType]
    meaning: str
    required: bool = False
    stored: bool = True


@dataclass(frozen=True)
class Table:
    """One documented table; `record_with` tells a user how to get it when it is absent."""

    name: str
    row: str
    columns: tuple[Column, ...]
    record_with: str

    @property
    def schema(self) -> dict[str, pl.DataType | type[pl.DataType]]:
        return {column.name: column.dtype for column in self.columns}

    @property
    def times(self) -> tuple[str, ...]:
        """The columns that hold points on the run's clock, which move when clocks are aligned."""
        return tuple(c.name for c in self.columns if c.name in TIME_COLUMNS)

    def empty(self) -> pl.DataFrame:
        return pl.DataFrame(schema=self.schema)

    @property
    def stored(self) -> list[str]:
        """The columns that a run keeps."""
        return [c.name for c in self.columns if c.stored]

    def conform(self, frame: pl.DataFrame) -> pl.DataFrame:
        """`frame` with exactly the stored columns, in order and type; what is missing is null."""
        return frame.select(
            pl.col(c.name).cast(c.dtype)
            if c.name in frame.columns
            else pl.lit(None, dtype=c.dtype).alias(c.name)
            for c in self.columns
            if c.stored
        )


TIME_COLUMNS = frozenset({"start", "end", "launch_start", "launch_end", "arrival", "host_start", "host_end"})

_RANK = Column("rank", pl.Int32, "rank of the process in its job", required=True)
_START = Column("start", pl.Int64, "start, ns", required=True)
_END = Column("end", pl.Int64, "end, ns, exclusive", required=True)
_THREAD = Column("thread", pl.Int64, "host thread id, unique within the rank")
_WHEN = (_RANK, _START, _END)

RANKS = Table(
    "ranks",
    "a process of the job (one row per device it used)",
    (
        *_WHEN,
        Column("host", pl.Int32, "number of the host, not its name; null when unknown"),
        Column("device", pl.Int32, "device index the rank's GPU work names; null without GPU work"),
        Column("device_kind", pl.String, "'gpu', or 'cpu' when host operators stand in for kernels"),
        Column("gpu", pl.String, "GPU name as the source gives it; null when unknown"),
        Column("num_sms", pl.Int32, "streaming multiprocessors or compute units"),
        Column("memory_bytes", pl.Int64, "device memory, bytes"),
        Column("world_size", pl.Int32, "number of ranks in the job, null when unknown"),
        Column("backend", pl.String, "communication backend named by the source (nccl, gloo, …)"),
        Column("groups", GROUPS, "process groups this rank belongs to, with their ranks"),
        Column("rank_source", pl.String, "where the rank number was read, or 'assigned'"),
        Column("source", pl.String, "'kineto', 'nsys', 'monitor' or 'step log'"),
        Column("versions", pl.String, "tool and runtime versions, as text"),
        Column("main_thread", pl.Int64, "thread that made most launches (or ran most operators)"),
        Column("clock_offset", pl.Int64, "ns already added to this rank's times to align it with the others"),
        Column("clock_error", pl.Int64, "ns, robust error of that alignment; null when it could not be told"),
    ),
    "every trace gives this table",
)

STEPS = Table(
    "steps",
    "an optimizer step on a rank",
    (
        *_WHEN,
        Column("step", pl.Int64, "step number as the source counts it", required=True),
        Column("source", STEP_SOURCE, "where the boundaries were read from"),
        Column("complete", pl.Boolean, "false when the recording or the job began or ended inside the step"),
        Column("host_start", pl.Int64, "where the host began it, ns; null when no mark on the host says so"),
        Column("host_end", pl.Int64, "where the host began the next one or left the last, ns"),
        Column("amount", pl.Int64, "rows of GPU work launched in it; on a CPU-only rank, operators begun"),
        Column("left_out", LEFT_OUT, "why it does not count in means; null when it does"),
        Column("chosen", pl.Boolean, "true when it is one of the steps that were asked for", stored=False),
    ),
    "`prof.step()` in the loop with a `schedule=`, or an NVTX range around each step",
)

KERNELS = Table(
    "kernels",
    "a kernel execution; on a CPU-only trace, a stretch of a host operator outside its children",
    (
        *_WHEN,
        Column("device", pl.Int32, "device index"),
        Column("stream", pl.Int64, "stream id within the device; on CPU-only traces the thread"),
        Column("name", NAME, "kernel name", required=True),
        Column("grid", pl.Int64, "number of blocks in the grid (x·y·z)"),
        Column("block", pl.Int32, "threads per block (x·y·z)"),
        Column("registers", pl.Int32, "registers per thread"),
        Column("shared_memory", pl.Int64, "static and dynamic shared memory per block, bytes"),
        Column("correlation", pl.Int64, "id shared with the launching call, unique within the rank"),
        Column("graph_node", pl.Int64, "node of the CUDA graph that ran it"),
        Column("family", FAMILY, "what kind of work it is", required=True),
        Column("precision", PRECISION, "precision of its arithmetic; null when the name does not say"),
        Column("tensor_cores", pl.Boolean, "true when matrix units were used; null when unknown"),
        Column("continued", pl.Boolean, "CPU-only: true when this row goes on after a child returned"),
        Column("launch_start", pl.Int64, "start of the launching call, ns; null when it was not recorded"),
        Column("launch_end", pl.Int64, "end of the launching call, ns"),
        Column("thread", pl.Int64, "thread of the launching call"),
        Column("operator", NAME, "deepest operator that contains the launch"),
        Column("phase", PHASE, "forward, backward, recompute or optimizer; null when unknown"),
    ),
    "`activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]`, or `nsys profile -t cuda`",
)

COPIES = Table(
    "copies",
    "a memcpy, memset or managed-memory migration on the device",
    (
        *_WHEN,
        Column("device", pl.Int32, "device index"),
        Column("stream", pl.Int64, "stream id within the device"),
        Column("name", NAME, "name as the source gives it", required=True),
        Column("direction", DIRECTION, "from where to where", required=True),
        Column("bytes", pl.Int64, "bytes moved; null when not recorded"),
        Column("host_memory", HOST_MEMORY_KIND, "kind of the host side's memory", required=True),
        Column("correlation", pl.Int64, "id shared with the launching call"),
        Column("communication", pl.Boolean, "true when a copy engine carried a collective", required=True),
        Column("launch_start", pl.Int64, "start of the launching call, ns"),
        Column("launch_end", pl.Int64, "end of the launching call, ns"),
        Column("thread", pl.Int64, "thread of the launching call"),
        Column("operator", NAME, "deepest operator that contains the launch"),
    ),
    "`activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]`, or `nsys profile -t cuda`",
)

LAUNCHES = Table(
    "launches",
    "a runtime or driver API call on the host",
    (
        *_WHEN,
        _THREAD,
        Column("name", NAME, "name of the call", required=True),
        Column("correlation", pl.Int64, "id shared with the GPU work it started"),
        Column("return_code", pl.Int32, "0 is success; null when not recorded"),
    ),
    "`activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]`, or `nsys profile -t cuda`",
)

OPERATORS = Table(
    "operators",
    "a framework operator on the host",
    (
        *_WHEN,
        _THREAD,
        Column("name", NAME, "operator name", required=True),
        Column("shapes", NAME, "input shapes, as the source's JSON text"),
        Column("dtypes", NAME, "input types, as the source's JSON text"),
        Column("sequence", pl.Int64, "autograd sequence number, shared by forward and backward"),
        Column("phase", PHASE, "forward, backward, recompute or optimizer; null when unknown"),
    ),
    "`activities=[ProfilerActivity.CPU, …]`, or `nsys profile -t nvtx` under `emit_nvtx()`",
)

RANGES = Table(
    "ranges",
    "an NVTX range or user annotation",
    (
        *_WHEN,
        _THREAD,
        Column("domain", NAME, "NVTX domain; 'user' for annotations, 'overhead', 'synchronisation'"),
        Column("name", NAME, "text of the range", required=True),
        Column("color", pl.Int64, "ARGB"),
        Column("nested", pl.Boolean, "true for push/pop ranges, which nest within their thread"),
        Column("complete", pl.Boolean, "false when the recording ended inside the range"),
    ),
    "`torch.profiler.record_function(…)`, or `nsys profile -t nvtx` with NVTX ranges in the code",
)

COLLECTIVES = Table(
    "collectives",
    "one communication operation on a rank",
    (
        *_WHEN,
        Column(
            "arrival", pl.Int64, "when the rank was ready: start of kernel or host operator", required=True
        ),
        Column("kind", NAME, "all-reduce, all-gather, …, or 'unknown'", required=True),
        Column("library", NAME, "NCCL, RCCL, DeepEP, NVSHMEM, gloo, copy engine, …"),
        Column("group", NAME, "process group: name and ranks as far as the source tells; null when unknown"),
        Column("group_size", pl.Int32, "ranks in the group"),
        Column("peer", pl.Int32, "global rank of the other side, for send and receive"),
        Column("bytes_in", pl.Int64, "bytes of this rank's input buffer"),
        Column("bytes_out", pl.Int64, "bytes of this rank's output buffer"),
        Column("dtype", NAME, "element type"),
        Column("sequence", pl.Int64, "sequence number in its group, when the source gives one"),
        Column(
            "evidence",
            pl.Int8,
            "1 metadata, 2 annotation, 3 operator, 4 kernel name, 5 stream",
            required=True,
        ),
        Column("stream", pl.Int64, "stream or thread that carried it"),
        Column("correlation", pl.Int64, "id of the launch"),
        Column("name", NAME, "kernel, copy or annotation that carried it", required=True),
    ),
    "a recording of several ranks, with their GPU work (or gloo on CPU)",
)

FRAMES = Table(
    "frames",
    "a Python frame or module call on a host thread",
    (*_WHEN, _THREAD, Column("name", NAME, "file(line): function, or 'nn.Module: Linear_3'", required=True)),
    "`lostflops record --what cuda,shapes,python -- COMMAND`, or `with_stack=True`",
)

ALLOCATIONS = Table(
    "allocations",
    "an allocation (bytes > 0) or a free (bytes < 0) of the framework's allocator; end equals start",
    (
        *_WHEN,
        _THREAD,
        Column("device", pl.Int32, "device index; null for host memory"),
        Column("address", pl.Int64, "address, a pairing key only"),
        Column("bytes", pl.Int64, "signed bytes", required=True),
        Column("allocated", pl.Int64, "bytes allocated on that device after the event, process-wide"),
        Column("reserved", pl.Int64, "bytes reserved on that device after the event"),
    ),
    "`profile_memory=True`, or `nsys profile --cuda-memory-usage=true`",
)

COUNTERS = Table(
    "counters",
    "a sampled value; it holds from start to end",
    (
        *_WHEN,
        Column("device", pl.Int32, "device index; a monitor's is the node's own; null for what is no GPU"),
        Column("metric", NAME, "name of the metric", required=True),
        Column("instance", NAME, "core, port, link, disk, … that it is of, where there are several"),
        Column("value", pl.Float64, "value", required=True),
        Column("unit", NAME, "unit; null when the source does not say"),
        Column("added", pl.Boolean, "value is what was added from start to end, not a level; null: unknown"),
    ),
    "`lostflops record --monitor`, or `nsys profile --gpu-metrics-devices=…`",
)

OS_CALLS = Table(
    "os_calls",
    "an operating-system call of a host thread",
    (*_WHEN, _THREAD, Column("name", NAME, "name of the call", required=True)),
    "`nsys profile -t osrt`",
)

PAGE_FAULTS = Table(
    "page_faults",
    "a group of managed-memory page faults; end equals start for faults on the CPU",
    (
        *_WHEN,
        Column("device", pl.Int32, "device that faulted; null for the CPU"),
        Column("address", pl.Int64, "address"),
        Column("faults", pl.Int64, "number of faults in the group"),
        Column("access", NAME, "read, write, atomic or prefetch"),
    ),
    "`nsys profile --cuda-um-cpu-page-faults=true --cuda-um-gpu-page-faults=true`",
)

TOPOLOGY_DEVICES = Table(
    "topology_devices",
    "a GPU, network card, port or memory node of a machine; it holds at all times",
    (
        Column("rank", pl.Int32, "first rank on that machine, 0 when unknown", required=True),
        Column("kind", pl.String, "gpu, nic, port, nvlink, numa or process", required=True),
        Column("name", pl.String, "GPU0, mlx5_0, eth0, node 0", required=True),
        Column("port", pl.Int32, "number of the port or NVLink; of a process its GPU's"),
        Column("model", pl.String, "what it is, as the tool says"),
        Column("numa", pl.Int32, "memory node it is attached to; null when unknown"),
        Column("cpus", pl.String, "nearby CPUs, as in 0-15,32-47; of a process those it may run on"),
        Column("address", pl.String, "PCI address"),
        Column("network", pl.String, "network interface of a card, or of its port"),
        Column("layer", pl.String, "InfiniBand or Ethernet"),
        Column("state", pl.String, "logical state of a port or link, in lower case"),
        Column("physical", pl.String, "physical state of a port, in lower case"),
        Column("rate", pl.Float64, "of a port, NVLink or GPU's PCIe link in one direction, Gb/s"),
        Column("lanes", pl.Int32, "PCIe lanes in use"),
        Column("most_lanes", pl.Int32, "PCIe lanes it could use"),
        Column("bytes", pl.Int64, "memory of a memory node"),
        Column("tool", pl.String, "who says so first"),
    ),
    "`lostflops topology --output RUN`",
)

TOPOLOGY_LINKS = Table(
    "topology_links",
    "how one device of a machine reaches another; it holds at all times",
    (
        Column("rank", pl.Int32, "first rank on that machine, 0 when unknown", required=True),
        Column("matrix", pl.String, "path, read, write, nvlink, atomics, pcie or distance", required=True),
        Column("device", pl.String, "from", required=True),
        Column("peer", pl.String, "to", required=True),
        Column("code", pl.String, "as the tool writes it: NV18, PIX, OK, TNS, …", required=True),
        Column("num_links", pl.Int32, "bonded NVLinks; null for other paths"),
        Column("tool", pl.String, "who says so"),
    ),
    "`lostflops topology --output RUN`",
)

BANDWIDTHS = Table(
    "bandwidths",
    "a measured bandwidth at one size; it holds at all times",
    (
        Column("rank", pl.Int32, "rank that wrote it down", required=True),
        Column("operation", pl.String, "all-reduce, host to device, … or barrier", required=True),
        Column("tool", pl.String, "torch, nccl-tests or nvbandwidth"),
        Column("backend", pl.String, "nccl or gloo, for collectives"),
        Column("group_size", pl.Int32, "ranks that took part"),
        Column("hosts", pl.Int32, "machines they ran on; null when unknown"),
        Column("in_place", pl.Boolean, "result in the input's buffer; null where there is no choice"),
        Column("device", pl.String, "of a copy: GPU0"),
        Column("peer", pl.String, "of a copy between GPUs: the target"),
        Column("host_memory", pl.String, "of a copy: pinned or pageable"),
        Column("numa", pl.Int32, "of a copy: memory node of the host's buffer"),
        Column("both", pl.Boolean, "of a copy: the other direction ran at the same time"),
        Column("bytes", pl.Int64, "size as nccl-tests counts it; of a copy what was copied"),
        Column("repeats", pl.Int32, "how often it was timed; null when the tool does not say"),
        Column("time", pl.Int64, "median of the repeats, each the slowest rank's, ns; nccl-tests: mean"),
        Column("fastest", pl.Int64, "shortest repeat, ns"),
        Column("slowest", pl.Int64, "longest repeat, ns"),
        Column("algorithm_bandwidth", pl.Float64, "bytes / time, GB/s (10⁹ bytes)"),
        Column("bus_bandwidth", pl.Float64, "the same times nccl-tests' factor, GB/s"),
        Column("correct", pl.Boolean, "the result was checked and right; null when it was not checked"),
        Column("remark", pl.String, "why there is no time, when there is none"),
        Column("measured_at", pl.Int64, "ns since the Unix epoch"),
    ),
    "`lostflops bench collectives --output RUN` or `lostflops bench links --output RUN`",
)

STEP_LOG = Table(
    "step_log",
    "a step in the log of a recorded job: every step of every rank, recorded in full or not",
    (
        Column("rank", pl.Int32, "rank", required=True),
        Column("world_size", pl.Int32, "ranks of the job; null when the rank was not told"),
        Column("step", pl.Int64, "step number", required=True),
        Column("duration", pl.Int64, "from the end of the step before, ns; null for a rank's first"),
        Column("own", pl.Int64, "what lostflops took before the step, ns; no part of duration"),
        Column("micro_steps", pl.Int32, "backward passes; null when they were not counted"),
        Column("optimizer", pl.Int64, "in optimizers, on the host, ns"),
        Column("data", pl.Int64, "waiting for a DataLoader, ns"),
        Column("checkpoint", pl.Int64, "in torch.save and torch.distributed.checkpoint.save, ns"),
        Column("garbage", pl.Int64, "collecting garbage, ns"),
        Column("recorded", pl.Boolean, "it was recorded in full", required=True),
    ),
    "`lostflops record`",
)

RANK_ENDS = Table(
    "rank_ends",
    "how a rank's process ended, as the step log of its last attempt tells",
    (
        Column("rank", pl.Int32, "rank", required=True),
        Column("last_step", pl.Int64, "last step that it finished; null when it finished none"),
        Column("finished", pl.Boolean, "its Python ran to its end, also after an exception", required=True),
        Column("exception", pl.String, "class of the exception that ended it"),
        Column("status", pl.Int32, "its exit status, negative for a signal; null when no launcher told it"),
        Column("job_status", pl.Int32, "the same of the recorded command; null while it runs"),
    ),
    "`lostflops record`",
)

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        RANKS,
        STEPS,
        KERNELS,
        COPIES,
        LAUNCHES,
        OPERATORS,
        RANGES,
        COLLECTIVES,
        FRAMES,
        ALLOCATIONS,
        COUNTERS,
        OS_CALLS,
        PAGE_FAULTS,
        TOPOLOGY_DEVICES,
        TOPOLOGY_LINKS,
        BANDWIDTHS,
        STEP_LOG,
        RANK_ENDS,
    )
}

# A recipe names its inputs with these: a LazyFrame to the type checker, a documented schema to the runner.
Ranks: TypeAlias = Annotated[pl.LazyFrame, RANKS]
Steps: TypeAlias = Annotated[pl.LazyFrame, STEPS]
Kernels: TypeAlias = Annotated[pl.LazyFrame, KERNELS]
Copies: TypeAlias = Annotated[pl.LazyFrame, COPIES]
Launches: TypeAlias = Annotated[pl.LazyFrame, LAUNCHES]
Operators: TypeAlias = Annotated[pl.LazyFrame, OPERATORS]
Ranges: TypeAlias = Annotated[pl.LazyFrame, RANGES]
Collectives: TypeAlias = Annotated[pl.LazyFrame, COLLECTIVES]
Frames: TypeAlias = Annotated[pl.LazyFrame, FRAMES]
Allocations: TypeAlias = Annotated[pl.LazyFrame, ALLOCATIONS]
Counters: TypeAlias = Annotated[pl.LazyFrame, COUNTERS]
OsCalls: TypeAlias = Annotated[pl.LazyFrame, OS_CALLS]
PageFaults: TypeAlias = Annotated[pl.LazyFrame, PAGE_FAULTS]
TopologyDevices: TypeAlias = Annotated[pl.LazyFrame, TOPOLOGY_DEVICES]
TopologyLinks: TypeAlias = Annotated[pl.LazyFrame, TOPOLOGY_LINKS]
Bandwidths: TypeAlias = Annotated[pl.LazyFrame, BANDWIDTHS]
StepLog: TypeAlias = Annotated[pl.LazyFrame, STEP_LOG]
RankEnds: TypeAlias = Annotated[pl.LazyFrame, RANK_ENDS]
