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


_IDLE = (
    "Nothing runs on the device, and in the gap's cause window (from the end of the last device work to "
    "the start of the call that launches the next) "
)

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
            _IDLE + "the host waits for the next batch.",
            "A range of the data loader covers the cause window: `enumerate(DataLoader)#…__next__`, or an "
            "NVTX range that names loading.",
            "More loader workers with `persistent_workers=True` and a larger `prefetch_factor`; "
            "preprocess once instead of in every epoch.",
        ),
        Account(
            "idle.host_synchronisation",
            "host synchronisation",
            _IDLE + "the host had waited for the device, and launches again only afterwards.",
            "A synchronising call covers or ends in the cause window: `cudaStreamSynchronize`, "
            "`cudaDeviceSynchronize`, a blocking copy, `aten::item`.",
            "Take `.item()`, `.cpu()` and prints of device values out of the step, or do them every "
            "hundredth step.",
        ),
        Account(
            "idle.memory_allocator",
            "memory allocator",
            _IDLE + "the host allocates or frees device memory.",
            "`cudaMalloc`, `cudaFree`, `cuMemMap` and their like cover the cause window; the framework's "
            "cache does not call them in a steady state.",
            "Keep the shapes steady, leave some memory free, or set "
            "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.",
        ),
        Account(
            "idle.garbage_collection",
            "garbage collection",
            _IDLE + "Python collects garbage.",
            "A range or a frame of the collector covers the cause window.",
            "`gc.disable()` in the loop, and `gc.collect()` every few hundred steps, on all ranks in the "
            "same one.",
        ),
        Account(
            "idle.compilation",
            "compilation",
            _IDLE + "the host compiles, loads or tunes kernels.",
            "Ranges and calls of compilers, of lazy module loading and of autotuning cover the cause window.",
            "Record after the warm-up. If it goes on, look for shapes that change: pad them, or mark them "
            "dynamic.",
        ),
        Account(
            "idle.checkpoint_logging",
            "checkpoints, logging",
            _IDLE + "the host writes checkpoints or logs.",
            "A range or a frame that names saving or logging covers the cause window.",
            "Save asynchronously (`torch.distributed.checkpoint.async_save`) and log less often.",
        ),
        Account(
            "idle.launch_bound",
            "launch-bound",
            "Nothing runs on the device, because the host launches work more slowly than the device "
            "finishes it.",
            "The next work was launched after the device ran dry, and the host was busy with operators "
            "and launches all the while.",
            "`torch.compile`, CUDA graphs, fused optimizers (`fused=True`), larger batches: fewer and "
            "larger kernels.",
        ),
        Account(
            "idle.dependency",
            "dependency",
            "Nothing runs on the device although the next work was launched already.",
            "The launching call of the next work began before the gap did: the work waited for an event, "
            "for another stream or for the device's own start-up time.",
            "Look at the streams around the gap; CUDA graphs shorten the start-up between small kernels.",
        ),
        Account(
            "idle.pipeline_bubble",
            "pipeline bubble",
            "The pipeline schedule leaves the device without work.",
            "The gap lies before work that a receive from another stage precedes. Often the bubble shows "
            "as communication.wait instead: a receive kernel spins from its launch.",
            "More microbatches, an interleaved or zero-bubble schedule, stages of equal cost.",
        ),
        Account(
            "idle.other_host_work",
            "other host work",
            _IDLE + "the host does something else that the trace names.",
            "Operators or ranges that are none of the above cover the cause window.",
            "`lostflops recipe idle-causes` names them.",
        ),
        Account(
            "idle.unexplained",
            "unexplained",
            "Nothing runs on the device, and the trace does not say why.",
            "What no cause covers. Plain Python between operators is not recorded, for one.",
            "Record with the CPU activity and `with_stack=True`, or `nsys profile -t cuda,nvtx,osrt`, and "
            "ask again.",
        ),
    )
}
