"""The data model: every table, its columns, their types, units and meaning.

Time is int64 nanoseconds, half-open `[start, end)`, on the run's common clock. Every table has `rank`.
A table that a source cannot give is absent, never empty by accident. Strings are dictionary-encoded.
The documentation page `docs/reference/tables.md` is generated from this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

import polars as pl

from .columns import Bytes, Count, DType, Flag, Id, Instant, Name, Number, Several, Text, Time, Type

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
# Why a step does not count in means: it was cut; the device was at other work when it began, or alone then
# had none; it is not like the others; or that is so on another rank.
LEFT_OUT_BECAUSE = (
    *("recording began in it", "recording ended in it"),
    "job ended in it",
    "waits at its end",
    "device was behind",
    "device had no work yet",
    "nothing in it",
    "outlier",
    "left out on another rank",
    "nothing on its rank",
    "no whole step on its rank",
)

FAMILY = pl.Enum(FAMILIES)
PRECISION = pl.Enum(PRECISIONS)
PHASE = pl.Enum(PHASES)
DIRECTION = pl.Enum(DIRECTIONS)
HOST_MEMORY_KIND = pl.Enum(HOST_MEMORY)
STEP_SOURCE, LEFT_OUT = pl.Enum(STEP_SOURCES), pl.Enum(LEFT_OUT_BECAUSE)
NAME = pl.Categorical()
# What a CUDA graph is called that was recorded as a whole.
UNLISTED_GRAPH = "CUDA graph (contents not recorded)"
GROUPS = pl.List(pl.Struct({"name": pl.String, "description": pl.String, "ranks": pl.List(pl.Int32)}))


@dataclass(frozen=True)
class Column:
    """One documented column. What is not `stored`, opening a run adds."""

    name: str
    holds: Type
    required: bool = False
    stored: bool = True

    @property
    def dtype(self) -> DType:
        return self.holds.dtype

    @property
    def meaning(self) -> str:
        return self.holds.meaning


@dataclass(frozen=True)
class Table:
    """One documented table; `record_with` tells a user how to get it when it is absent."""

    name: str
    row: str
    columns: tuple[Column, ...]
    record_with: str

    @property
    def schema(self) -> dict[str, DType]:
        return {column.name: column.dtype for column in self.columns}

    @property
    def times(self) -> tuple[str, ...]:
        """The columns that hold points on the run's clock, which move when clocks are aligned."""
        return tuple(c.name for c in self.columns if isinstance(c.holds, Instant))

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


_RANK = Column("rank", Id("rank of the process in its job", pl.Int32), required=True)
_START = Column("start", Instant("start"), required=True)
_END = Column("end", Instant("end, exclusive"), required=True)
_THREAD = Column("thread", Id("host thread id, unique within the rank"))
_WHEN = (_RANK, _START, _END)

RANKS = Table(
    "ranks",
    "a process of the job (one row per device it used)",
    (
        *_WHEN,
        Column("host", Id("number of the host, not its name; null when unknown", pl.Int32)),
        Column("device", Id("device index the rank's GPU work names; null without GPU work", pl.Int32)),
        Column("device_kind", Name("'gpu', or 'cpu' when host operators stand in for kernels")),
        Column("gpu", Name("GPU name as the source gives it; null when unknown")),
        Column("num_sms", Count("streaming multiprocessors or compute units", pl.Int32)),
        Column("memory_bytes", Bytes("device memory")),
        Column("world_size", Count("number of ranks in the job, null when unknown", pl.Int32)),
        Column("backend", Name("communication backend named by the source (nccl, gloo, …)")),
        Column("groups", Several("process groups this rank belongs to, with their ranks", GROUPS)),
        Column("rank_source", Name("where the rank number was read, or 'assigned'")),
        Column("source", Name("the format it was read from, such as 'kineto' or 'nsys'")),
        Column("versions", Text("tool and runtime versions")),
        Column("frameworks", Name("training frameworks that drive it, where `lostflops record` saw one")),
        Column("bf16_units", Name("CPU instructions for bf16, where `lostflops record` saw any")),
        Column("main_thread", Id("thread that runs the script: it marks steps, or else makes most launches")),
        Column("clock_offset", Time("already added to this rank's times to align it with the others")),
        Column("clock_error", Time("robust error of that alignment; null when unknown")),
    ),
    "every trace gives this table",
)

STEPS = Table(
    "steps",
    "an optimizer step on a rank",
    (
        *_WHEN,
        Column("step", Id("step number as the source counts it"), required=True),
        Column("source", Name("where the boundaries were read from", STEP_SOURCE)),
        Column("complete", Flag("false when the recording or the job began or ended inside the step")),
        Column("host_start", Instant("where the host began it; null when no mark on the host says so")),
        Column("host_end", Instant("where the host began the next one or left the last")),
        Column("amount", Count("rows of GPU work launched in it; on a CPU-only rank, operators begun")),
        Column("left_out", Name("why it does not count in means; null when it does", LEFT_OUT)),
        Column("chosen", Flag("true when it is one of the steps that were asked for"), stored=False),
    ),
    "`prof.step()` in the loop with a `schedule=`, or an NVTX range around each step",
)

KERNELS = Table(
    "kernels",
    "a kernel execution; on a CPU-only trace, a stretch of a host operator outside its children",
    (
        *_WHEN,
        Column("device", Id("device index", pl.Int32)),
        Column("stream", Id("stream id within the device; on CPU-only traces the thread")),
        Column("name", Name("kernel name", NAME), required=True),
        Column("grid", Count("number of blocks in the grid (x·y·z)")),
        Column("block", Count("threads per block (x·y·z)", pl.Int32)),
        Column("registers", Count("registers per thread", pl.Int32)),
        Column("shared_memory", Bytes("static and dynamic shared memory per block")),
        Column("correlation", Id("id shared with the launching call, unique within the rank")),
        Column("graph_node", Id("node of the CUDA graph that ran it")),
        Column("node_made", Instant("when that node was made, at capture; null when it was not recorded")),
        Column("node_thread", Id("thread that made it")),
        Column("family", Name("what kind of work it is", FAMILY), required=True),
        Column("precision", Name("precision of its arithmetic; null when the name does not say", PRECISION)),
        Column("tensor_cores", Flag("true when matrix units were used; null when unknown")),
        Column("continued", Flag("CPU-only: true when this row goes on after a child returned")),
        Column("launch_start", Instant("start of the launching call; null when it was not recorded")),
        Column("launch_end", Instant("end of the launching call")),
        Column("thread", Id("thread of the launching call")),
        Column("operator", Name("deepest operator that contains the launch", NAME)),
        Column("phase", Name("forward, backward, recompute or optimizer; null when unknown", PHASE)),
    ),
    "`activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]`, or `nsys profile -t cuda`",
)

COPIES = Table(
    "copies",
    "a memcpy, memset or managed-memory migration on the device",
    (
        *_WHEN,
        Column("device", Id("device index", pl.Int32)),
        Column("stream", Id("stream id within the device")),
        Column("name", Name("name as the source gives it", NAME), required=True),
        Column("direction", Name("from where to where", DIRECTION), required=True),
        Column("bytes", Bytes("bytes moved; null when not recorded")),
        Column("host_memory", Name("kind of the host side's memory", HOST_MEMORY_KIND), required=True),
        Column("correlation", Id("id shared with the launching call")),
        Column("communication", Flag("true when a copy engine carried a collective"), required=True),
        Column("cause", Name("of a migration: prefetch, page fault, eviction, …; null when unknown", NAME)),
        Column("launch_start", Instant("start of the launching call")),
        Column("launch_end", Instant("end of the launching call")),
        Column("thread", Id("thread of the launching call")),
        Column("operator", Name("deepest operator that contains the launch", NAME)),
    ),
    "`activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]`, or `nsys profile -t cuda`",
)

LAUNCHES = Table(
    "launches",
    "a runtime or driver API call on the host",
    (
        *_WHEN,
        _THREAD,
        Column("name", Name("name of the call", NAME), required=True),
        Column("correlation", Id("id shared with the GPU work it started")),
        Column("return_code", Id("0 is success; null when not recorded", pl.Int32)),
    ),
    "`activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]`, or `nsys profile -t cuda`",
)

OPERATORS = Table(
    "operators",
    "a framework operator on the host",
    (
        *_WHEN,
        _THREAD,
        Column("name", Name("operator name", NAME), required=True),
        Column("shapes", Text("input shapes, as the source's JSON text", NAME)),
        Column("dtypes", Text("input types, as the source's JSON text", NAME)),
        Column("sequence", Id("autograd sequence number, shared by forward and backward")),
        Column("phase", Name("forward, backward, recompute or optimizer; null when unknown", PHASE)),
    ),
    "`activities=[ProfilerActivity.CPU, …]`, or `nsys profile -t nvtx` under `emit_nvtx()`",
)

RANGES = Table(
    "ranges",
    "an NVTX range or user annotation",
    (
        *_WHEN,
        _THREAD,
        Column("domain", Name("NVTX domain; 'user' for annotations, 'overhead', 'synchronisation'", NAME)),
        Column("name", Name("text of the range", NAME), required=True),
        Column("color", Id("ARGB")),
        Column("nested", Flag("true for push/pop ranges, which nest within their thread")),
        Column("complete", Flag("false when the recording ended inside the range")),
    ),
    "`torch.profiler.record_function(…)`, or `nsys profile -t nvtx` with NVTX ranges in the code",
)

COLLECTIVES = Table(
    "collectives",
    "one communication operation on a rank",
    (
        *_WHEN,
        Column(
            "arrival", Instant("when the rank was ready: start of kernel or host operator"), required=True
        ),
        Column("kind", Name("all-reduce, all-gather, …, or 'unknown'", NAME), required=True),
        Column("library", Name("NCCL, RCCL, DeepEP, NVSHMEM, gloo, copy engine, …", NAME)),
        Column(
            "group", Name("process group: name and ranks as far as the source tells; null when unknown", NAME)
        ),
        Column("group_size", Count("ranks in the group", pl.Int32)),
        Column("peer", Id("global rank of the other side, for send and receive", pl.Int32)),
        Column("bytes_in", Bytes("bytes of this rank's input buffer")),
        Column("bytes_out", Bytes("bytes of this rank's output buffer")),
        Column("dtype", Name("element type", NAME)),
        Column("sequence", Id("sequence number in its group, when the source gives one")),
        Column(
            "evidence",
            Id("1 metadata, 2 annotation, 3 operator, 4 kernel name, 5 stream", pl.Int8),
            required=True,
        ),
        Column("stream", Id("stream or thread that carried it")),
        Column("correlation", Id("id of the launch")),
        Column("name", Name("kernel, copy or annotation that carried it", NAME), required=True),
    ),
    "a recording of several ranks, with their GPU work (or gloo on CPU)",
)

FRAMES = Table(
    "frames",
    "a Python frame or module call on a host thread",
    (
        *_WHEN,
        _THREAD,
        Column("name", Name("file(line): function, or 'nn.Module: Linear_3'", NAME), required=True),
    ),
    "`lostflops record --what cuda,shapes,python -- COMMAND`, or `with_stack=True`",
)

ALLOCATIONS = Table(
    "allocations",
    "an allocation (bytes > 0) or a free (bytes < 0) of the framework's allocator; end equals start",
    (
        *_WHEN,
        _THREAD,
        Column("device", Id("device index; null for host memory", pl.Int32)),
        Column("address", Id("address, a pairing key only")),
        Column("bytes", Bytes("signed bytes"), required=True),
        Column("allocated", Bytes("bytes allocated on that device after the event, process-wide")),
        Column("reserved", Bytes("bytes reserved on that device after the event")),
        Column("stack", Text("functions from the outermost to the innermost, with ';' between", NAME)),
    ),
    "`profile_memory=True`, `torch.cuda.memory._dump_snapshot(…)`, or `nsys … --cuda-memory-usage=true`",
)

COUNTERS = Table(
    "counters",
    "a sampled value; it holds from start to end",
    (
        *_WHEN,
        Column(
            "device", Id("device index; a monitor's is the node's own; null for what is no GPU", pl.Int32)
        ),
        Column("metric", Name("name of the metric", NAME), required=True),
        Column("instance", Name("core, port, link, disk, … that it is of, where there are several", NAME)),
        Column("value", Number("value"), required=True),
        Column("unit", Name("unit; null when the source does not say", NAME)),
        Column("added", Flag("value is what was added from start to end, not a level; null: unknown")),
    ),
    "`lostflops record --monitor`, or `nsys profile --gpu-metrics-devices=… --nic-metrics=true "
    "--ib-switch-metrics-devices=…`",
)

OS_CALLS = Table(
    "os_calls",
    "an operating-system call of a host thread",
    (
        *_WHEN,
        _THREAD,
        Column("name", Name("name of the call", NAME), required=True),
        Column("system_call", Flag("true for a system call, false for one of the C library's")),
    ),
    "`nsys profile -t osrt`, or `-t syscall`",
)

LIBRARY_CALLS = Table(
    "library_calls",
    "a call of a library that computes or communicates on the host's side: MPI, UCX, cuBLAS, OpenMP, …",
    (
        *_WHEN,
        _THREAD,
        Column("library", Name("MPI, UCX, cuBLAS, cuDNN, OpenMP, OpenACC or video", NAME), required=True),
        Column("kind", Name("point to point, collective, wait or other", NAME)),
        Column("name", Name("name of the call", NAME), required=True),
        Column("peer", Id("rank of the other side in its communicator; of a collective the root", pl.Int32)),
        Column("communicator", Id("the same number on all ranks")),
        Column("sent", Bytes("bytes that this rank gives")),
        Column("received", Bytes("bytes that it takes")),
    ),
    "`nsys profile -t mpi,ucx,cublas,cudnn,openmp,openacc,nvvideo`, whichever the job uses",
)

FILE_ACCESSES = Table(
    "file_accesses",
    "a read, write, open or other access to a file by a host thread",
    (
        *_WHEN,
        _THREAD,
        Column("file", Id("number of the file, not its name"), required=True),
        Column("operation", Name("read, write, open, close or other", NAME), required=True),
        Column("bytes", Bytes("bytes that were read or written")),
    ),
    "`nsys profile -t osrt --osrt-file-access=true`",
)

THREAD_STATES = Table(
    "thread_states",
    "a stretch in which a host thread had one state: on a core, or off it for a reason",
    (
        *_WHEN,
        _THREAD,
        Column("core", Id("processor core; null off core", pl.Int32)),
        Column("state", Name("running, ready, blocked, waiting for I/O or off core", NAME), required=True),
        Column("reason", Name("what it is blocked on, where the source says", NAME)),
        Column("role", Name("autograd, loader or NCCL, as PyTorch names its threads; null for others", NAME)),
    ),
    "`nsys profile --cpuctxsw=process-tree`",
)

SAMPLES = Table(
    "samples",
    "a call stack of a host thread, taken periodically; end equals start",
    (
        *_WHEN,
        _THREAD,
        Column("core", Id("processor core", pl.Int32)),
        Column("function", Name("innermost function", NAME), required=True),
        Column("library", Name("file that holds it, without its folder", NAME)),
        Column("stack", Text("functions from the outermost to the innermost, with ';' between", NAME)),
    ),
    "`nsys profile -s process-tree`",
)

PAGE_FAULTS = Table(
    "page_faults",
    "a group of managed-memory page faults; end equals start for faults on the CPU",
    (
        *_WHEN,
        Column("device", Id("device that faulted; null for the CPU", pl.Int32)),
        Column("address", Id("address")),
        Column("faults", Count("number of faults in the group")),
        Column("access", Name("read, write, atomic or prefetch", NAME)),
    ),
    "`nsys profile --cuda-um-cpu-page-faults=true --cuda-um-gpu-page-faults=true`",
)

TOPOLOGY_DEVICES = Table(
    "topology_devices",
    "a GPU, network card, port or memory node of a machine; it holds at all times",
    (
        Column("rank", Id("first rank on that machine, 0 when unknown", pl.Int32), required=True),
        Column("kind", Name("gpu, nic, port, nvlink, numa or process"), required=True),
        Column("name", Name("GPU0, mlx5_0, eth0, node 0"), required=True),
        Column("port", Id("number of the port or NVLink; of a process its GPU's", pl.Int32)),
        Column("model", Name("what it is, as the tool says")),
        Column("numa", Id("memory node it is attached to; null when unknown", pl.Int32)),
        Column("cpus", Name("nearby CPUs, as in 0-15,32-47; of a process those it may run on")),
        Column("address", Name("PCI address")),
        Column("network", Name("network interface of a card, or of its port")),
        Column("layer", Name("InfiniBand or Ethernet")),
        Column("state", Name("logical state of a port or link, in lower case")),
        Column("physical", Name("physical state of a port, in lower case")),
        Column("rate", Number("of a port, NVLink or GPU's PCIe link in one direction", unit="Gb/s")),
        Column("lanes", Count("PCIe lanes in use", pl.Int32)),
        Column("most_lanes", Count("PCIe lanes it could use", pl.Int32)),
        Column("bytes", Bytes("memory of a memory node")),
        Column("tool", Name("who says so first")),
    ),
    "`lostflops topology --output RUN`",
)

TOPOLOGY_LINKS = Table(
    "topology_links",
    "how one device of a machine reaches another; it holds at all times",
    (
        Column("rank", Id("first rank on that machine, 0 when unknown", pl.Int32), required=True),
        Column("matrix", Name("path, read, write, nvlink, atomics, pcie or distance"), required=True),
        Column("device", Name("from"), required=True),
        Column("peer", Name("to"), required=True),
        Column("code", Name("as the tool writes it: NV18, PIX, OK, TNS, …"), required=True),
        Column("num_links", Count("bonded NVLinks; null for other paths", pl.Int32)),
        Column("tool", Name("who says so")),
    ),
    "`lostflops topology --output RUN`",
)

BANDWIDTHS = Table(
    "bandwidths",
    "a measured bandwidth at one size; it holds at all times",
    (
        Column("rank", Id("rank that wrote it down", pl.Int32), required=True),
        Column("operation", Name("all-reduce, host to device, … or barrier"), required=True),
        Column("tool", Name("torch, nccl-tests or nvbandwidth")),
        Column("backend", Name("nccl or gloo, for collectives")),
        Column("group_size", Count("ranks that took part", pl.Int32)),
        Column("hosts", Count("machines they ran on; null when unknown", pl.Int32)),
        Column("in_place", Flag("result in the input's buffer; null where there is no choice")),
        Column("device", Name("of a copy: GPU0")),
        Column("peer", Name("of a copy between GPUs: the target")),
        Column("host_memory", Name("of a copy: pinned or pageable")),
        Column("numa", Id("of a copy: memory node of the host's buffer", pl.Int32)),
        Column("both", Flag("of a copy: the other direction ran at the same time")),
        Column("bytes", Bytes("size as nccl-tests counts it; of a copy what was copied")),
        Column("repeats", Count("how often it was timed; null when the tool does not say", pl.Int32)),
        Column("time", Time("median of the repeats, each the slowest rank's; nccl-tests: mean")),
        Column("fastest", Time("shortest repeat")),
        Column("slowest", Time("longest repeat")),
        Column("algorithm_bandwidth", Number("bytes / time (a GB is 10⁹ bytes)", unit="GB/s")),
        Column("bus_bandwidth", Number("the same times nccl-tests' factor", unit="GB/s")),
        Column("correct", Flag("the result was checked and right; null when it was not checked")),
        Column("remark", Text("why there is no time, when there is none")),
        Column("measured_at", Time("since the Unix epoch")),
    ),
    "`lostflops bench collectives --output RUN` or `lostflops bench links --output RUN`",
)

STEP_LOG = Table(
    "step_log",
    "a step in the log of a recorded job: every step of every rank, recorded in full or not",
    (
        Column("rank", Id("rank", pl.Int32), required=True),
        Column("world_size", Count("ranks of the job; null when this rank's log does not say", pl.Int32)),
        Column("step", Id("step number"), required=True),
        Column("duration", Time("from the end of the step before; null for a rank's first")),
        Column("own", Time("what lostflops took before the step; no part of duration")),
        Column("micro_steps", Count("backward passes; null when they were not counted", pl.Int32)),
        Column("optimizer", Time("in optimizers, on the host")),
        Column("data", Time("waiting for a DataLoader")),
        Column("checkpoint", Time("in torch.save, torch.distributed.checkpoint, safetensors or the Trainer")),
        Column("garbage", Time("collecting garbage")),
        Column(
            "core_wait", Time("the thread was ready to run and had no core; null where Linux does not say")
        ),
        Column("on_core", Time("the thread ran on a processor core; null where Linux does not say")),
        Column("resident", Bytes("host memory that the process held at its end; null in most steps")),
        Column("allocated", Bytes("memory of its GPU that tensors held then; null in most steps")),
        Column("reserved", Bytes("memory of its GPU that PyTorch reserved then; null in most steps")),
        Column("loss", Number("as the job told it; null when it did not, or when it is not finite")),
        Column("tokens", Count("of this rank, as the job told it; null when it did not")),
        Column("samples", Count("of this rank, as the job told it; null when it did not")),
        Column("recorded", Flag("it was recorded in full"), required=True),
    ),
    "`lostflops record`",
)

RANK_ENDS = Table(
    "rank_ends",
    "how a rank's process ended, as the step log of its last attempt tells",
    (
        Column("rank", Id("rank", pl.Int32), required=True),
        Column("last_step", Id("last step that it finished; null when it finished none")),
        Column("finished", Flag("its Python ran to its end, also after an exception"), required=True),
        Column("exception", Name("class of the exception that ended it")),
        Column(
            "status", Id("its exit status, negative for a signal; null when no launcher told it", pl.Int32)
        ),
        Column("job_status", Id("the same of the recorded command; null while it runs", pl.Int32)),
        Column("peak_resident", Bytes("the most that the process held in host memory")),
        Column("peak_allocated", Bytes("the most that tensors held on its GPU; null without one")),
        Column("peak_reserved", Bytes("the most that PyTorch reserved on its GPU; null without one")),
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
        LIBRARY_CALLS,
        FILE_ACCESSES,
        THREAD_STATES,
        SAMPLES,
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
LibraryCalls: TypeAlias = Annotated[pl.LazyFrame, LIBRARY_CALLS]
FileAccesses: TypeAlias = Annotated[pl.LazyFrame, FILE_ACCESSES]
ThreadStates: TypeAlias = Annotated[pl.LazyFrame, THREAD_STATES]
Samples: TypeAlias = Annotated[pl.LazyFrame, SAMPLES]
PageFaults: TypeAlias = Annotated[pl.LazyFrame, PAGE_FAULTS]
TopologyDevices: TypeAlias = Annotated[pl.LazyFrame, TOPOLOGY_DEVICES]
TopologyLinks: TypeAlias = Annotated[pl.LazyFrame, TOPOLOGY_LINKS]
Bandwidths: TypeAlias = Annotated[pl.LazyFrame, BANDWIDTHS]
StepLog: TypeAlias = Annotated[pl.LazyFrame, STEP_LOG]
RankEnds: TypeAlias = Annotated[pl.LazyFrame, RANK_ENDS]
