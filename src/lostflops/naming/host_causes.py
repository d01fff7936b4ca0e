"""Tell from the names of what the host did why the device had nothing to do.

A pattern claims only what the name proves: `enumerate(DataLoader)#….__next__` waits for data, but a range
called `forward` proves nothing, and neither does a compiled function that merely runs. Causes are the
`idle.<cause>` accounts of the ledger that a host row can prove; the rest follow from the absence of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import polars as pl

from .patterns import LONGEST, Recogniser

Row = Literal["range", "operator", "frame", "launch"]
CAUSES = (
    "data_loading",
    "host_synchronisation",
    "memory_allocator",
    "garbage_collection",
    "compilation",
    "initialisation",
    "checkpoint_logging",
    "pipeline_bubble",
)


@dataclass(frozen=True)
class CausePattern:
    """Names of one kind of host row that prove a cause."""

    cause: str
    rows: tuple[Row, ...]
    contains: tuple[str, ...]
    source: str
    example: str
    also: str = ""


CAUSE_PATTERNS: tuple[CausePattern, ...] = (
    CausePattern(
        "data_loading",
        ("range", "operator"),
        ("enumerate(DataLoader)#",),
        "PyTorch, around every batch taken from a loader; an operator in traces of 2021",
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
    ),
    CausePattern(
        "data_loading",
        ("frame",),
        ("torch/utils/data/",),
        "PyTorch, the loader, its workers' fetching and collating, data pipes, dataset wrappers",
        "torch/utils/data/dataloader.py(720): __next__",
        also=r"torch/utils/data/(?:dataloader|dataset|_utils/\w+|datapipes/[\w/]+)\.py\(",
    ),
    CausePattern(
        "data_loading",
        ("frame",),
        ("webdataset/", "torchdata/", "nvidia/dali/", "streaming/base/", "ffcv/", "litdata/"),
        "loaders: WebDataset, TorchData, DALI, MosaicML Streaming, FFCV, LitData",
        "site-packages/webdataset/pipeline.py(68): iterator",
        also=r"(?:^|/)(?:webdataset|torchdata|nvidia/dali|streaming/base|ffcv|litdata)/",
    ),
    CausePattern(
        "data_loading",
        ("frame",),
        ("datasets/",),
        "Hugging Face Datasets and Megatron, reading samples",
        "datasets/arrow_dataset.py(2777): __getitem__",
        also=r"(?:^|/)datasets/(?:arrow_dataset|iterable_dataset|formatting/\w+)\.py\(|megatron/core/datasets/",
    ),
    CausePattern(
        "data_loading",
        ("frame",),
        ("get_batch",),
        "Megatron and others, functions that fetch the next batch",
        "pretrain_gpt.py(81): get_batch",
        also=r"\.py\(\d+\): get_batch(?:_on_this_tp_rank)?$",
    ),
    CausePattern(
        "data_loading",
        ("range",),
        (
            "dataloader",
            "DataLoader",
            "Dataloader",
            "data_loader",
            "data_load",
            "data-loading",
            "data loading",
            "batch-generator",
            "get_batch",
            "next_batch",
            "fetch_batch",
            "load_batch",
            "[DALI]",
        ),
        "ranges that name their work: Megatron, Lightning, DALI, training scripts",
        "## data_load ##",
    ),
    CausePattern(
        "data_loading",
        ("range",),
        ("data", "Data", "DATA", "batch", "Batch", "input", "Input"),
        "training scripts' phases beside forward and backward: data, load data, next batch, fetch inputs",
        "data",
        also=r"(?i)^(?:(?:train|training)[ _.:/-]*)?(?:data|inputs?)"
        r"(?:[ _.:/-]*(?:wait|time|fetch\w*|load\w*|iter|next|prep\w*|pipeline))?$"
        r"|^(?:load|fetch|next|get|prepare|read|wait for)[ _.:/-]*(?:the )?(?:next )?(?:data|batch|inputs?)$",
    ),
    CausePattern(
        "host_synchronisation",
        ("launch",),
        ("Synchronize",),
        "CUDA and HIP: return when the device is done",
        "cudaStreamSynchronize_v3020",
        also=r"^(?:cuda|cu|hip)(?:Device|Stream|Event|Thread|Ctx)Synchronize$",
    ),
    CausePattern(
        "host_synchronisation",
        ("launch",),
        ("Memcpy",),
        "CUDA and HIP: copies between host and device that return when done",
        "hipMemcpyWithStream",
        also=r"^(?:cuda|cu|hip)Memcpy(?!\w*(?:Async|Peer|DtoD|DeviceToDevice))\w*$",
    ),
    CausePattern(
        "host_synchronisation",
        ("launch",),
        ("ynchroni", "EventWait", "EventsWait", "QueueFinish", "QueueSync", "EventHostWait"),
        "Level Zero, Unified Runtime, Ascend, Gaudi, MTIA, MUSA and Cambricon",
        "zeCommandQueueSynchronize",
        also=r"^ze\w*Synchronize$|^(?:ur|pi)(?:Event|Events|EventsAnd)Wait$|^(?:ur|pi)QueueFinish$"
        r"|^(?:AscendCL@)?aclrtSynchronize\w*$|^syn(?:Stream|Event|Device)Synchronize$"
        r"|^synchronize(?:Stream|Device|Event)?$|^mu(?:sa)?(?:Device|Stream|Event|Ctx)Synchronize$"
        r"|^cnrt(?:Queue|Device)Sync$|^cnrtWaitNotifier$",
    ),
    CausePattern(
        "host_synchronisation",
        ("operator", "range"),
        ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero"),
        "PyTorch: a value, or a size that depends on values, is needed on the host",
        "aten::_local_scalar_dense",
        also=r"^aten::(?:item|_local_scalar_dense|is_nonzero|nonzero)$",
    ),
    CausePattern(
        "host_synchronisation",
        ("range",),
        (" Sync", " sync"),
        "Kineto and Nsight Systems: what a host call waited for, as the device's side saw it",
        "Stream Sync",
        also=r"^(?:Context|Stream|Event) [Ss]ync(?:hronize)?$",
    ),
    CausePattern(
        "host_synchronisation",
        ("frame",),
        ("<built-in",),
        "PyTorch: values read on the host, events and devices waited for",
        "<built-in method item of Tensor object at 0x7f11dcef5090>",
        also=r"^<built-in (?:method (?:item|tolist|cpu|nonzero) of Tensor object"
        r"|method synchronize of \S*(?:Event|Stream)\w* object|function _cuda_synchronize>)",
    ),
    CausePattern(
        "host_synchronisation",
        ("frame",),
        ("torch/cuda/",),
        "PyTorch",
        "torch/cuda/__init__.py(975): synchronize",
        also=r"torch/cuda/(?:__init__|streams)\.py\(\d+\): synchronize$",
    ),
    CausePattern(
        "memory_allocator",
        ("launch",),
        ("cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaHostRegister", "cudaHostUnregister"),
        "CUDA runtime: memory from and to the driver, pinned memory",
        "cudaMalloc",
    ),
    CausePattern(
        "memory_allocator",
        ("launch",),
        ("cuMem",),
        "CUDA driver: memory, and the mapping that expandable segments do",
        "cuMemCreate",
        also=r"^cuMem(?:Alloc|Free|HostAlloc|HostRegister|HostUnregister|Create|Map|Unmap|Release|SetAccess"
        r"|AddressReserve|AddressFree)",
    ),
    CausePattern(
        "memory_allocator",
        ("launch",),
        ("hip",),
        "HIP",
        "hipMalloc",
        also=r"^hip(?:Malloc|ExtMalloc|Free|HostMalloc|HostFree|HostAlloc|HostRegister|HostUnregister"
        r"|Mem(?:Create|Map|Unmap|Release|SetAccess|AddressReserve|AddressFree)$)",
    ),
    CausePattern(
        "memory_allocator",
        ("launch",),
        ("Malloc", "Free", "USM", "MemAlloc", "VirtualMem", "PhysicalMem"),
        "Level Zero, Unified Runtime, Ascend, Gaudi, MUSA and Cambricon",
        "zeMemAllocDevice",
        also=r"^zeMem(?:Alloc\w+|Free)$|^ze(?:Virtual|Physical)Mem\w+$|^ur(?:USM|VirtualMem)(?:\w*Alloc|Free|Map|Unmap)$"
        r"|^(?:AscendCL@)?aclrt(?:Malloc\w*|Free\w*)$|^syn(?:Device|Host)(?:Malloc|Free)$"
        r"|^mu(?:sa)?(?:Malloc|Free)\w*$|^cnrt(?:Malloc|Free)\w*$",
    ),
    CausePattern(
        "memory_allocator",
        ("frame",),
        ("empty_cache", "_cuda_emptyCache"),
        "PyTorch: the cache given back to the driver",
        "torch/cuda/memory.py(218): empty_cache",
        also=r"torch/cuda/memory\.py\(\d+\): empty_cache$|^<built-in function _cuda_emptyCache>",
    ),
    CausePattern(
        "garbage_collection",
        ("range", "operator", "frame"),
        ("Python GC",),
        "PyTorch since late 2025, with stacks and `_ExperimentalConfig(record_python_gc_info=True)`",
        "Python GC",
        also=r"^Python GC$",
    ),
    CausePattern(
        "garbage_collection",
        ("frame",),
        ("<built-in",),
        "Python: gc.collect",
        "<built-in function collect>",
        also=r"^<built-in (?:function collect>|method collect of module object)",
    ),
    CausePattern(
        "garbage_collection",
        ("range",),
        ("gc", "garbage"),
        "ranges that name their work",
        "gc.collect",
        also=r"^gc$|\bgc\.collect\b|(?i:garbage[ _-]collect)",
    ),
    CausePattern(
        "compilation",
        ("launch",),
        (
            "cuModuleLoad",
            "cuLibraryLoad",
            "cuLinkCreate",
            "cuLinkAdd",
            "cuLinkComplete",
            "hipModuleLoad",
            "nvrtcCompile",
            "hiprtcCompile",
        ),
        "CUDA and HIP: code compiled, linked and loaded",
        "cuModuleLoadDataEx",
    ),
    CausePattern(
        "compilation",
        ("range",),
        ("oading", "ompiler"),
        "Kineto and Nsight Systems, overhead that is the application's own",
        "Lazy Function Loading",
        also=r"^(?i:lazy function loading|runtime (?:triggered )?module loading|driver (?:jit )?compiler)",
    ),
    CausePattern(
        "compilation",
        ("range", "operator"),
        ("(dynamo_timed)",),
        "PyTorch, phases of Dynamo, Inductor and their tuning; operators since 2.13",
        "compile_fx_inner (dynamo_timed)",
        also=r"\(dynamo_timed\)$",
    ),
    CausePattern(
        "compilation",
        ("operator",),
        ("dynamo",),
        "PyTorch since 2.13, all that Dynamo does to compile a frame",
        "dynamo",
        also=r"^dynamo$",
    ),
    CausePattern(
        "compilation",
        ("range", "operator"),
        (
            "entire_frame_compile",
            "compile_inner",
            "backend_compile",
            "compile_fx",
            "create_aot_dispatcher_function",
            "GraphLowering.",
            "Scheduler.codegen",
            "async_compile.wait",
            "benchmark_all_configs",
            "autotun",
            "Autotun",
        ),
        "PyTorch since 2.13, the same phases without the mark; and what calls itself tuning",
        "entire_frame_compile",
    ),
    CausePattern(
        "compilation",
        ("frame",),
        ("torch/_dynamo/",),
        "PyTorch Dynamo while it traces; `eval_frame.py` also runs what is compiled and proves nothing",
        "torch/_dynamo/convert_frame.py(715): _compile",
        also=r"torch/_dynamo/(?:convert_frame|symbolic_convert|output_graph|bytecode_transformation|variables/\w+)\.py\(",
    ),
    CausePattern(
        "compilation",
        ("frame",),
        ("torch/_inductor/",),
        "PyTorch Inductor while it compiles; the same files hold the functions that run what is compiled",
        "torch/_inductor/graph.py(2018): compile_to_module",
        also=r"torch/_inductor/(?:graph|scheduler|lowering|select_algorithm|codegen/[\w/]+)\.py\("
        r"|torch/_inductor/compile_fx\.py\(\d+\): (?:_?compile_fx|_?compile_fx_inner|fx_codegen_and_"
        r"compile|codegen_and_compile)$"
        r"|torch/_inductor/runtime/\w+\.py\(\d+\): (?:precompile|_precompile_\w+|benchmark_all_"
        r"configs|autotune_to_one_config)$",
    ),
    CausePattern(
        "compilation",
        ("frame",),
        ("triton/",),
        "Triton while it compiles and tunes; a launch passes through the same files",
        "triton/compiler/compiler.py(226): compile",
        also=r"triton/compiler/(?:compiler\.py\(\d+\): compile$|code_generator\.py\()"
        r"|triton/backends/\w+/compiler\.py\(\d+\): make_\w+$"
        r"|triton/runtime/(?:autotuner\.py\(\d+\): (?:_bench|benchmark)|jit\.py\(\d+\): _do_compile)$"
        r"|triton/testing\.py\(\d+\): do_bench",
    ),
    CausePattern(
        "compilation",
        ("frame",),
        ("torch/utils/cpp_extension.py", "torch/_functorch/"),
        "PyTorch, extensions built on first use and the split of forward and backward graphs",
        "torch/utils/cpp_extension.py(1980): _jit_compile",
        also=r"cpp_extension\.py\(\d+\): (?:load|load_inline|_jit_compile)$"
        r"|torch/_functorch/aot_autograd\.py\(\d+\): (?:aot_module_simplified|create_aot_dispatcher_"
        r"function)$",
    ),
    CausePattern(
        "initialisation",
        ("launch",),
        (
            "cuInit",
            "cuDevicePrimaryCtxRetain",
            "cuCtxCreate",
            "hipInit",
            "hipDevicePrimaryCtxRetain",
            "ncclCommInit",
        ),
        "CUDA, HIP and NCCL: what is made once, on first use",
        "cuDevicePrimaryCtxRetain",
    ),
    CausePattern(
        "initialisation",
        ("frame",),
        ("torch/cuda/__init__.py", "torch/distributed/distributed_c10d.py"),
        "PyTorch: the device's context and process groups",
        "torch/cuda/__init__.py(359): _lazy_init",
        also=r"torch/cuda/__init__\.py\(\d+\): (?:_lazy_init|init)$"
        r"|torch/distributed/distributed_c10d\.py\(\d+\): "
        r"(?:init_process_group|new_group|_new_process_group_helper)$",
    ),
    CausePattern(
        "initialisation",
        ("range",),
        ("arm", "nitiali", "ncclCommInit"),
        "ranges that say so; a schedule that warms a learning rate up does not",
        "warm-up",
        also=r"^ncclCommInit|^(?i:(?!.*(?:lr|learning|sched|linear|cosine|lambda))(?:.*[^a-z])?"
        r"(?:warm[-_ ]?up|warming[-_ ]up|initiali[sz]ation)(?:[^a-z].*)?)$",
    ),
    CausePattern(
        "checkpoint_logging",
        ("frame",),
        ("torch/serialization.py", "torch/distributed/checkpoint/"),
        "PyTorch, saving and loading of state; activation checkpointing lives elsewhere",
        "torch/serialization.py(943): save",
        also=r"torch/serialization\.py\(\d+\): (?:save|_save|_legacy_save|load|_load|_legacy_load)$"
        r"|torch/distributed/checkpoint/",
    ),
    CausePattern(
        "checkpoint_logging",
        ("frame",),
        ("checkpoint", "safetensors/"),
        "Megatron, DeepSpeed, Lightning, Transformers, Accelerate and safetensors, saving of state",
        "megatron/training/checkpointing.py(440): save_checkpoint",
        also=r"megatron/(?:training/checkpointing\.py|core/dist_checkpointing/)|deepspeed/runtime/checkpoint_engine/"
        r"|: _?save_(?:checkpoint|model|pretrained)$|accelerate/checkpointing\.py|"
        r"safetensors/torch\.py\(\d+\): save",
    ),
    CausePattern(
        "checkpoint_logging",
        ("frame",),
        (
            "logging/__init__.py",
            "tqdm/",
            "rich/",
            "wandb/",
            "tensorboard",
            "mlflow/",
            "comet_ml/",
            "neptune/",
            "clearml/",
        ),
        "Python's logging, progress bars and experiment trackers, without the threads that they keep",
        "logging/__init__.py(1529): info",
        also=r"(?!.*: run$)(?:(?:^|/)(?:logging/__init__\.py\(|tqdm/(?:std|asyncio|utils)\.py"
        r"|(?:rich|wandb|tensorboardX?|mlflow|comet_ml|neptune|clearml)/)|torch/utils/tensorboard/)",
    ),
    CausePattern(
        "checkpoint_logging",
        ("frame",),
        ("<built-in",),
        "Python, print",
        "<built-in function print>",
        also=r"^<built-in (?:function print>|method write of _io\.TextIOWrapper)",
    ),
    CausePattern(
        "checkpoint_logging",
        ("range",),
        (
            "save_checkpoint",
            "save-checkpoint",
            "checkpoint_save",
            "checkpoint save",
            "checkpoint.save",
            "torch.save",
            "save_model",
            "wandb",
            "tensorboard",
        ),
        "ranges that name their work: Megatron, training scripts",
        "save-checkpoint",
    ),
    CausePattern(
        "pipeline_bubble",
        ("range",),
        (
            "recv_forward",
            "recv_backward",
            "forward-recv",
            "backward-recv",
            "pipe_recv_input",
            "pipe_recv_grad",
        ),
        "Megatron and DeepSpeed: the host waits for the neighbouring stage",
        "forward-recv",
    ),
    CausePattern(
        "pipeline_bubble",
        ("operator",),
        ("c10d::recv_",),
        "PyTorch, receive from another rank",
        "c10d::recv_",
        also=r"^c10d::recv_(?:any_source_)?$",
    ),
    CausePattern(
        "pipeline_bubble",
        ("frame",),
        ("recv",),
        "Megatron, DeepSpeed and PyTorch pipelining, receive from the neighbouring stage",
        "megatron/core/pipeline_parallel/p2p_communication.py(395): recv_forward",
        also=r"(?:megatron/core/pipeline_parallel|deepspeed/runtime/pipe|torch/distributed/pipelining)/"
        r"\S*: \w*recv\w*$"
        r"|torch/distributed/distributed_c10d\.py\(\d+\): recv$",
    ),
)

_RECOGNISERS: dict[Row, Recogniser[CausePattern]] = {
    row: Recogniser(pattern for pattern in CAUSE_PATTERNS if row in pattern.rows)
    for row in ("range", "operator", "frame", "launch")
}
# Nsight Systems adds the version of an API call to its name, and ids to the ranges of operators.
_SUFFIX: dict[Row, re.Pattern[str]] = {
    "launch": re.compile(r"(?:_pt[sd][zs])?(?:_v\d+)?$"),
    "range": re.compile(r", (?:seq|op_id) = .*", re.DOTALL),
    "operator": re.compile(r", (?:seq|op_id) = .*", re.DOTALL),
}


def cause_of(names: Iterable[str], row: Row) -> pl.DataFrame:
    """One row per distinct name of a host row: the cause of idleness that it proves, null when none.

    `row` says what the names are: ranges (with the profiler's overhead and synchronisation rows), operators,
    Python frames, or API calls.
    """
    distinct = list(dict.fromkeys(names))
    suffix = _SUFFIX.get(row)
    texts = [suffix.sub("", name[:LONGEST]) for name in distinct] if suffix else distinct
    found = _RECOGNISERS[row].first(texts)
    return pl.DataFrame(
        {"name": distinct, "cause": [pattern.cause if pattern else None for pattern in found]},
        schema={"name": pl.String(), "cause": pl.String()},
    )


# What runs code that was compiled before, also inside what compiles.
COMPILED = (
    r"^(?:autograd::engine::evaluate_function: )?CompiledFunction|^Torch-Compiled Region"
    r"|^## Call CompiledFxGraph"
)

_CAPTURE = re.compile(r"^(?:cuda|cu|hip)Stream(Begin|End)Capture")


def captures(
    calls: pl.LazyFrame, names: Iterable[str], by: Sequence[str] = ("rank", "thread")
) -> pl.LazyFrame:
    """When a thread captured a graph: `by`, start, end, and the name of the call that began it.

    Between the two calls whatever the thread launches becomes part of the graph, and none of it runs. A call
    without its counterpart on its thread proves no capture. `names` are the names in `calls`, each once.
    """
    role = {name: found[1] for name in names if (found := _CAPTURE.match(name))}
    lane = list(by)
    begins = pl.col("name").is_in([name for name, which in role.items() if which == "Begin"])
    depth, level = pl.col("_depth"), [*lane, "_level"]
    return (
        calls.filter(pl.col("name").is_in(list(role)))
        .select(*lane, "start", "end", "name", _begins=begins)
        .sort(*lane, "start", "end")
        .with_columns(_depth=pl.when("_begins").then(1).otherwise(-1).cum_sum().over(lane))
        # An end that nothing began leaves the depth where it was.
        .with_columns(_depth=depth - depth.cum_min().clip(upper_bound=0).over(lane))
        .with_columns(_level=pl.when("_begins").then(depth).otherwise(depth.shift(1).over(lane)))
        .filter(pl.col("_level") > 0)
        # Within one depth, begins and ends take turns.
        .with_columns(end=pl.col("end").shift(-1).over(level), _next=pl.col("_begins").shift(-1).over(level))
        .filter(pl.col("_begins") & ~pl.col("_next"))
        .select(*lane, "start", "end", "name")
    )
