"""Traces with bytes changed at random are refused with a LostflopsError or give a ledger that adds up.

LOSTFLOPS_FUZZ_SECONDS sets how long to look for more, from another seed each time and with every recipe.
"""

from __future__ import annotations

import gzip
import itertools
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from kineto_files import call, head, kernel, one_step, operator, span, step, trace
from lostflops.errors import LostflopsError
from lostflops.ingest import job
from lostflops.recipes import recipes
from lostflops.session import Session, Skipped

LONG = "LOSTFLOPS_FUZZ_SECONDS" in os.environ
SECONDS = float(os.environ.get("LOSTFLOPS_FUZZ_SECONDS", "4"))
REAL = Path(__file__).parents[3] / "shared" / "traces" / "kineto"
# Small ones of every kind: CUDA and ROCm, synchronisation, graphs, Triton, gloo, 2021 to 2026.
SMALL = (
    "aorta/smci350_200691", "hta/amd_trace__mi250", "hta/critical_path__cuda_event_sync_multi_stream",
    "hta/cpu_only__rank-34.Jul", "hta/trace_compare__base", "hta/triton_example", "kineto_tb/after_fix",
    "kineto_tb/tb_plugin_gpu_metrics_input", "tracelens/torch_compile_triton", "hta/large_integer_trace",
    "hta/trace_file_list", "hta/critical_path__end_to_end__simple_add__input",
)  # fmt: skip


def several_ranks() -> bytes:
    """A trace of our own with one row of every kind that is read."""
    group = {
        "Collective name": "allreduce", "In msg nelems": 64, "Out msg nelems": 64, "dtype": "Float",
        "Group size": 2, "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Rank": 0,
    }  # fmt: skip
    nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage)"
    moved = {"device": 0, "stream": 7, "correlation": 6, "bytes": 4096}
    events = [
        *one_step(),
        step(8, 1115, 90),
        operator("record_param_comms", 1120, 9, more=group),
        call(1122, 3, 5),
        kernel(1130, 22.5, 5, nccl, 20, **group),
        span("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 1160, 4, 7, **moved),
        span("cuda_runtime", "cudaMemcpyAsync", 1155, 2, 1, correlation=6),
        span("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 1170, 20),
        span("python_function", "torch/optim/adamw.py(220): step", 1180, 10),
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": 1121,
         "args": {"Addr": 99, "Bytes": 512, "Device Type": 1, "Device Id": 0, "Total Allocated": 512}},
        {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 1210.125},
    ]  # fmt: skip
    return trace(events, head(0, 2, baseTimeNanoseconds=1_790_857_026_000_000_000))


def seeds() -> list[bytes]:
    found = [next(iter(REAL.glob(f"{name}*.gz")), None) for name in SMALL]
    return [several_ranks(), *(gzip.decompress(path.read_bytes()) for path in found if path is not None)]


SEEDS = seeds()
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
KEY = re.compile(rb'"(?:ts|dur|cat|name|pid|tid|ph|device|stream|correlation|bytes|[A-Z][\w ]+)": ')
VALUES = (
    b"null", b"true", b'""', b'"x"', b"[]", b"{}", b"-1", b"0", b"0.5", b"1e308", b"NaN", b"-Infinity",
    b"9007199254740993", b"18446744073709551615", b"-9223372036854775809", b"99999999999999999999999999",
    b'"kernel"', b'"cpu_op"', b'"user_annotation"', b'"ProfilerStep#1"', b'"Memcpy PtoP (Device -> Device)"',
    b'"nccl:all_reduce"', b'"gloo:send"', b'"c10d::recv_"', b'"\\ud800"', b'"\xff"', b'"a"b"',
    b"1712345678901234.567", b"[[4, 5], [6]]", b"86400000000", b"1e15",
)  # fmt: skip


KINDS = ("flip", "delete", "double", "copy", "cut", "swap", "value", "value", "value")


@st.composite
def changed(draw: st.DrawFn) -> bytes:
    """A seed with some bytes flipped, spans deleted or doubled, numbers swapped, values replaced."""
    text = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 5))):
        if not text:
            break
        at = draw(st.integers(0, len(text) - 1))
        kind = draw(st.sampled_from(KINDS))
        until = min(len(text), at + draw(st.sampled_from((1, 2, 7, 40, 300, 5000))))
        if kind == "flip":
            text[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "delete":
            del text[at:until]
        elif kind == "double":
            text[at:at] = text[at:until]
        elif kind == "copy":
            to = draw(st.integers(0, len(text) - 1))
            text[to:to] = text[at:until]
        elif kind == "cut":
            del text[at:]
        elif kind == "swap":
            found = [m for m in (NUMBER.search(text, at), NUMBER.search(text, len(text) - at)) if m]
            if len(found) == 2:
                first, second = sorted(found, key=lambda m: m.start())
                if first.end() <= second.start():
                    text[second.start() : second.end()] = first[0]
                    text[first.start() : first.end()] = second[0]
        elif (key := KEY.search(text, at)) is not None:
            end = re.compile(rb"[,}\n]").search(text, key.end())
            if end is not None:
                text[key.end() : end.start()] = draw(st.sampled_from(VALUES))
    return bytes(text)


@st.composite
def packed_and_changed(draw: st.DrawFn) -> bytes:
    """One of the seeds compressed, then cut, or with a bit flipped."""
    packed = bytearray(gzip.compress(draw(st.sampled_from(SEEDS)), 6, mtime=0))
    at = draw(st.integers(0, len(packed) - 1))
    if draw(st.booleans()):
        del packed[at:]
    else:
        packed[at] ^= 1 << draw(st.integers(0, 7))
    return bytes(packed)


def check(content: bytes, packed: bool, salvage: bool) -> None:
    """Refused with an error of ours, and then nothing is left behind; or answered, and then it adds up."""
    folder = Path(tempfile.mkdtemp())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOSTFLOPS_CACHE", str(folder / "store"))
        path = folder / ("rank-0.json.gz" if packed else "rank-0.json")
        path.write_bytes(content)
        try:
            session = Session(job.open(path, salvage=salvage))
            answer = session.run("step_ledger")
            steps = session.trace.table("steps")
        except LostflopsError as error:
            assert error.message
            assert not [p for p in (folder / "store").rglob("*") if p.is_file()]
        else:
            if not isinstance(answer, Skipped):
                assert steps is not None
                sums = answer.table.group_by("rank", "step").agg(pl.col("ns").sum())
                both = steps.collect().join(sums, on=["rank", "step"], how="full", coalesce=True)
                assert (both["end"] - both["start"]).to_list() == both["ns"].to_list()
                assert (answer.table["ns"] > 0).all()
            for name in recipes() if LONG else ():
                session.run(name)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def for_some_time(seconds: float, contents: st.SearchStrategy[bytes], *, packed: bool) -> None:
    """Let Hypothesis try a few examples after another, from seeds of their own, until the time is up."""
    until = time.monotonic() + seconds
    few = settings(max_examples=8, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    for number in itertools.count(time.time_ns() if LONG else 0):
        if time.monotonic() > until:
            return

        @few
        @seed(number)
        @given(contents, st.booleans())
        def run(content: bytes, salvage: bool) -> None:
            check(content, packed, salvage)

        run()


def test_changed_traces_are_refused_or_add_up() -> None:
    for_some_time(SECONDS, changed(), packed=False)


def test_changed_compressed_traces_are_refused_or_add_up() -> None:
    for_some_time(SECONDS / 3, packed_and_changed(), packed=True)
