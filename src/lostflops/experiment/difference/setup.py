"""How two runs were set up, as far as their traces and run folders tell, and whether they do the same work.

A difference of the setup may be what was changed on purpose, or what nobody noticed: all are listed. Runs
whose steps do different amounts of work, or where one has no steps, cannot be compared by the time of a step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from lostflops import frameworks, run_folder
from lostflops.capture.record import new_run
from lostflops.report.first_page.facts import Inputs, inputs
from lostflops.report.words.safe import one_line
from lostflops.units import written

from .pieces import asked
from .side import STEP, Side, same_recording

UNKNOWN = "not known"
VERSION = re.compile(r"(.+?) (v?\d[\w.+-]*)")
# What is recorded besides makes the CPU slower, in the middle of what is compared.
BURDENS = {"frames": "Python stacks", "allocations": "memory events"}
MATRIX = (
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::linear",
    "aten::conv2d",
    "aten::cudnn_convolution",
    "aten::miopen_convolution",
    "aten::scaled_dot_product_attention",
)
KIND_AND_OPERATOR = 2  # names of a path down to operators
MOST_PRECISION = 0.05  # of the matrix work's time: a precision with less is not named


@dataclass(frozen=True)
class Mismatch:
    """One thing that differs between the setups of two runs."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class Setup:
    """How a run was made: each fact by what it is about. `work` is what a step of a rank takes in."""

    facts: Mapping[str, str]
    work: Inputs | None
    shapes: Mapping[tuple[str, str], float]  # of matrix products: calls per step by operator and shapes
    micro_steps: int | None


def setup(side: Side) -> Setup:
    """What the recording and its folder say."""
    work, micro = inputs(side.trace, side.steps), _micro_steps(side)
    facts = {
        **dict(_of_the_ranks(side)),
        **dict(_of_the_software(side)),
        **dict(_of_the_work(side, work, micro)),
        **dict(_of_the_recording(side)),
    }
    return Setup({name: one_line(text, 300) for name, text in facts.items()}, work, _shapes(side), micro)


def mismatches(before: Setup, after: Setup) -> tuple[Mismatch, ...]:
    """What differs. Of versions, only what both say or one has and the other lacks is known to differ."""
    names = dict.fromkeys((*before.facts, *after.facts))
    found = [
        Mismatch(name, before.facts.get(name, UNKNOWN), after.facts.get(name, UNKNOWN))
        for name in names
        if before.facts.get(name, UNKNOWN) != after.facts.get(name, UNKNOWN)
    ]
    return (*found, *_shapes_differ(before, after))


def obstacles(before: Side, after: Side, first: Setup, second: Setup) -> tuple[str, ...]:
    """Why the steps of the two cannot be compared; empty where they can."""
    found = [
        f"{which} has no ledger: {side.missing}"
        for which, side in (("before", before), ("after", after))
        if side.missing
    ]
    if found:
        return tuple(found)
    return () if same_recording(before, after) else tuple(_unlike(before, after, first, second))


def _unlike(before: Side, after: Side, first: Setup, second: Setup) -> Iterator[str]:
    whole = [which for which, side in (("before", before), ("after", after)) if side.run.is_whole]
    if len(whole) == 1:
        yield (
            f"the recording of {whole[0]} marks no steps, so its time is that of the whole recording; the "
            "other's is that of a step"
        )
    elif whole and not _same_work(before, after):
        yield "neither recording marks steps, and how much work each holds is not known"
    if before.run.on_host != after.run.on_host:
        cpu, gpu = ("before", "after") if before.run.on_host else ("after", "before")
        yield f"{cpu} shows only the CPU's operators, {gpu} the GPU's kernels"
    if first.work and second.work:
        if first.work.what != second.work.what:
            yield f"a step takes in {first.work.what} before and {second.work.what} after"
        elif first.work.per_step != second.work.per_step:
            yield (
                f"a step of a rank takes in {first.work.per_step:,} {first.work.what} before "
                f"({first.work.shapes}) and {second.work.per_step:,} after ({second.work.shapes})"
            )
    elif first.shapes and second.shapes and not first.shapes.keys() & second.shapes.keys():
        yield "no matrix product has the same shape in both: model, batch or sequence length differ"
    if first.micro_steps and second.micro_steps and first.micro_steps != second.micro_steps:
        yield (
            f"a step is {first.micro_steps} backward passes before and {second.micro_steps} after: the "
            "batch differs"
        )


def _same_work(before: Side, after: Side) -> bool:
    """Whether the same operators launch the same kinds of kernels equally often in both."""
    first, second = (
        {path: many for path, many in side.calls.items() if len(path) == KIND_AND_OPERATOR}
        for side in (before, after)
    )
    return bool(first) and first == second


def _of_the_ranks(side: Side) -> Iterator[tuple[str, str]]:
    run = side.run
    yield "device", "CPU" if run.on_host else "GPU"
    if run.gpu:
        yield "GPU", run.gpu
    many = run.world_size or len(run.ranks)
    yield "ranks", f"{many}"
    if run.world_size:
        here = len(run.ranks)
        yield "ranks that are here", "all" if here == many else f"{here} of {many}"
    table = side.trace.table("ranks")
    if table is None:
        return
    ranks = table.collect()
    for column, name in (("memory_bytes", "GPU memory"), ("num_sms", "multiprocessors of a GPU")):
        known = ranks[column].drop_nulls().unique().sort().to_list()
        if known:
            yield name, ", ".join(written(n) if column == "memory_bytes" else f"{n}" for n in known)
    if ranks["host"].drop_nulls().len():
        yield "machines", f"{ranks['host'].n_unique()}"
    if backends := sorted(ranks["backend"].drop_nulls().cast(pl.String).unique()):
        yield "communication backend", ", ".join(backends)
    if layout := _groups(ranks):
        yield "process groups", layout


def _groups(ranks: pl.DataFrame) -> str:
    """How many different groups there are of each size."""
    groups: set[tuple[int, ...]] = set()
    for told in ranks["groups"].drop_nulls().to_list():
        groups |= {tuple(sorted(group["ranks"])) for group in told if group["ranks"]}
    sizes: dict[int, int] = {}
    for group in groups:
        sizes[len(group)] = sizes.get(len(group), 0) + 1
    return ", ".join(f"{many} of {size} rank{'s' * (size != 1)}" for size, many in sorted(sizes.items()))


def _of_the_software(side: Side) -> Iterator[tuple[str, str]]:
    table = side.trace.table("ranks")
    told: list[str] = []
    if table is not None:
        told = table.select("versions").collect()["versions"].drop_nulls().to_list()
    versions: dict[str, dict[str, None]] = {}
    for part in (part for text in told for part in text.split(", ")):
        found = VERSION.fullmatch(part)
        versions.setdefault(found[1] if found else part, {})[found[2] if found else "in use"] = None
    for where in _logs(side):
        for name in ("python", "torch"):
            if isinstance(version := where.get(name), str) and version:
                versions.setdefault("Python" if name == "python" else name, {})[version] = None
    for name in sorted(versions):
        yield f"version of {name}", ", ".join(sorted(versions[name]))
    setting = frameworks.setting(side.trace)
    yield "framework", setting.framework
    if setting.sharding:
        yield "data parallelism", {"fsdp": "FSDP", "ddp": "DDP"}.get(setting.sharding, setting.sharding)
    for change in ("workers", "fused optimizer", "compiled", "graphs"):
        words = {"workers": "data loader workers", "graphs": "CUDA graphs", "compiled": "torch.compile"}
        yield words.get(change, change), "yes" if change in setting.on else "no"
    if command := new_run.command(side.trace.given):
        yield "command", command


def _logs(side: Side) -> Iterator[Mapping[str, Any]]:
    """The first line of each rank's step log in a run folder."""
    for given in side.trace.given:
        with suppress(OSError):
            for log in sorted(Path(given).glob(run_folder.STEP_LOGS_OF_RUN)):
                with suppress(ValueError), log.open("rb") as file:
                    line: Any = json.loads(file.readline(100_000))
                    if isinstance(line, dict):
                        yield line


def _of_the_work(side: Side, work: Inputs | None, micro: int | None) -> Iterator[tuple[str, str]]:
    if work is not None:
        yield f"{work.what} per step of a rank", f"{work.per_step:,} ({work.shapes})"
    if micro:
        yield "backward passes per step", f"{micro}"
    if not side.missing and (mix := _precisions(side)):
        yield "precision of matrix work", mix


def _precisions(side: Side) -> str:
    """The precisions of matrix work, the most time first; empty where kernels' names do not say."""
    if not side.trace.has("kernels"):
        return ""
    family, precision = pl.col("family").cast(pl.String), pl.col("precision").cast(pl.String)
    time = (
        asked(side.session, "kernel_work")
        .filter(family.is_in(["gemm", "attention", "convolution"]) & precision.is_not_null())
        .group_by(precision)
        .agg(pl.col("in_steps").sum())
        .sort("in_steps", "precision", descending=[True, False])
    )
    whole = int(time["in_steps"].sum())
    return ", ".join(name for name, ns in time.iter_rows() if ns > MOST_PRECISION * whole)


def _micro_steps(side: Side) -> int | None:
    log = side.trace.table("step_log")
    if log is None:
        return None
    usual = log.select(pl.col("micro_steps").median()).collect().item()
    return None if usual is None else round(usual)


def _of_the_recording(side: Side) -> Iterator[tuple[str, str]]:
    run = side.run
    yield "recorded with", ", ".join(sorted(run.formats - {"monitor", "step_log"})) or UNKNOWN
    yield "steps were read from", run.step_source or UNKNOWN
    present = [words for table, words in BURDENS.items() if side.trace.has(table)]
    yield "also recorded", ", ".join(present) or "nothing"
    yield "simulated", "yes" if run.simulated else "no"
    yield "replayed", f"with {run.replayed}" if run.replayed else "no"
    told = ("communication.wait", "communication.transfer", "communication.exposed")
    split = set(side.ledger["account"].unique()) & {*told}
    if split:
        known = "communication.exposed" not in split
        yield "waiting for other ranks", "known" if known else "not known"


def _shapes(side: Side) -> Mapping[tuple[str, str], float]:
    """How often each matrix product is asked for per step, by operator and input shapes."""
    operators = side.trace.table("operators")
    if operators is None or not side.num_windows:
        return {}
    name, shapes = pl.col("name").cast(pl.String), pl.col("shapes").cast(pl.String)
    calls = (
        operators.filter(name.is_in(MATRIX) & shapes.str.contains(r"\d"))
        .select("rank", "start", name, shapes)
        .sort("start")
        .collect()
        .join_asof(
            side.steps.sort("start").select(*STEP, "start", until="end"),
            on="start", by="rank", strategy="backward", check_sortedness=False,
        )
        .filter(pl.col("start") < pl.col("until"))
        .group_by("name", "shapes")
        .len()
        .sort("name", "shapes")
    )  # fmt: skip
    return {(name, shapes): many / side.num_windows for name, shapes, many in calls.iter_rows()}


def _shapes_differ(before: Setup, after: Setup) -> Iterator[Mismatch]:
    """Matrix products whose shapes only one run has, in a line each operator."""
    first, second = before.shapes, after.shapes
    if not first or not second:
        return
    for operator in sorted({name for name, _ in (*first, *second)}):
        mine = {shapes for name, shapes in first if name == operator}
        theirs = {shapes for name, shapes in second if name == operator}
        if mine and theirs and mine != theirs:
            yield Mismatch(f"shapes of {operator}", _only(mine - theirs, mine), _only(theirs - mine, theirs))


def _only(alone: set[str], of: set[str]) -> str:
    if not alone:
        return f"all of its {len(of)} are in the other run too"
    return f"{len(alone)} of {len(of)} only here, such as {min(alone)}"
