"""What exposed communication is for, and that the advice is for that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lostflops
from by_hand import MS, finding, given
from lostflops.causes import Given, with_busy_links
from lostflops.causes.between_ranks.exposed import exposed_communication
from lostflops.causes.page_findings import PageFindings
from lostflops.causes.purposes import (
    Exposed,
    _in_forward,  # pyright: ignore[reportPrivateUsage]
    _of_values,  # pyright: ignore[reportPrivateUsage]
)
from lostflops.finding import Finding, PredictedGain
from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.strategy import strategy
from lostflops.lab.simulate.writing import simulate
from lostflops.replay.edits.between_ranks.overlap import NONE_EARLIER
from made_runs import made

STEPS, LONG = 4, 1000
BARE_TIME = "communication.exposed"
Row = dict[str, Any]


def job(kind: str, *, forward: bool = False, description: str = "", passes: int = 1, early: bool = False,
        updates: bool = False, **more: Any) -> dict[str, Any]:  # fmt: skip
    """Steps of 1,000 ns whose last 400 (or first, in `forward`) are an operation that nothing hides."""
    groups = [{"name": "7", "description": description, "ranks": [0, 1]}] if description else []
    tables: dict[str, Any] = {
        "ranks": [{"end": STEPS * LONG, "device_kind": "gpu", "world_size": 2, "groups": groups}],
        "steps": [], "kernels": [], "collectives": [], "ranges": [],
    }  # fmt: skip
    for step in range(STEPS):
        at = step * LONG
        tables["steps"].append({"step": step, "start": at, "end": at + LONG})
        sent = at + (0 if early else 600)
        computed = at + (400 if early else 0)
        tables["kernels"] += [
            {"start": computed, "end": computed + 600, "family": "gemm", "correlation": 10 * step},
            {"start": sent, "end": sent + 400, "family": "communication", "correlation": 10 * step + 1}
            | {"phase": "forward" if forward else "backward", "stream": 9},
        ]
        tables["collectives"].append(
            {"start": sent, "end": sent + 400, "arrival": sent, "kind": kind, "bytes_in": 4096, "stream": 9}
            | {"correlation": 10 * step + 1, "group": "7 [0, 1]", "group_size": 2, **more}
        )
        tables["ranges"] += [
            {"start": at + 100 * n, "end": at + 100 * n + 50, "name": "DistributedDataParallel.forward"}
            for n in range(1, passes + 1)
            if passes > 1 or kind == "all-reduce"
        ]
        if updates:
            asked = {"start": sent - 20, "end": sent, "name": f"c10d::{kind}_", "phase": "optimizer"}
            tables.setdefault("operators", []).append(asked)
    return tables


def exposed(folder: Path, kind: str, **how: Any) -> Finding:
    page = lostflops.why(made(folder, job(kind, **how)))
    (finding,) = (f for f in page.findings if f.name == "communication-exposed")
    return finding


@pytest.mark.parametrize(
    ("kind", "how", "said", "advised", "never"),
    [
        ("all-reduce", {}, "all-reduces of gradients", "no_sync()", "tensor"),
        ("all-reduce", {"forward": True}, "tensor parallelism", "async tensor parallelism", "no_sync"),
        ("all-reduce", {"description": "mesh_tp"}, "tensor parallelism", "of one node", "no_sync"),
        (
            "reduce-scatter",
            {"description": "TENSOR_MODEL_PARALLEL_GROUP"},
            "tensor parallelism",
            "one node",
            "FSDP",
        ),
        ("all-reduce", {"description": "DATA_PARALLEL_GROUP"}, "of gradients", "no_sync()", "tensor"),
        ("all-gather", {}, "shards", "prefetch", "tensor"),
        ("all-to-all", {}, "all-to-all exchanges", "Start the exchange earlier", "no_sync"),
        ("dispatch", {}, "between experts", "tokens per expert", "no_sync"),
        (
            "all-to-all",
            {"description": "EXPERT_MODEL_PARALLEL_GROUP"},
            "experts",
            "tokens per expert",
            "bucket",
        ),
        ("send", {"peer": 1}, "pipeline stages", "microbatches", "no_sync"),
        ("all-to-all", {"description": "mesh_cp"}, "all-to-all exchanges", "Start the exchange", "tensor"),
        ("all-to-all", {"description": "sequence_parallel"}, "exchanges", "within a node", "tensor"),
        ("all-gather", {"description": "CONTEXT_PARALLEL_GROUP"}, "context", "Start the exchange", "tensor"),
        ("all-gather", {"description": "DATA_PARALLEL_GROUP_WITH_CP"}, "shards", "prefetch", "context"),
        ("barrier", {}, "barriers", "Take the barriers out", "no_sync"),
        ("barrier", {"description": "DATA_PARALLEL_GROUP"}, "barriers", "Take the barriers out", "no_sync"),
        ("all-reduce", {"bytes_in": 4}, "single numbers or objects", "hundredth step", "no_sync"),
        ("broadcast", {"passes": 2}, "broadcasts", "broadcast_buffers=False", "no_sync"),
        (
            "broadcast",
            {"passes": 2, "updates": True},
            "broadcasts of weights that each rank has updated",
            "parameters_as_bucket_view=True",
            "broadcast_buffers",
        ),
        ("reduce", {"passes": 2}, "all of it: reductions of gradients", "no_sync()", "tensor"),
    ],
)
def test_advice_is_for_what_the_communication_is_for(
    tmp_path: Path, kind: str, how: dict[str, Any], said: str, advised: str, never: str
) -> None:
    finding = exposed(tmp_path, kind, **how)
    assert any(said in fact for fact in finding.evidence), finding.evidence
    assert advised in finding.next and never not in finding.next, finding.next


def test_objects_of_all_ranks_are_no_shards() -> None:
    """Sizes of objects go before them. What another rank or group gathers has none."""

    def one(start: int, bytes_in: int, kind: str = "all-gather", rank: int = 0, group: str = "0") -> Row:
        return {"start": start, "kind": kind, "bytes_in": bytes_in, "rank": rank, "group": group}

    sizes = [one(0, 8), one(3, 600), one(5, 600), one(6, 600, rank=1), one(7, 600, group="1")]
    others = [one(8, 8, "all-reduce"), one(9, 600), one(10, 0), one(11, 9, "reduce-scatter")]
    table = pl.DataFrame([*sizes, *others]).with_columns(stream=pl.lit(None, pl.Int64))
    assert table.filter(_of_values(table))["start"].to_list() == [0, 3, 8]


def test_what_is_not_known_is_no_part_of_what_is(tmp_path: Path) -> None:
    """Two thirds of the time are of a kind that says nothing: the rest is not told as all of it."""
    tables = job("all-reduce")
    for row in tables["collectives"]:
        row["end"] -= 270
    tables["collectives"] += [
        {**row, "kind": "something", "start": row["end"], "arrival": row["end"], "end": row["end"] + 270}
        for row in tables["collectives"]
    ]
    page = lostflops.why(made(tmp_path, tables))
    finding = next(f for f in page.findings if f.name == "communication-exposed")
    assert not any("of it: " in fact for fact in finding.evidence), finding.evidence


def test_accumulating_is_not_advised_where_only_the_last_micro_batch_sends(tmp_path: Path) -> None:
    assert "no_sync" not in exposed(tmp_path / "on", "all-reduce", passes=4).next
    # One that sends in every micro-batch, or in the first, is told.
    assert "no_sync" in exposed(tmp_path / "off", "all-reduce", passes=4, early=True).next


def test_when_gradients_are_sent_is_told_by_the_host_that_runs_ahead_of_the_device(tmp_path: Path) -> None:
    """All passes are begun before the device comes to what the first of them has sent."""
    tables = job("all-reduce", passes=4)
    for row in tables["kernels"][1::2]:
        row |= {"launch_start": row["start"] - 440, "launch_end": row["start"] - 439}
    page = lostflops.why(made(tmp_path, tables))
    (finding,) = (f for f in page.findings if f.name == "communication-exposed")
    assert "no_sync" in finding.next


def test_each_purpose_counts_the_time_in_which_nothing_hides_it(tmp_path: Path) -> None:
    tables = job("all-reduce")
    tables["collectives"].append(
        {"start": 550, "end": 700, "kind": "all-to-all", "bytes_in": 8, "arrival": 550}
    )
    trace = made(tmp_path, tables)
    runs = pl.DataFrame(
        {"rank": 0, "step": [0, 0, 1], "start": [0, 600, 1600], "end": [600, 1000, 2000]}
        | {"account": ["compute", "communication.exposed", "communication.exposed"]},
        schema_overrides={"rank": pl.Int32},
    )
    counted = pl.DataFrame({"rank": [0, 0], "step": [0, 1]}, schema_overrides={"rank": pl.Int32})
    assert Exposed(trace, runs, counted).by_purpose() == {"exchange": 100, "gradients": 800}
    assert Exposed(trace, runs, counted.head(1)).by_purpose() == {"exchange": 100, "gradients": 400}
    assert Exposed(trace, None, counted).by_purpose() == {}


@pytest.mark.parametrize("forward", [False, True])
def test_shards_of_the_backward_pass_are_gathered_again(tmp_path: Path, forward: bool) -> None:
    trace = made(tmp_path, job("all-gather", forward=forward))
    runs, counted = lostflops.ask(trace, "device_runs"), lostflops.ask(trace, "counted_steps")
    assert Exposed(trace, runs, counted).gathered_again() == (0 if forward else STEPS * 400)
    assert Exposed(made(tmp_path, job("all-reduce")), runs, counted).gathered_again() == 0


def test_a_host_that_is_in_the_backward_pass_already_asked_for_it_in_the_forward_pass(tmp_path: Path) -> None:
    """The host runs ahead by half a step: when the device comes to the operation, autograd runs already."""
    tables = job("all-reduce")
    tables["operators"] = []
    for step in range(STEPS):
        tables["steps"][step]["host_start"] = step * LONG
        tables["operators"].append(
            {"start": step * LONG + 300, "end": step * LONG + 900, "phase": "backward", "thread": 7}
        )
    for row in tables["kernels"][1::2]:
        row |= {"phase": None, "launch_start": row["start"] - 400, "launch_end": row["start"] - 399}
    page = lostflops.why(made(tmp_path, tables))
    (finding,) = (f for f in page.findings if f.name == "communication-exposed")
    assert "all of it: tensor parallelism" in finding.evidence


def test_on_a_cpu_layers_reduce_between_a_product_and_the_backward_pass(tmp_path: Path) -> None:
    """Nothing is launched there. What averages weights after a step comes before the next one's products."""
    sent = {"kind": "all-reduce", "bytes_in": 4096, "group": "7 [0, 1]", "group_size": 2, "stream": 9}
    work = [
        {"start": at, "end": at + 9, "phase": phase, "family": "gemm", "thread": 1}
        for at, phase in ((30, "forward"), (60, "backward"))
    ]
    trace = made(
        tmp_path,
        {
            "ranks": [{"end": 100, "device_kind": "cpu", "world_size": 2}],
            "steps": [{"step": 1, "start": 0, "end": 100}],
            "kernels": work,
            "operators": [{key: row[key] for key in ("start", "end", "phase", "thread")} for row in work],
            "collectives": [sent | {"start": at, "arrival": at, "end": at + 5} for at in (5, 45, 80)],
        },
    )
    rows = trace.table("collectives")
    assert rows is not None
    assert _in_forward(trace, rows.collect().sort("start")).to_list() == [False, True, False]


def test_layers_reduce_in_the_forward_pass_of_each_micro_batch(tmp_path: Path) -> None:
    """Six micro-batches: what the main thread launches in the fourth is of its forward pass."""
    tables = job("all-reduce", passes=6)
    tables["operators"] = []
    for step in range(STEPS):
        tables["steps"][step]["host_start"] = step * LONG
        for begin in range(step * LONG, step * LONG + 600, 100):
            tables["operators"] += [
                {"start": begin, "end": begin + 10, "phase": "forward", "thread": 7},
                {"start": begin + 50, "end": begin + 60, "phase": "backward", "thread": 9},
            ]
    for step, row in enumerate(tables["kernels"][1::2]):
        row |= {"phase": None, "launch_start": step * LONG + 320, "launch_end": step * LONG + 321}
    page = lostflops.why(made(tmp_path, tables))
    (finding,) = (f for f in page.findings if f.name == "communication-exposed")
    assert "all of it: tensor parallelism" in finding.evidence


@pytest.mark.parametrize(
    ("purpose", "named"), [("mesh_dp", "collectives-small"), ("mesh_tp", "communication-exposed")]
)
def test_small_operations_are_told_to_be_joined_where_they_can_be(
    tmp_path: Path, purpose: str, named: str
) -> None:
    """Sums of a layer's parts are needed one by one: no bucket holds two of them."""
    tables = job("all-reduce", description=purpose)
    for name in ("collectives", "kernels"):
        rows = tables[name]
        sent = [row for row in rows if row["end"] - row["start"] == 400]
        pieces: list[dict[str, Any]] = []
        for row in sent:
            for start in range(row["start"], row["end"], 20):
                arrival = {"arrival": start} if name == "collectives" else {}
                pieces.append(
                    {**row, "start": start, "end": start + 20, "correlation": 9_000 + start, **arrival}
                )
        tables[name] = [row for row in rows if row not in sent] + pieces
    both = {name: [{**row, "rank": rank} for row in rows for rank in (0, 1)] for name, rows in tables.items()}
    page = lostflops.why(made(tmp_path, both))
    (found,) = (f for f in page.findings if f.name in ("collectives-small", "communication-exposed"))
    assert found.name == named
    advice = " ".join([found.next, *found.remedies])
    assert ("bucket" in advice) == (named == "collectives-small")
    assert any("20 small all-reduce" in line for line in (found.claim, *found.evidence))


def of_both(folder: Path, tables: dict[str, Any]) -> Finding:
    """The same on two ranks."""
    both = {name: [{**row, "rank": rank} for row in rows for rank in (0, 1)] for name, rows in tables.items()}
    page = lostflops.why(made(folder, both))
    (finding,) = (f for f in page.findings if f.name == "communication-exposed")
    return finding


def test_gradients_that_are_reduced_too_slowly_are_not_hidden_by_fetching_weights_earlier(
    tmp_path: Path,
) -> None:
    told = exposed(tmp_path / "reduced", "reduce-scatter")
    assert "prefetch" not in told.next.lower() and "set_requires_gradient_sync" in told.next
    assert not {"fsdp-prefetch", "fsdp-reshard", "zero-stage"} & set(told.remedies or ())
    assert "prefetch" in exposed(tmp_path / "gathered", "all-gather").next.lower()


def test_gradients_of_16_bits_are_not_told_to_be_sent_so(tmp_path: Path) -> None:
    wide = exposed(tmp_path / "wide", "all-reduce", dtype="Float")
    narrow = exposed(tmp_path / "narrow", "all-reduce", dtype="BFloat16")
    assert "reduce in bf16 (`bf16_compress_hook`)" in wide.next and "bf16-gradients" in (wide.remedies or ())
    assert "bf16" not in narrow.next and "bf16-gradients" not in (narrow.remedies or ())
    assert "another `bucket_cap_mb`" in narrow.next and "<" not in wide.next + narrow.next


def test_operations_at_one_time_are_said_to_add_up_to_more_than_what_is_exposed(tmp_path: Path) -> None:
    tables = job("all-gather")
    for name in ("kernels", "collectives"):
        for row in [row for row in tables[name] if row["end"] - row["start"] == 400]:
            # Half of the gather runs beside a reduce-scatter.
            beside = {**row, "end": row["start"] + 200, "stream": 11, "correlation": row["correlation"] + 1}
            tables[name].append(beside | ({"kind": "reduce-scatter"} if name == "collectives" else {}))
    found = of_both(tmp_path, tables)
    assert found.cost_per_step == 400 and found.contributed == 600
    told = "these add up to 200 ns more, as some run at the same time"
    assert f"all of it: all-gathers and reduce-scatters of shards; {told}" in found.evidence


def test_gradients_in_one_bucket_are_told_to_begin_when_the_last_of_them_is_there(tmp_path: Path) -> None:
    begins = "one all-reduce of 4.1 kB per step has all gradients, and begins when the last of them is there"
    tables = job("all-reduce")
    one = of_both(tmp_path / "one", tables)
    assert any(begins in told for told in one.evidence)
    assert one.next.startswith("Send gradients in several pieces") and one.remedies == (
        "overlap-communication",
    )
    for name in ("kernels", "collectives"):
        for row in [row for row in tables[name] if row["end"] - row["start"] == 400]:
            second = {**row, "start": row["start"] + 200, "correlation": row["correlation"] + 1}
            tables[name].append(second | ({"arrival": second["start"]} if name == "collectives" else {}))
            row["end"] -= 200
    assert not any("all gradients" in told for told in of_both(tmp_path / "two", tables).evidence)
    for row in tables["collectives"]:
        row["bytes_in"] = 64 if row["start"] % 1000 == 800 else row["bytes_in"]
    small = of_both(tmp_path / "small", tables)
    assert any("has nearly all gradients" in told for told in small.evidence)


@pytest.mark.parametrize(
    ("gain", "advice"),
    [
        (PredictedGain(300, 290, 310), "prefetch"),
        (PredictedGain(20, 10, 30), "communication-exposed-gathered"),
        (PredictedGain(refused=NONE_EARLIER, of_edit=True), "communication-exposed-reduced"),
        (PredictedGain(refused="ranks are missing"), "prefetch"),
    ],
)
def test_prefetching_is_advised_where_a_replay_gains_by_it(gain: PredictedGain, advice: str) -> None:
    told = Given(
        {},
        pl.DataFrame(schema={"rank": pl.Int32}),
        purposes={"shards": 900},
        operations={"all-gather|8": 700, "reduce-scatter|8": 200},
        advice=lambda key, _: key,
    )
    found = Finding(
        "communication-exposed", "c", "at most", (), "prefetch", cost_per_step=900, predicted=gain
    )
    assert with_busy_links(found, told).next == advice
    assert with_busy_links(replace(found, name="slow-link"), told).next == "prefetch"
    # What the forward pass gathers it cannot keep from before.
    first = with_busy_links(found, replace(told, gathered_again=100))
    assert first.next == advice.replace("gathered", "reduced")


def test_what_passes_a_slow_link_and_has_nothing_to_be_compared_with_may_be_slow_for_it(
    tmp_path: Path,
) -> None:
    """Tokens go round half of the ranks, where others do the same; gradients round all of them."""
    job = SimulatedJob(strategy("ep4", 8), steps=2, warmup=1, model="qwen3-30b-a3b", layers=2)
    simulate(replace(job, slow_links={0: 13.0}), tmp_path)
    page = lostflops.why(tmp_path)
    named = {f.name: f for f in page.findings}
    assert "among ranks 0, 1, 2, 3" in named["slow-link"].claim
    assert (
        "Most of it, all-reduces, passes ranks 0 to 3 too, and no other ranks do the same to compare it "
        "with: the slow links may be why it takes so long." in named["communication-exposed"].doubt
    )


def test_an_all_gather_is_named_by_what_it_brings_together_and_its_bandwidth_is_told(tmp_path: Path) -> None:
    """Each of two ranks gives 2 MB, and both have 4 MB in 400 ns."""
    found = of_both(tmp_path, job("all-gather", bytes_in=2_000_000, bytes_out=None))
    assert found.contributors == ("all-gather of 4 MB 400 ns",)
    assert found.evidence[1].startswith("all-gathers among 2 ranks reach 5,000 GB/s of bus bandwidth: both ")


@pytest.mark.parametrize("group", ["7 [0, 1]", None])  # an Nsight export without payloads names none
@pytest.mark.parametrize(("at", "told"), [(600, True), (100, False)])
def test_reductions_in_the_first_part_of_a_step_may_be_of_layers_where_no_passes_are_known(
    tmp_path: Path, at: int, told: bool, group: str | None
) -> None:
    tables = job("all-reduce", group=group)
    for name in ("kernels", "collectives"):
        for row in [row for row in tables[name] if row["end"] - row["start"] == 400]:
            start = row["start"] - 600 + at
            row |= {"start": start, "end": start + 400} | ({"arrival": start} if "arrival" in row else {})
    for row in tables["kernels"]:
        row["phase"] = None
        if row["family"] == "gemm" and at < 600:
            row |= {"start": row["start"] + 400, "end": row["end"] + 400}
    page = lostflops.why(made(tmp_path, tables))
    (finding,) = (f for f in page.findings if f.name == "communication-exposed")
    assert any("all-reduces of gradients" in fact for fact in finding.evidence) == told
    assert any("of gradients or of layers" in fact for fact in finding.evidence) != told
    assert finding.next.startswith("If they are of gradients, ") != told


def test_what_counts_for_a_late_rank_is_told_where_the_operations_hold_it() -> None:
    """Of an Nsight export without groups: 16.7 ms of all-reduces were named for a finding of 2.72 ms."""
    rows = [
        (rank, 0, account, 20 * MS) for rank in range(2) for account in ("compute", "communication.exposed")
    ]
    page = PageFindings(replace(given(rows), operations={"all-reduce|0": 2 * 16 * MS}))
    base = finding("communication-exposed", "communication.exposed", 16)
    exposed_communication(page, base, 3 * MS, 0, awaited=(1, 13 * MS))
    (found,) = page.all()
    assert found.contributors == ("all-reduce 16.0 ms",) and found.size == 3 * MS
    assert "13.0 ms of these is waiting for rank 1, and counts there" in found.evidence
    assert not any("at the same time" in fact for fact in found.evidence)


def test_that_a_link_may_be_slow_is_told_where_a_page_shows_it() -> None:
    """Of zero3 over a slow link beside a slow rank: the fact stood third, and a page shows two."""
    rows = [(rank, 0, name, 20 * MS) for rank in range(2) for name in ("compute", "communication.transfer")]
    summary = pl.DataFrame(
        {"kind": "all-gather", "group_size": 2, "bytes": 1 << 23, "time": 9, "bus_bandwidth": 50.0}
    )
    told = {"purposes": {"shards": 40 * MS}, "operations": {"all-gather|8388608": 40 * MS}}
    page = PageFindings(replace(given(rows, communication_summary=summary), **told))
    base = finding("communication-exposed", "communication.transfer", 20)
    exposed_communication(page, base, 13 * MS, 0, delayed=(1, 7 * MS))
    (found,) = page.all()
    assert found.evidence[:2] == (
        (
            "all of it: all-gathers and reduce-scatters of shards; 7.00 ms of these begins late for rank 1, "
            "and counts there"
        ),
        (
            "all-gathers among 2 ranks reach 50 GB/s of bus bandwidth: both ranks take part in each "
            "all-gather, so only `lostflops bench collectives` tells whether a link is slow"
        ),
    )


@pytest.mark.parametrize(
    ("order", "averages"),
    [("bu", True), ("ub", False), ("bub", False), ("bup", False), ("buu", True), ("buu too", False)],
)
def test_what_is_summed_up_between_the_update_and_the_next_pass_is_no_gradient(
    tmp_path: Path, order: str, averages: bool
) -> None:
    """`order` is what begins before each all-reduce, which is asked for at 580, and after it: a backward
    pass, an update, or a product. An optimizer that steps in the backward pass updates before gradients. A
    second update is DiLoCo's, of what is averaged, but not where the group reduces before the first, too."""
    tables = job("all-reduce")
    if order == "buu too":
        more = {"start": 400, "end": 450, "arrival": 400, "correlation": 1000, "bytes_in": 4096, "stream": 9}
        about = {"kind": "all-reduce", "group": "7 [0, 1]", "group_size": 2}
        tables["collectives"].append(more | about)
    for row in tables["kernels"]:
        row |= {"launch_start": row["start"] - 20, "launch_end": row["start"] - 10}
        row |= {"phase": None} if row["family"] == "communication" else {}
    phases, tables["operators"] = {"u": "optimizer", "b": "backward"}, []
    for step in range(STEPS):
        for each, at in zip(order, (300, 560, 570 if order == "bup" else 590), strict=False):
            one = {"start": step * LONG + at, "end": step * LONG + at + 5}
            if each in phases:
                tables["operators"].append(one | {"thread": 7, "phase": phases[each], "name": "aten::add_"})
            else:
                tables["kernels"].append(one | {"family": "gemm", "launch_start": one["start"]})
    page = lostflops.why(made(tmp_path, tables))
    (found,) = (f for f in page.findings if f.name == "communication-exposed")
    said = "all-reduces after the optimizer's step, as of weights that are averaged"
    assert any(said in fact for fact in found.evidence) == averages
    assert found.next.startswith("If these average weights, as local SGD does, do it after") == averages
    assert not averages or (found.remedies, found.edit) == ((), "")


def gradients(*beside: Finding, **of: Any) -> Finding:
    """Of 100 ms 20 are exposed gradients, of two ranks."""
    rows = [(rank, 0, name, ns * MS) for rank in range(2) for name, ns in (("compute", 80), (BARE_TIME, 20))]
    told = {"purposes": {"gradients": 40 * MS}, "operations": {"all-reduce|8000000": 40 * MS}}
    page = PageFindings(replace(given(rows), **told, **of, advice=lambda _, otherwise: otherwise))
    for one in beside:
        page.put(one)
    exposed_communication(page, finding("communication-exposed", BARE_TIME, 20), 20 * MS, 0)
    (found,) = page.all()
    return found


def test_gradients_that_are_sent_in_each_micro_batch_are_the_cause_of_what_is_exposed() -> None:
    """They were two findings, and the first of them did not say why there was so much to send."""
    claim = "DDP averages gradients 4 times per step, once per microbatch; once is enough."
    times = Finding("gradients-exchanged-per-microbatch", claim, "unknown", ("75 of 100 MB",), "Use no_sync.")
    found = gradients(times)
    assert found.name == times.name and found.size == 20 * MS
    assert found.claim == f"{claim} Of it, what no computation hides costs 20.0 ms per step (20.0 %)."
    assert (found.evidence[0], found.next) == ("75 of 100 MB", "Use no_sync.")


@pytest.mark.parametrize(
    ("times", "computed", "told"), [(6, 20, True), (5, 20, False), (6, 19, False), (0, 0, False)]
)
def test_a_backward_pass_that_stops_for_all_reduces_is_told_so(times: int, computed: int, told: bool) -> None:
    """Two ranks: three times a step each, and half as long as is exposed computed between."""
    found = gradients(stops={"times": times, "computed": computed * MS})
    assert any("3 times per step the backward pass stops" in fact for fact in found.evidence) is told
    assert found.next.startswith("Let the backward pass go on") is told and (found.remedies == ()) is told


def test_computing_between_all_reduces_is_what_stops_the_backward_pass(tmp_path: Path) -> None:
    """A job with one all-reduce of gradients was told that its backward pass stops 41 times for them."""
    rows = [
        (0, step, 100 * step + start, 100 * step + end, account)
        for step in (0, 1, 2)
        for start, end, account in (
            (0, 10, "compute"), (10, 20, BARE_TIME), (20, 27, "compute"), (27, 30, None),
            (30, 31, BARE_TIME), (31, 40, "compute"), (40, 45, BARE_TIME), (45, 60, "compute"),
            (60, 70, BARE_TIME), (70, 99, "compute"),
        )
    ]  # fmt: skip
    sent = [
        {"start": 100 * step + start, "end": 100 * step + end, "kind": kind, "bytes_in": size}
        for step in (0, 1, 2)
        for start, end, kind, size in (
            (10, 20, "all-reduce", 800), (12, 18, "all-reduce", 80), (30, 31, "all-reduce", 8),
            (40, 45, "all-reduce", 800), (60, 70, "all-gather", 800),
        )
    ]  # fmt: skip
    trace = made(tmp_path, {"ranks": [{}], "collectives": sent})
    types = {"rank": pl.Int32, "step": pl.Int64, "start": pl.Int64, "end": pl.Int64, "account": pl.String}
    runs = pl.DataFrame(rows, types, orient="row")
    counted = runs.select("rank", "step").unique().filter(pl.col("step") > 0)
    assert Exposed(trace, runs, counted).stops() == {"times": 2, "computed": 2 * (7 + 9)}
    assert Exposed(trace, None, counted).stops() == {}


def test_operations_of_no_known_group_are_told_apart_by_their_streams(tmp_path: Path) -> None:
    """PyTorch gives each group one; those of layers made those of gradients tensor parallelism, too."""
    tables = job("all-reduce", group=None)
    for name in ("kernels", "collectives"):
        tables[name] += [
            {**row, "start": row["start"] - 20, "end": row["start"] - 10, "stream": 11, "correlation": 99 + n}
            | ({"arrival": row["start"] - 20} if name == "collectives" else {"phase": "forward"})
            for n, row in enumerate(tables[name])
            if row.get("stream") == 9
        ]
    page = lostflops.why(made(tmp_path, tables))
    (finding,) = (f for f in page.findings if f.name == "communication-exposed")
    assert "all of it: all-reduces of gradients" in finding.evidence


def test_tensor_parallelism_is_told_where_no_group_is_described(tmp_path: Path) -> None:
    """Nsight Systems names no groups, and no operator is around what a layer reduces in its forward pass."""
    assert_told_tensor_parallel("tp4-dp2", tmp_path)


def test_so_it_is_where_micro_batches_go_forward_after_others_went_backward(tmp_path: Path) -> None:
    assert_told_tensor_parallel("tp2-pp2-dp2-m12", tmp_path)


def assert_told_tensor_parallel(text: str, folder: Path) -> None:
    job = SimulatedJob(strategy(text, 8), seed=1, steps=2, warmup=1, model="llama-3-8b", layers=2)
    simulate(job, folder, format="nsys")
    page = lostflops.why(folder)
    (finding,) = (f for f in page.findings if f.name == "communication-exposed")
    assert any("tensor parallelism" in fact for fact in finding.evidence)
    assert "no_sync" not in finding.next
