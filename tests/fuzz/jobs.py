"""Small jobs with all that is read in them, as a profiler or as nsys would have written them.

They are right as they are; `mutations` breaks them. A `random.Random` decides, so a number is a job.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

import nsys_exports as nsys
from kineto_files import Event, call, head, kernel, operator, span, step

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
KERNELS = (
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
    "flash_fwd_kernel",
    "triton_poi_fused_add_0",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
    "multi_tensor_apply_kernel<adam>",
    "Cijk_Alik_Bljk_HHS_BH",
    "",
    "x\x1b[31mred",
    "cudnn::bn_fw",
    NCCL,
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
)
OPERATORS = (
    "aten::mm",
    "aten::add_",
    "aten::copy_",
    "aten::item",
    "autograd::engine::evaluate_function: MmBackward0",
    "Optimizer.step#AdamW.step",
    "aten::_local_scalar_dense",
    "c10d::allreduce_",
    "record_param_comms",
    "torch::autograd::AccumulateGrad",
    "DistributedDataParallel.forward",
)
ANNOTATIONS = (
    "ProfilerStep#{n}",
    "step {n}",
    "Iteration-{n}",
    "Optimizer.step#AdamW.step",
    "Optimizer.step#Child.step",
    "Optimizer.zero_grad#AdamW.zero_grad",
    "## Call CompiledFxGraph x ##",
    "nccl:all_reduce",
    "gloo:send",
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    "torch/utils/data/dataloader.py(1): __next__",
    "save_checkpoint",
    "gc.collect",
    "lostflops.forward",
    "PyTorch Profiler (0)",
    "=cmd|' /C calc'!A0",
)
CALLS = (
    "cudaLaunchKernel",
    "cudaMemcpyAsync",
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaMalloc",
    "cudaGraphLaunch",
    "cuLaunchKernel",
    "hipLaunchKernel",
    "cudaEventQuery",
    "cudaStreamBeginCapture_v10000",
    "cudaStreamEndCapture_v10000",
    "cudaHostAlloc",
)


def kineto_rank(random: Random, rank: int, world: int) -> tuple[list[Event], dict[str, Any], dict[str, Any]]:
    """Events, and what stands before and behind them, of one rank."""
    at = random.choice((0.0, 1000.0, 5e12, 1.7e15)) + random.randrange(1000)
    style = random.choice(("profiler", "profiler", "range", "optimizer", "none"))
    on_device = random.random() < 0.85
    events: list[Event] = []
    correlation = 1
    for number in range(random.randint(1, 4)):
        begin = at
        for _ in range(random.randint(0, 5)):
            name = random.choice(OPERATORS[:5])
            length = random.randint(2, 60)
            events.append(
                operator(name, at, length, more={"Sequence number": correlation, "Fwd thread id": 0})
            )
            if on_device:
                correlation += 1
                events.append(call(at + 0.5, 1, correlation, random.choice(CALLS[:2])))
                late = at + random.choice((1, 2.5, 30, 400))
                comm = rank_facts(random, world) if random.random() < 0.3 else {}
                name = NCCL if comm else random.choice(KERNELS)
                if random.random() < 0.15:
                    moved = {"device": 0, "stream": 7, "correlation": correlation, "bytes": 4096}
                    events.append(span("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", late, 4, 7, **moved))
                else:
                    stream = random.choice((7, 7, 7, 20))
                    events.append(kernel(late, random.randint(1, 90), correlation, name, stream, **comm))
            at += length + random.choice((0, 0.25, 1, 200))
        if random.random() < 0.5:
            wait = random.choice(ANNOTATIONS).format(n=number)
            events.append(span("user_annotation", wait, at, random.randint(1, 500)))
        if random.random() < 0.3:
            events.append(call(at, random.randint(1, 3000), 0, random.choice(CALLS[2:])))
        if random.random() < 0.2:
            events.append(span("python_function", "torch/optim/adamw.py(220): step", at, 10))
        if random.random() < 0.2:
            memory = {"Addr": 99, "Bytes": 512, "Device Type": 1, "Device Id": 0, "Total Allocated": 512}
            events.append(
                {
                    "ph": "i",
                    "cat": "cpu_instant_event",
                    "name": "[memory]",
                    "pid": 1,
                    "tid": 1,
                    "ts": at,
                    "args": memory,
                }
            )
        at += random.choice((1, 20, 700))
        if style == "profiler":
            events.append(step(number + 3, begin, at - begin))
        elif style == "range":
            events.append(span("user_annotation", f"step {number}", begin, at - begin))
        elif style == "optimizer":
            events.append(span("user_annotation", "Optimizer.step#AdamW.step", at - 1, 1))
    events.append({"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": at})
    before = head(rank, world)
    if random.random() < 0.3:
        before["baseTimeNanoseconds"] = 1_790_857_026_000_000_000
    if not on_device:
        before.pop("deviceProperties")
    return events, before, {}


def rank_facts(random: Random, world: int) -> dict[str, Any]:
    """What Kineto says of a collective."""
    return {
        "Collective name": random.choice(("allreduce", "_allgather_base", "send", "broadcast")),
        "In msg nelems": 64,
        "Out msg nelems": 64,
        "dtype": "Float",
        "Group size": world,
        "Process Group Name": "0",
        "Process Group Ranks": json.dumps(list(range(world))),
    }


def nsys_tables(random: Random) -> dict[str, list[dict[str, Any]]]:
    """The tables of an export of one process or two."""
    tables: dict[str, list[dict[str, Any]]] = {
        "CUPTI_ACTIVITY_KIND_KERNEL": [],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [],
        "NVTX_EVENTS": [],
        "CUPTI_ACTIVITY_KIND_MEMCPY": [],
        "OSRT_API": [],
    }
    base = random.choice((1, 1000, 10**9, 10**15))
    for number in range(random.randint(1, 2)):
        own = {"globalPid": nsys.process(7 + number), "deviceId": number}
        thread = {"globalTid": nsys.process(7 + number) | 8}
        at, correlation = base, 1
        for turn in range(random.randint(1, 4)):
            begin = at
            for _ in range(random.randint(0, 5)):
                correlation += 1
                length = random.randint(1, 5000)
                tables["CUPTI_ACTIVITY_KIND_RUNTIME"].append(
                    nsys.call(
                        at, at + 20, correlationId=correlation, nameId=random.choice((20, 21, 22)), **thread
                    )
                )
                late = at + random.choice((1, 15, 3000))
                where = {"streamId": random.choice((7, 7, 13)), "correlationId": correlation, **own}
                if random.random() < 0.2:
                    tables["CUPTI_ACTIVITY_KIND_MEMCPY"].append(nsys.copy(late, late + length, **where))
                else:
                    name = random.choice((10, 11, 12))
                    tables["CUPTI_ACTIVITY_KIND_KERNEL"].append(
                        nsys.kernel(late, late + length, demangledName=name, **where)
                    )
                at += length + random.choice((0, 1, 500, 90_000))
            text = random.choice(
                (f"step {turn}", f"ProfilerStep#{turn}", random.choice(ANNOTATIONS).format(n=turn))
            )
            tables["NVTX_EVENTS"].append(nsys.push(begin, at + 1, text, **thread))
            if random.random() < 0.3:
                tables["OSRT_API"].append({"start": at, "end": at + 900, "nameId": 21, **thread})
            at += random.choice((1, 2, 50_000))
    return {name: rows for name, rows in tables.items() if rows or random.random() < 0.5}
