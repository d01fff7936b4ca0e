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
_LATE = "Nothing runs on the GPU while the CPU thread that launches work "

ACCOUNTS: Mapping[str, Account] = {
    account.name: account
    for account in (
        Account(
            "compute",
            "compute",
            "At least one kernel runs that is not communication.",
            "The union of such kernels' intervals, so overlapping work counts once. On a CPU-only trace "
            "operators are counted instead of kernels.",
            "`lostflops recipe kernel-families` lists the kinds of kernels, `lostflops recipe precision-mix` "
            "whether they use tensor cores.",
        ),
        Account(
            "communication.wait",
            "waiting for other ranks",
            "Only communication runs, and another rank of the collective has not arrived yet.",
            "Each collective is matched across ranks; the last arrival splits it into wait and transfer. "
            "That needs the traces of all its ranks.",
            "A faster network does not help. `lostflops recipe communication-imbalance` names the rank that "
            "arrives last: give it less work, or find what slows it.",
        ),
        Account(
            "communication.transfer",
            "transfer",
            "Only communication runs, and all ranks of the collective have arrived.",
            "The rest of a matched collective after the last rank has arrived.",
            "Start it earlier, so that compute hides it, or send less: accumulate gradients without "
            "synchronising, reduce in bf16, shard within a node. Size buckets by what is exposed: large ones "
            "in the middle, a small last one. `lostflops recipe communication-summary` compares the "
            "bandwidths.",
        ),
        Account(
            "communication.exposed",
            "waiting or transfer",
            "Only communication runs; whether it waits or transfers is not known.",
            "Communication that could not be matched across ranks; `lostflops recipe communication-wait` "
            "gives the reason, often missing ranks.",
            "Record the same steps on all ranks of the job.",
        ),
        Account(
            "copy",
            "exposed copies",
            "Only copies, memsets or managed-memory migrations run.",
            "The union of copies, minus what kernels or communication cover.",
            "Pin the host memory and copy with `non_blocking=True` one batch ahead, or keep the data on the "
            "GPU; `lostflops recipe copy-summary-by-time` lists the copies.",
        ),
        Account(
            "idle.data_loading",
            "data loading",
            _LATE + "waits for the next batch.",
            "Ranges and frames of data loaders on that thread: `enumerate(DataLoader)#…__next__`, or an NVTX "
            "range named after loading.",
            "Give the loader worker processes (`num_workers`; with them `persistent_workers=True` saves the "
            "start of each epoch), or preprocess once instead of in every epoch. A larger `prefetch_factor` "
            "helps against slow single samples, never against a loader that is too slow on average.",
        ),
        Account(
            "idle.host_synchronisation",
            "host synchronisation",
            _LATE + "waits for the GPU, or refills the queue that this wait had drained.",
            "Synchronising calls on that thread (`cudaStreamSynchronize`, `cudaDeviceSynchronize`, "
            "`aten::item`, a blocking copy); where such a call had emptied the queue, also the operators and "
            "launches until new work arrives, for at most as long as the call took. On a CPU-only trace: "
            "calls of communication (`wait_tensor`, `c10d::…`) while no recorded communication runs.",
            "Move `.item()`, `.cpu()` and prints of GPU values out of the step, or do them every hundredth "
            "step. On a CPU-only trace, leave cores free for the threads that communicate.",
        ),
        Account(
            "idle.memory_allocator",
            "memory allocator",
            _LATE + "allocates or frees GPU memory.",
            "`cudaMalloc`, `cudaFree`, `cuMemMap` and the like on that thread; in a steady state the "
            "framework's cache does not call them.",
            "Keep the shapes steady, leave some memory free, or set "
            "`PYTORCH_ALLOC_CONF=expandable_segments:True` (before torch 2.9: `PYTORCH_CUDA_ALLOC_CONF`; not "
            "with tensors shared by CUDA IPC or managed memory).",
        ),
        Account(
            "idle.garbage_collection",
            "garbage collection",
            _LATE + "runs Python's garbage collector.",
            "Ranges and frames of the collector on that thread.",
            "After the start `gc.collect()`, `gc.freeze()` and `gc.disable()`; then `gc.collect(1)` every "
            "few hundred steps, in the same step on all ranks.",
        ),
        Account(
            "idle.compilation",
            "compilation",
            _LATE + "compiles, loads or tunes kernels.",
            "Ranges, frames and calls of compilers, of lazy module loading and of autotuning on that thread.",
            "Record after the warm-up. If it goes on, some shapes change: pad them, or mark them dynamic; "
            "compile block by block. After 8 recompilations (`recompile_limit`) a function runs eagerly.",
        ),
        Account(
            "idle.initialisation",
            "first-call initialisation",
            _LATE + "sets up what is made once: the device's context, a library, a process group, the first "
            "memory.",
            "Calls of 10 ms and longer in a job's first step that allocate, free or prove no cause, where "
            "later calls of that name take at most a hundredth of it; calls and frames that say what they "
            "set up; and what nothing above claims inside a range called warm-up or initialisation.",
            "It happens once: record later (`lostflops record --steps 10-14`), and judge those steps.",
        ),
        Account(
            "idle.graph_capture",
            "graph capture",
            _LATE
            + "captures a CUDA or HIP graph: what it launches meanwhile is stored in the graph and does not "
            "run.",
            "Everything on that thread from the call that begins a capture (`cudaStreamBeginCapture`, "
            "`hipStreamBeginCapture`) to the call that ends it.",
            "Captures belong to the start of a job: record later. If they go on, each new input shape is "
            "captured anew: pad to a few shapes.",
        ),
        Account(
            "idle.checkpoint_logging",
            "checkpoints, logging",
            _LATE + "writes checkpoints or logs.",
            "Ranges and frames on that thread that are named after saving or logging.",
            "Save in the background (`torch.distributed.checkpoint.async_save`, which needs a CPU backend "
            "beside NCCL: `cpu:gloo,cuda:nccl`) or less often, and log less often.",
        ),
        Account(
            "idle.launch_bound",
            "launch-bound",
            _LATE
            + "runs operators and launch calls: the GPU finishes its work faster than the CPU launches more.",
            "Operators and API calls on that thread that no other account claims, until the call that "
            "launches the next work returns. Never on a CPU-only trace, where nothing is launched.",
            "Run fewer and larger kernels: `torch.compile`, CUDA graphs, a fused optimizer where it is not "
            "the default (`fused=True`), larger batches.",
        ),
        Account(
            "idle.long_call",
            "long API calls",
            _LATE + "is inside one driver or runtime call for a millisecond or longer.",
            "API calls of 1 ms and longer on that thread whose name does not show the cause. A launch takes "
            "microseconds, except the first one of a kernel, which may load its code, and a copy from "
            "pageable memory, which the CPU carries out in part.",
            "`lostflops recipe api-call-summary PATH` lists the calls. Record after the warm-up; if they go "
            "on, pin the memory that is copied, and reuse streams, graphs and shapes.",
        ),
        Account(
            "idle.dependency",
            "dependency",
            "Nothing runs on the GPU for less than a millisecond although the next work was launched "
            "already.",
            "The part of a gap after the call that launched the next work had returned: the work waits for "
            "an event, for another stream, or for the GPU to start it.",
            "Look at the streams around the gap; CUDA graphs shorten the pauses between small kernels.",
        ),
        Account(
            "idle.pipeline_bubble",
            "pipeline bubble",
            _LATE + "waits for another pipeline stage.",
            "Ranges on that thread that name a receive of the pipeline schedule. Often the bubble shows as "
            "`communication.wait` instead, because a receive kernel runs from its launch on.",
            "More microbatches, an interleaved schedule (zero-bubble ones are in PyTorch and torchtitan "
            "only), stages of equal cost.",
        ),
        Account(
            "idle.other_host_work",
            "other host work",
            _LATE + "runs other code that the trace names.",
            "Ranges and frames on that thread that nothing above claims. On a CPU-only trace also the "
            "autograd engine's own time around operators, in which hooks run.",
            "`lostflops recipe idle-causes PATH --format csv` names the code, gap by gap.",
        ),
        Account(
            "idle.unrecorded",
            "not recorded",
            "No recorded work runs on the GPU, and the recording does not hold the reason: the launch of "
            "the next work, or what kept launched work waiting for a millisecond or longer.",
            "A gap that ends with work whose launch is not in the trace, every gap without a CPU thread, "
            "and from 1 ms on the part of a gap after the next work's launch had returned. The GPU may be "
            "busy then: with work launched before the recording began, with another process, or with graph "
            "nodes that are not listed.",
            "Let the profiler warm up for some steps (`schedule(warmup=…)`), synchronise before the first "
            "one, and record the CPU's API calls (`ProfilerActivity.CPU`, `nsys profile -t cuda "
            "--cuda-graph-trace=node`). `nvidia-smi` shows whether another process uses the GPU.",
        ),
        Account(
            "idle.unexplained",
            "unexplained",
            "Nothing runs on the GPU, and the recording shows no reason on the CPU thread that launches "
            "work.",
            "What nothing recorded on that thread covers, such as plain Python between two operators in a "
            "trace without call stacks.",
            "Record call stacks: `lostflops record --what cuda,shapes,python -- COMMAND`, or `nsys profile "
            "-t cuda,nvtx,osrt`.",
        ),
    )
}

# What a rank spends on others that are not there yet, as far as the trace can tell.
WAITING = ("communication.wait", "communication.exposed", "idle.pipeline_bubble")
