"""States and sampled call stacks of host threads."""

from __future__ import annotations

import polars as pl

from lostflops.ingest.nsys.export import Export, thread_of
from lostflops.ingest.nsys.rows import usable
from lostflops.store.trace import Quality
from lostflops.tables import NAME

# How Linux and nsys call the state in which a thread leaves its core, in our words.
STATES = {
    "running": "ready",
    "runnable": "ready",
    "waking": "ready",
    "interruptible": "blocked",
    "uninterruptible": "waiting for I/O",
    "diskwait": "waiting for I/O",
}
# How PyTorch calls its own threads. Other names are the program's, and stay out.
ROLES = (
    (r"^pt_autograd_\d+$", "autograd"),
    (r"^pt_data_(?:pin|worker)", "loader"),
    (r"^pt_nccl_", "NCCL"),
)
PERIODIC = 1  # a sample's `cpuCycles`; 0 marks a stack that was taken as the thread left its core


def thread_states(export: Export, process: int, orphans: bool, quality: list[Quality]) -> pl.DataFrame:
    """Stretches on a core and off it: from each event of a thread to its next.

    What a thread did before its first event and after its last is not known. The state and the reason are
    those that the scheduler noted as the thread left its core.
    """
    rows = export.read("SCHED_EVENTS", process=process, orphans=orphans)
    states = {number: _state(name) for number, name in export.enum("ENUM_SAMPLING_THREAD_STATE", {}).items()}
    blocks = export.enum("ENUM_SCHEDULING_THREAD_BLOCK", {})
    on_core = pl.col("isSchedIn") == 1
    state = pl.col("threadState").replace_strict(states, default="off core", return_dtype=pl.String)
    reason = pl.col("threadBlock").replace_strict(blocks, default=None, return_dtype=pl.String)
    timed = (
        rows.drop_nulls(["start", "globalTid"])
        .sort("globalTid", "start", maintain_order=True)
        .with_columns(end=pl.col("start").shift(-1).over("globalTid"))
        .drop_nulls("end")
    )
    roles = _roles(export, process, orphans)
    return (
        usable(timed, "thread states", quality)
        .join(roles, on="globalTid", how="left", maintain_order="left")
        .select(
            "start",
            "end",
            thread=thread_of("globalTid"),
            core=pl.when(on_core).then("cpu"),
            state=pl.when(on_core).then(pl.lit("running")).otherwise(state).cast(NAME),
            reason=pl.when(~on_core).then(reason).cast(NAME),
            role=pl.col("role").cast(NAME),
        )
    )


def _roles(export: Export, process: int, orphans: bool) -> pl.DataFrame:
    """What the threads are for that PyTorch names."""
    named = export.named(export.read("ThreadNames", process=process, orphans=orphans), "nameId", "_name")
    role = pl.lit(None, dtype=pl.String)
    for pattern, known in reversed(ROLES):
        role = pl.when(pl.col("_name").str.contains(pattern)).then(pl.lit(known)).otherwise(role)
    found = named.select("globalTid", role=role).drop_nulls()
    return found.sort("globalTid", "role").unique("globalTid", keep="first", maintain_order=True)


def _state(name: str) -> str:
    word = name.rpartition("_")[2].lower()
    return STATES.get(word, "off core")


def samples(export: Export, process: int, orphans: bool, quality: list[Quality]) -> pl.DataFrame:
    """Periodic samples with their stacks; what is not on the stack of a sample was not unwound.

    Of the file that holds a function the name is kept without its folder, which may be a person's.
    """
    taken = export.read("COMPOSITE_EVENTS", process=process, orphans=orphans)
    taken = taken.filter(pl.col("cpuCycles") == PERIODIC).with_columns(end=pl.col("start"))
    taken = usable(taken, "samples", quality).sort("start", maintain_order=True)
    frames = export.read("SAMPLING_CALLCHAINS").join(taken.select("id").unique(), on="id", how="semi")
    frames = export.named(export.named(frames, "symbol", "_symbol"), "module", "_module").sort(
        "id", "stackDepth", maintain_order=True
    )
    named = frames.with_columns(
        _symbol=pl.col("_symbol").fill_null("(unknown)"),
        _module=pl.col("_module").str.extract(r"([^/\\]+)$"),
    )
    stacks = named.group_by("id", maintain_order=True).agg(
        function=pl.col("_symbol").first(),
        library=pl.col("_module").first(),
        stack=pl.col("_symbol").reverse().str.join(";"),
    )
    return taken.join(stacks, on="id", how="inner", maintain_order="left").select(
        "start",
        "end",
        thread=thread_of("globalTid"),
        core="cpu",
        function=pl.col("function").cast(NAME),
        library=pl.col("library").cast(NAME),
        stack=pl.col("stack").cast(NAME),
    )
