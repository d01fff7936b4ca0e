"""The accounts of the ledger in words: what each means, how it is found, and what to do about it.

The report's labels, `lostflops explain` and `docs/ledger.md` read them here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Account:
    """One account. `label` is what the page calls it."""

    name: str
    label: str
    meaning: str
    found: str
    remedy: str


# The thread that launched the work which ends the gap; where none follows, the one that launches most.
_LATE = "Nothing runs on the device, and the host's launching thread "

ACCOUNTS: Mapping[str, Account] = {
    account.name: account
    for account in (
        Account(
            "compute",
            "compute",
            "At least one kernel that is not communication runs.",
            "The union of such kernels' intervals, so work that overlaps counts once. On a CPU-only trace "
            "host operators take the kernels' place.",
            "`lostflops recipe kernel-families` says what the kernels are, `precision-mix` whether they "
            "use the matrix units.",
        ),
        Account(
            "communication.wait",
            "waiting for other ranks",
            "Only communication runs, and the last rank of the collective has not arrived yet.",
            "The ranks' rows of one collective are matched, and the last arrival splits each into wait "
            "and transfer. That needs the traces of all its ranks.",
            "No network helps: `lostflops recipe communication-imbalance` names the rank that arrives "
            "last. Give it less work, or find what slows it.",
        ),
        Account(
            "communication.transfer",
            "transfer",
            "Only communication runs, and all ranks of the collective have arrived.",
            "What is left of a matched collective after its last arrival.",
            "Start it earlier, so that compute hides it, or send less: larger buckets, lower precision, "
            "sharding within a host. `lostflops recipe communication-summary` compares the bandwidths.",
        ),
        Account(
            "communication.exposed",
            "waiting or transfer",
            "Only communication runs, and waiting cannot be told from transfer.",
            "Communication that was not matched across ranks, because ranks are missing or the trace does "
            "not say enough; `lostflops recipe communication-wait` gives the reason.",
            "Record all ranks of the job over the same steps, and ask again.",
        ),
        Account(
            "copy",
            "exposed copies",
            "Only copies, memsets or managed-memory migrations run.",
            "The union of copies, without what kernels or communication cover.",
            "Pin the host memory, copy with `non_blocking=True` one batch ahead, or do not move the data "
            "at all; `lostflops recipe copy-summary-by-time` says which copies.",
        ),
        Account(
            "idle.data_loading",
            "data loading",
            _LATE + "waits for the next batch.",
            "Ranges and frames of data loaders on that thread: `enumerate(DataLoader)#…__next__`, or "
            "an NVTX range whose name says so.",
            "More loader workers with `persistent_workers=True` and a larger `prefetch_factor`; "
            "preprocess once instead of in every epoch.",
        ),
        Account(
            "idle.host_synchronisation",
            "host synchronisation",
            _LATE + "waits for the device, or refills the queue that it had drained by waiting.",
            "Synchronising calls on that thread (`cudaStreamSynchronize`, `cudaDeviceSynchronize`, "
            "`aten::item`, a blocking copy), and, when such a call had emptied the queue, the "
            "operators and launches until new work arrives, for as long as the call took. On a CPU-only "
            "trace: calls of communication (`wait_tensor`, `c10d::…`) while no communication that the trace "
            "shows runs.",
            "Take `.item()`, `.cpu()` and prints of device values out of the step, or do them every "
            "hundredth step. On a CPU-only trace, leave cores free for the threads that communicate.",
        ),
        Account(
            "idle.memory_allocator",
            "memory allocator",
            _LATE + "allocates or frees device memory.",
            "`cudaMalloc`, `cudaFree`, `cuMemMap` and their like on that thread; in a steady state "
            "the framework's cache does not call them.",
            "Keep the shapes steady, leave some memory free, or set "
            "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.",
        ),
        Account(
            "idle.garbage_collection",
            "garbage collection",
            _LATE + "collects Python's garbage.",
            "Ranges and frames of the collector on that thread.",
            "`gc.disable()` in the loop, and `gc.collect()` every few hundred steps, on all ranks in "
            "the same one.",
        ),
        Account(
            "idle.compilation",
            "compilation",
            _LATE + "compiles, loads or tunes kernels.",
            "Ranges, frames and calls of compilers, of lazy module loading and of autotuning on that thread.",
            "Record after the warm-up. If it goes on, look for shapes that change: pad them, or mark "
            "them dynamic.",
        ),
        Account(
            "idle.graph_capture",
            "graph capture",
            _LATE + "captures a CUDA or HIP graph: what it launches meanwhile becomes part of the graph and "
            "does not run.",
            "All that the thread does from a call that begins a capture (`cudaStreamBeginCapture`, "
            "`hipStreamBeginCapture`) to the call that ends it.",
            "Captures belong to the start of a job: record later. If they go on, replay what was captured; "
            "each new shape of the inputs is captured anew, so pad to a few shapes.",
        ),
        Account(
            "idle.checkpoint_logging",
            "checkpoints, logging",
            _LATE + "writes checkpoints or logs.",
            "Ranges and frames on that thread whose names say that something is saved or logged.",
            "Save asynchronously (`torch.distributed.checkpoint.async_save`) and log less often.",
        ),
        Account(
            "idle.launch_bound",
            "launch-bound",
            _LATE + "is busy getting there: it runs operators and launches, or is inside the call that "
            "launches the next work. The device finishes the work faster than that.",
            "Operators and API calls on that thread that no other account claims, until the call that "
            "launches the next work returns. Never on a CPU-only trace, where nothing is launched.",
            "`torch.compile`, CUDA graphs, fused optimizers (`fused=True`), larger batches: fewer and "
            "larger kernels.",
        ),
        Account(
            "idle.long_call",
            "long API calls",
            _LATE + "is inside one call of the driver's or runtime's API for a millisecond or longer.",
            "API calls of 1 ms and longer on that thread whose name tells nothing of the cause. A call that "
            "launches takes microseconds; not so the first launch of a kernel, whose code may be loaded in "
            "it, or a copy from pageable memory, which the host carries out itself in part.",
            "`lostflops recipe api-call-summary PATH` lists the calls. Record after the warm-up; if they go "
            "on, pin the memory that is copied, and reuse streams, graphs and shapes.",
        ),
        Account(
            "idle.dependency",
            "dependency",
            "Nothing runs on the device although the next work was launched already, for less than a "
            "millisecond.",
            "The part of a gap after the call that launched the next work had returned: the work waits for "
            "an event, for another stream, or for the device's own start-up time.",
            "Look at the streams around the gap; CUDA graphs shorten the start-up between small kernels.",
        ),
        Account(
            "idle.pipeline_bubble",
            "pipeline bubble",
            _LATE + "waits for another pipeline stage.",
            "Ranges on that thread that name a receive of the pipeline schedule. Often the bubble "
            "shows as communication.wait instead: a receive kernel spins from its launch.",
            "More microbatches, an interleaved or zero-bubble schedule, stages of equal cost.",
        ),
        Account(
            "idle.other_host_work",
            "other host work",
            _LATE + "does something that the trace names and no account of its own.",
            "Ranges and frames on that thread that nothing above claims. On a CPU-only trace also the "
            "autograd engine's own time around operators, in which hooks run.",
            "`lostflops recipe idle-causes PATH --format csv` names it, gap by gap.",
        ),
        Account(
            "idle.unrecorded",
            "not recorded",
            "Nothing that was recorded runs on the device, and the recording lacks what would tell why: the "
            "launch of the next work, or what kept launched work waiting for a millisecond or longer.",
            "A gap that ends with work whose launch is not in the trace, and every gap where no host thread "
            "is; or the part of a gap after the call that launched the next work had returned, from 1 ms on. "
            "The device may be busy then: with work launched before the recording began, with another "
            "process, or with nodes of a graph that are not listed.",
            "Have the profiler run some steps before those that are kept (`schedule(warmup=…)`), synchronise "
            "before the first, and record the host's API calls (`ProfilerActivity.CPU`, "
            "`nsys profile -t cuda --cuda-graph-trace=node`).",
        ),
        Account(
            "idle.unexplained",
            "unexplained",
            "Nothing runs on the device, and no row of the host's launching thread says why.",
            "What no row of that thread covers. Plain Python between two operators is not in a trace "
            "without stacks, for one.",
            "Record call stacks: `lostflops record --what cuda,shapes,python -- COMMAND`, or `nsys profile "
            "-t cuda,nvtx,osrt`.",
        ),
    )
}

# What a rank spends on others that are not there yet, as far as the trace can tell.
WAITING = ("communication.wait", "communication.exposed", "idle.pipeline_bubble")
