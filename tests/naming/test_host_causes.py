"""What the names of host rows prove, and, as important, what they do not."""

from __future__ import annotations

import time
from typing import Any, get_args

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lostflops.accounts import ACCOUNTS, IDLE
from lostflops.accounts.account import Row
from lostflops.naming.host_causes import CAUSE_PATTERNS, captures, cause_of
from lostflops.naming.patterns import Recogniser

ROWS: tuple[Row, ...] = get_args(Row)
CASES = [(pattern, row) for pattern in CAUSE_PATTERNS for row in pattern.rows]


def cause(name: str, row: Row) -> str | None:
    return cause_of([name], row)["cause"].item()


@pytest.mark.parametrize(("pattern", "row"), CASES, ids=lambda x: getattr(x, "example", x)[:50])
def test_a_pattern_claims_its_own_example(pattern: Any, row: Row) -> None:
    assert cause(pattern.example, row) == pattern.cause
    of_row = Recogniser(p for p in CAUSE_PATTERNS if row in p.rows)
    without_version = pattern.example.removesuffix("_v3020")
    assert of_row.first([without_version]) == [pattern]


def test_checkpoints_and_waits_are_told_with_what_they_copy() -> None:
    told = [name for name, account in ACCOUNTS.items() if account.loss and account.loss.takes_copies]
    assert told == ["idle.checkpoint_logging", "idle.host_synchronisation"]


def test_every_cause_can_be_proved() -> None:
    proved = {pattern.cause for pattern in CAUSE_PATTERNS} | {"graph_capture"}  # by two calls
    assert {f"idle.{cause}" for cause in proved} == {account.name for account in IDLE if account.proven}


# By the order in which causes claim an instant, from which share of the step on idle time of each is told.
TOLD_FROM = {
    "graph_capture": 0.01,
    "data_loading": 0.05,
    "checkpoint_logging": 0.01,
    "garbage_collection": 0.01,
    "compilation": 0.01,
    "initialisation": 0.01,
    "memory_allocator": 0.01,
    "pipeline_bubble": 0.03,
    "host_synchronisation": 0.03,
    "long_call": 0.01,
    "launch_bound": 0.05,
    "dependency": 0.05,
    "other_device": 0.05,
    "other_host_work": 0.05,
    "unrecorded": 0.05,
    "unexplained": 0.1,
}


def test_causes_claim_in_this_order_and_are_told_from_these_shares_on() -> None:
    ordered = sorted(IDLE, key=lambda account: account.order)
    found = {a.name.removeprefix("idle."): a.loss.from_share for a in ordered if a.loss}
    assert list(found.items()) == list(TOLD_FROM.items())
    # What is no cause that a row proves, or that nothing removes, promises no gain.
    bounds = [a.name for a in ordered if a.loss and not a.loss.removable]
    assert bounds == ["idle.dependency", "idle.other_device", "idle.unrecorded", "idle.unexplained"]


# Causes that a row proves by its name, as sentences have them: the verdict; "its data loader makes" a rank
# late; a late rank has more "of data loading"; what to try, what else, and what to ask `lostflops whatif`.
SAID = {
    "data_loading": (
        "Input-bound", "its data loader makes", "of data loading",
        ("loader-workers", "tokenise-ahead"), (), "loader=0ms",
    ),
    "checkpoint_logging": (
        "Held up by checkpoints or logging", "its checkpoints or logging make", "of checkpoints or logging",
        ("async-checkpoint",), ("log-less",), "host:checkpoint-logging=0ms",
    ),
    "compilation": (
        "Held up by compilation", "compilation on it makes", "of compilation",
        ("steady-shapes",), (), "host:compilation=0ms",
    ),
    "memory_allocator": (
        "Allocator-bound", "its memory allocator makes", "of device memory allocation",
        ("allocator-settings",),
        ("checkpoint-activations", "offload-activations", "offload-optimizer", "offload-parameters",
         "unified-memory"),
        "host:memory-allocator=0ms",
    ),
    "host_synchronisation": (
        "Synchronisation-bound", "its synchronising makes", "of waiting for the device",
        ("remove-syncs",), (), "no-sync",
    ),
}  # fmt: skip


def test_causes_are_said_and_mended_in_these_words() -> None:
    known = {account.name.removeprefix("idle."): account for account in IDLE}
    for name, said in SAID.items():
        account = known[name]
        assert account.loss is not None
        loss = account.loss
        words = (account.verdict, account.makes_late, account.spent)
        assert (*words, loss.remedies, loss.also, loss.edit) == said
    assert {name: account.noun for name, account in known.items() if account.noun and name in SAID} == {
        "checkpoint_logging": "checkpoints and logging"
    }
    waits = known["host_synchronisation"]
    assert waits.loss is not None and waits.loss.on_host == "inside calls of communication"
    assert waits.advice(True).startswith("Communicate in fewer and larger calls")


# Names that prove a cause, row by row; with the patterns' own examples one for each piece of text that a
# pattern looks for.
PROVING: dict[tuple[str, Row], str] = {
    ("data_loading", "frame"): """
        torchdata/stateful_dataloader/worker.py(1): _worker_loop; nvidia/dali/pipeline.py(1): run
        streaming/base/dataset.py(1): __iter__; ffcv/loader/epoch_iterator.py(1): __next__
        litdata/streaming/reader.py(1): read""",
    ("data_loading", "range"): """
        MyDataLoader; Dataloader wait; data_loader; data-loading; data loading; batch-generator; get_batch
        next_batch; fetch_batch; load_batch; [DALI] pipeline; Data; DATA; next batch
        Get Batch; input; Input; next (train_iter); next(self.loader)""",
    ("checkpoint_logging", "frame"): """
        safetensors/torch.py(286): save_file; tqdm/std.py(1181): __iter__; rich/console.py(1): print
        torch/utils/tensorboard/writer.py(1): add_scalar; mlflow/tracking/fluent.py(1): log_metric
        comet_ml/experiment.py(1): log_metric; neptune/run.py(1): log; clearml/logger.py(1): report""",
    ("checkpoint_logging", "range"): """
        save_checkpoint; checkpoint_save; checkpoint save; checkpoint.save; torch.save; save_model; wandb.log
        safetensors.save_file; tensorboard; Logging; LOG; log metrics; train_log; Save state
        Saving checkpoint; writing checkpoint; Write state_dict; dump weights 3; Dump ckpt""",
    ("garbage_collection", "range"): "garbage collection",
    (
        "compilation",
        "launch",
    ): """
        cuLinkCreate_v2; cuLinkAddData_v2; cuLinkComplete; nvrtcCompileProgram; hiprtcCompileProgram""",
    ("compilation", "range"): """
        _compile.compile_inner; OutputGraph.call_user_compiler.backend_compile; compile_fx_inner
        create_aot_dispatcher_function; GraphLowering.run; Scheduler.codegen; async_compile.wait
        benchmark_all_configs; triton autotune; Autotuner.run""",
    ("compilation", "frame"): "torch/_functorch/aot_autograd.py(1010): aot_module_simplified",
    (
        "initialisation",
        "launch",
    ): "cuInit; cuCtxCreate_v2; hipInit; ncclCommInitRank; hipDevicePrimaryCtxRetain",
    ("initialisation", "frame"): "torch/distributed/distributed_c10d.py(1361): init_process_group",
    ("initialisation", "range"): "ncclCommInitRank",
    ("memory_allocator", "launch"): """
        cudaHostAlloc; cudaHostRegister; cudaHostUnregister; zeMemFree; zeVirtualMemReserve
        zePhysicalMemCreate""",
    ("pipeline_bubble", "range"): "recv_forward; pipe_recv_input; pipe_recv_grad",
    ("host_synchronisation", "launch"): """
        urEventWait; piEventsWait; urQueueFinish; cnrtQueueSync; cnrtWaitNotifier""",
    ("host_synchronisation", "operator"): "aten::item; aten::is_nonzero; aten::nonzero",
}
LISTED = [
    (name.strip(), row, cause)
    for (cause, row), names in PROVING.items()
    for name in names.strip().replace("\n", ";").split(";")
]


def test_every_piece_of_text_that_a_pattern_looks_for_is_needed_by_some_name() -> None:
    known = [(name, row) for name, row, _ in LISTED + PROVES]
    known += [(pattern.example, row) for pattern, row in CASES]
    needed: set[tuple[Any, str]] = set()
    for name, row in known:
        text = name.partition("_v")[0] if row == "launch" else name
        found = Recogniser(p for p in CAUSE_PATTERNS if row in p.rows).first([text])[0]
        inside = [piece for piece in found.contains if piece in text] if found else []
        needed |= {(found, piece) for piece in inside if len(inside) == 1}
    every = {(pattern, piece) for pattern in CAUSE_PATTERNS for piece in pattern.contains}
    assert sorted((p.cause, piece) for p, piece in every - needed) == []


PROVES: list[tuple[str, Row, str]] = [
    ("tools/train.py(97): snapshot", "frame", "checkpoint_logging"),
    ("logging/__init__.py(1517): debug", "frame", "checkpoint_logging"),
    ("tools/train.py(97): _save_model_state", "frame", "checkpoint_logging"),
    ("tools/train.py(97): dump_state_dict", "frame", "checkpoint_logging"),
    ("tools/train.py(97): write_ckpt", "frame", "checkpoint_logging"),
    ("cudaStreamSynchronize_v3020", "launch", "host_synchronisation"),
    ("cudaDeviceSynchronize_ptsz_v7000", "launch", "host_synchronisation"),
    ("hipStreamSynchronize_spt", "launch", "host_synchronisation"),
    ("cuCtxSynchronize", "launch", "host_synchronisation"),
    ("cudaMemcpy", "launch", "host_synchronisation"),
    ("cudaMemcpy2DToArray_v3020", "launch", "host_synchronisation"),
    ("cuMemcpyHtoD_v2", "launch", "host_synchronisation"),
    ("cudaFree", "launch", "memory_allocator"),
    ("cuMemAddressReserve", "launch", "memory_allocator"),
    ("cuMemUnmap", "launch", "memory_allocator"),
    ("cuMemAlloc_v2", "launch", "memory_allocator"),
    ("hipHostMalloc", "launch", "memory_allocator"),
    ("hipModuleLoadData", "launch", "compilation"),
    ("cuLibraryLoadData", "launch", "compilation"),
    ("aten::item, op_id = 317127", "range", "host_synchronisation"),
    ("Context Sync", "range", "host_synchronisation"),
    ("Stream sync", "range", "host_synchronisation"),
    ("Runtime Triggered Module Loading", "range", "compilation"),
    ("Driver JIT compiler (CUDA)", "range", "compilation"),
    ("CachingAutotuner.benchmark_all_configs (dynamo_timed)", "range", "compilation"),
    ("backward-send-forward-recv", "range", "pipeline_bubble"),
    ("forward-send-backward-recv", "range", "pipeline_bubble"),
    ("send_forward_recv_backward", "range", "pipeline_bubble"),
    ("[pl][profile]run_training_epoch.train_dataloader_next", "range", "data_loading"),
    ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "operator", "data_loading"),
    ("torch/utils/data/_utils/fetch.py(54): <listcomp>", "frame", "data_loading"),
    ("<built-in method tolist of Tensor object at 0x7f11dcef5090>", "frame", "host_synchronisation"),
    ("<built-in method synchronize of torch.Event object at 0x7f3ab8>", "frame", "host_synchronisation"),
    ("<built-in function _cuda_emptyCache>", "frame", "memory_allocator"),
    ("torch/_dynamo/symbolic_convert.py(1346): run", "frame", "compilation"),
    ("torch/_inductor/codegen/triton.py(4071): codegen_kernel", "frame", "compilation"),
    ("torch/distributed/checkpoint/state_dict_saver.py(62): save", "frame", "checkpoint_logging"),
    ("transformers/trainer.py(3208): _save_checkpoint", "frame", "checkpoint_logging"),
    ("wandb/sdk/wandb_run.py(1760): log", "frame", "checkpoint_logging"),
    ("torch/distributed/pipelining/schedules.py(1601): _wait_recv", "frame", "pipeline_bubble"),
    ("dynamo", "operator", "compilation"),
    ("_compile.compile_inner (dynamo_timed)", "operator", "compilation"),
    ("warmup", "range", "initialisation"),
    ("## Warm-Up ##", "range", "initialisation"),
    ("model_warmup_step 3", "range", "initialisation"),
    ("CUDA initialization", "range", "initialisation"),
    ("zeEventHostSynchronize", "launch", "host_synchronisation"),
    ("aclrtSynchronizeStream", "launch", "host_synchronisation"),
    ("synchronizeStream", "launch", "host_synchronisation"),
    ("urUSMDeviceAlloc", "launch", "memory_allocator"),
    ("aclrtMallocPhysical", "launch", "memory_allocator"),
    # Pieces within a longer name: the whole of it is none that another pattern knows.
    *(
        (f"my {piece} (3)", "range", "data_loading")
        for piece in (
            "data loading",
            "data-loading",
            "data_load",
            "batch-generator",
            "get_batch",
            "next_batch",
            "fetch_batch",
            "load_batch",
        )
    ),
]


@pytest.mark.parametrize(("name", "row", "expected"), PROVES + LISTED)
def test_a_name_that_proves_a_cause(name: str, row: Row, expected: str) -> None:
    assert cause(name, row) == expected


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("cudaMemcpyAsync", "launch"),
        ("cudaMemcpyPeer", "launch"),
        ("cuMemcpyDtoD_v2", "launch"),
        ("cudaStreamWaitEvent", "launch"),
        ("cudaEventQuery_v3020", "launch"),
        ("cudaMemsetAsync", "launch"),
        ("cudaMemGetInfo", "launch"),
        ("cuKernelGetAttribute", "launch"),
        ("hipGetDevicePropertiesR0600", "launch"),
        ("hipMemcpyAsync", "launch"),
        ("cudaGraphInstantiate", "launch"),
        ("Stream Wait Event", "range"),
        ("lr_warmup", "range"),
        ("LinearWarmup.step", "range"),
        ("warmup_scheduler", "range"),
        ("swarmupdate", "range"),
        ("initialize_batch", "range"),
        ("prepare_inputs", "range"),  # the Trainer's moves them to the device
        ("dynamo_guard", "operator"),
        ("enqueueCommand waitOnEvent", "launch"),
        ("urEnqueueKernelLaunch", "launch"),
        ("urEnqueueEventsWaitWithBarrier", "launch"),  # the queue waits, not the host
        ("torch/cuda/__init__.py(182): is_available", "frame"),
        # Each backward pass asks, and logs nothing.
        ("logging/__init__.py(1720): getEffectiveLevel", "frame"),
        ("logging/__init__.py(1734): isEnabledFor", "frame"),
        ("urUSMGetMemAllocInfo", "launch"),
        ("train.py(9): maybe_empty_cache", "frame"),
        ("my (dynamo_timed) helper", "range"),
        ("torch/cuda/streams.py(101): record_event", "frame"),
        ("Stream wait sync", "range"),
        ("Buffer Flush", "range"),
        ("Command Buffer Full", "range"),
        ("forward", "range"),
        ("logits", "range"),
        ("save_for_backward", "range"),
        ("next(model)", "range"),
        ("Torch-Compiled Region: 0/0", "range"),
        ("## Call CompiledFxGraph f5ii8ddivzklxr7hd6chn ##", "range"),
        ("TorchDynamo Cache Lookup", "range"),
        ("CompiledFunction", "operator"),
        ("aten::copy_", "operator"),
        ("aten::nonzero_static", "operator"),
        ("c10d::send", "operator"),
        ("torch/_dynamo/eval_frame.py(1039): _fn", "frame"),
        ("torch/_inductor/compile_fx.py(1767): run", "frame"),
        ("torch/_inductor/compile_worker/subproc_pool.py(228): _read_thread", "frame"),
        ("triton/compiler/compiler.py(487): launch_metadata", "frame"),
        ("triton/runtime/jit.py(574): run", "frame"),
        ("torch/utils/checkpoint.py(343): checkpoint", "frame"),
        ("torch/distributed/algorithms/_checkpoint/checkpoint_wrapper.py(144): forward", "frame"),
        ("nn.Module: CheckpointWrapper_0", "frame"),
        ("torch/utils/data/graph.py(7): traverse", "frame"),
        ("mywebdataset/pipeline.py(68): iterator", "frame"),
        ("mydatasets/reader.py(7): read", "frame"),
        ("train.py(5): get_batch_size", "frame"),
        ("a batch of inputs", "range"),
        ("torch/serialization.py(7): _is_zipfile", "frame"),
        ("train.py(5): find_checkpoint", "frame"),
        ("torch/_functorch/aot_autograd.py(7): forward", "frame"),
        ("tqdm/_monitor.py(69): run", "frame"),
        ("<built-in method items of dict object at 0x7860393c0880>", "frame"),
        ("<built-in method item of numpy.int32 object at 0x7f1736e0fa50>", "frame"),
        ("collections/__init__.py(1137): __setitem__", "frame"),
        ("", "frame"),
    ],
)
def test_a_name_that_proves_nothing(name: str, row: Row) -> None:
    assert cause(name, row) is None


def test_one_row_per_distinct_name_in_the_order_given() -> None:
    found = cause_of(["cudaMalloc", "cudaLaunchKernel", "cudaMalloc", "cudaFree"], "launch")
    assert found["name"].to_list() == ["cudaMalloc", "cudaLaunchKernel", "cudaFree"]
    assert found["cause"].to_list() == ["memory_allocator", None, "memory_allocator"]
    assert cause_of([], "range").schema == found.schema == pl.Schema({"name": pl.String, "cause": pl.String})


PIECES = [
    *sorted({piece for p in CAUSE_PATTERNS for piece in p.contains}),
    ".py(1): ",
    "/",
    "recv",
    "a",
    "torch/",
]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text() | st.lists(st.sampled_from(PIECES)).map("".join)), st.sampled_from(ROWS))
def test_any_text_gets_a_known_cause_or_none(names: list[str], row: Row) -> None:
    found = cause_of(names, row)
    assert found["name"].to_list() == list(dict.fromkeys(names))
    assert {f"idle.{cause}" for cause in found["cause"].drop_nulls()} <= {a.name for a in IDLE if a.proven}


@pytest.mark.parametrize("row", ROWS)
def test_long_names_take_no_time(row: Row) -> None:
    names = [piece * (10**5 // len(piece)) for piece in PIECES]
    began = time.perf_counter()
    cause_of(names, row)
    assert time.perf_counter() - began < 10e-3 * len(names)


# -- captures -----------------------------------------------------------------------------------------------


def captured(*calls: tuple[int, int, int, str]) -> list[tuple[int, int, int, str]]:
    """Thread, start, end and name of the captures that calls (in the same columns) prove."""
    schema = {"thread": pl.Int64, "start": pl.Int64, "end": pl.Int64, "name": pl.Categorical()}
    table = pl.DataFrame(calls, schema=schema, orient="row")
    names = table["name"].unique().cast(pl.String).to_list()
    return sorted(captures(table.lazy(), names, by=["thread"]).collect().rows())


@pytest.mark.parametrize("api", ["cuda", "hip", "cu"])
def test_a_capture_lasts_from_the_call_that_begins_it_to_the_end_of_the_one_that_ends_it(api: str) -> None:
    begin = f"{api}StreamBeginCapture"
    calls = [(7, 2, 3, begin), (7, 5, 6, f"{api}LaunchKernel"), (7, 8, 11, f"{api}StreamEndCapture")]
    assert captured(*calls) == [(7, 2, 11, begin)]
    # As the driver and Nsight Systems spell them.
    for old, new in (
        ("Capture", "Capture_v2"),
        ("Capture", "Capture_ptsz"),
        ("BeginCapture", "BeginCaptureToGraph"),
    ):
        spelled = [(*call[:3], call[3].replace(old, new)) for call in calls]
        assert [row[:3] for row in captured(*spelled)] == [(7, 2, 11)]


@pytest.mark.parametrize("name", ["cudaStreamIsCapturing", "cudaStreamGetCaptureInfo", "cudaGraphLaunch"])
def test_calls_that_neither_begin_nor_end_a_capture_prove_none(name: str) -> None:
    assert captured((7, 2, 3, name), (7, 8, 11, "cudaStreamEndCapture")) == []


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([7, 8]), st.sampled_from("BE")), max_size=12))
def test_each_end_closes_the_last_capture_still_open_on_its_thread(calls: list[tuple[int, str]]) -> None:
    """And what has no counterpart proves no capture."""
    names = {"B": "cudaStreamBeginCapture", "E": "cudaStreamEndCapture"}
    rows = [(thread, 3 * at, 3 * at + 2, names[kind]) for at, (thread, kind) in enumerate(calls)]
    open_on: dict[int, list[int]] = {7: [], 8: []}
    expected: list[tuple[int, int, int, str]] = []
    for at, (thread, kind) in enumerate(calls):
        if kind == "B":
            open_on[thread].append(3 * at)
        elif open_on[thread]:
            expected.append((thread, open_on[thread].pop(), 3 * at + 2, names["B"]))
    assert captured(*reversed(rows)) == sorted(expected)


def test_captures_nest_and_an_end_that_nothing_began_closes_none() -> None:
    begin, end = "cudaStreamBeginCapture", "cudaStreamEndCapture"
    calls = [(7, 3 * at, 3 * at + 1, begin if kind == "B" else end) for at, kind in enumerate("EEBBEE")]
    assert captured(*reversed(calls)) == [(7, 6, 16, begin), (7, 9, 13, begin)]
    assert captured((8, 0, 1, end), *reversed(calls), (8, 7, 8, begin)) == captured(*calls)


def test_calls_of_a_capture_count_in_the_order_of_their_starts_and_then_of_their_ends() -> None:
    begin, end = "cudaStreamBeginCapture", "cudaStreamEndCapture"
    assert captured((7, 4, 6, end), (7, 2, 9, begin)) == [(7, 2, 6, begin)]
    assert captured((7, 2, 5, end), (7, 2, 2, begin)) == [(7, 2, 5, begin)]
    assert captured((7, 2, 2, begin), (7, 2, 5, end)) == [(7, 2, 5, begin)]


@pytest.mark.parametrize(
    "function",
    ["snapshots_of", "save_for_backward", "load_state", "state", "preserve_rng_state", "save_stated"],
)
def test_a_name_that_only_reminds_of_saving_proves_none(function: str) -> None:
    assert cause(f"tools/train.py(97): {function}", "frame") is None
