"""Real PyTorch profiler traces against figures worked out by brute force: every trace in the shared folder is
read, its ledger adds up to the nanosecond, and its accounts are the published ones."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from lostflops import intervals
from lostflops.errors import NotATrace
from lostflops.ingest import job
from lostflops.ingest.kineto import reader as kineto
from lostflops.ingest.kineto import stream
from lostflops.session import Answer, Session, Skipped
from lostflops.store.trace import DEVICE_UNKNOWN, GPU_WORK_LOST

REAL = Path(__file__).parents[3] / "shared" / "traces" / "kineto"
TRACES = sorted(f"{p.parent.name}/{p.name}" for p in REAL.glob("*/*.json.gz")) if REAL.is_dir() else []
SMALL = [t for t in TRACES if (REAL / t).stat().st_size < 1_000_000]

pytestmark = pytest.mark.skipif(not TRACES, reason="the shared traces are not here")


class Opened:
    """Traces by a part of their name, each read once."""

    def __init__(self) -> None:
        self.sessions: dict[tuple[str, ...], Session] = {}

    def __call__(self, *wanted: str) -> Session:
        if wanted not in self.sessions:
            self.sessions[wanted] = Session(job.open([found(w) for w in wanted], allow_missing_ranks=True))
        return self.sessions[wanted]


def found(wanted: str) -> Path:
    """The one shared trace whose name contains the text."""
    names = [t for t in TRACES if wanted in t]
    assert len(names) == 1, (wanted, names)
    return REAL / names[0]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOSTFLOPS_CACHE", str(tmp_path_factory.mktemp("store")))
        yield Opened()


def table(session: Session, name: str) -> pl.DataFrame:
    frame = session.trace.table(name)
    assert frame is not None, session.trace.absence(name)
    return frame.collect()


def ask(session: Session, recipe: str) -> pl.DataFrame:
    answer = session.run(recipe)
    assert not isinstance(answer, Skipped), answer.reason
    return answer.table


def notes(session: Session) -> dict[str, int]:
    return {q.name: q.count for q in session.trace.manifest.quality}


# --- every trace
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRACES)
def test_every_trace_keeps_the_identity_and_little_is_unclassified(name: str, opened: Opened) -> None:
    session = opened(name)
    ledger = ask(session, "step_ledger")
    steps = table(session, "steps").select("rank", "step", length=pl.col("end") - pl.col("start"))
    sums = ledger.group_by("rank", "step").agg(pl.col("ns").sum())
    both = steps.join(sums, on=["rank", "step"], how="full", coalesce=True)
    assert both.height == steps.height > 0
    assert both["length"].to_list() == both["ns"].to_list()
    assert (ledger["ns"] > 0).all()
    length = pl.col("end") - pl.col("start")
    work, unknown = (
        table(session, "kernels")
        .select(length.sum(), length.filter(pl.col("family") == "unclassified").sum().alias("unknown"))
        .row(0)
    )
    # Kernels of MTIA are whole parts of a model, under the names that its authors gave them.
    assert unknown <= 0.01 * work or "mtia" in name


@pytest.mark.parametrize("name", SMALL)
def test_every_row_of_the_file_that_counts_is_in_a_table(name: str, opened: Opened) -> None:
    """Counted in the text itself, by category: nothing else in a profiler's file looks like these keys."""
    text = gzip.decompress((REAL / name).read_bytes())
    session = opened(name)

    def counted(cat: str) -> int:
        return text.count(b'"cat": "%s"' % cat.encode())

    if counted("Operator"):  # then annotations are among them, by name
        expected = {"kernels": ("Kernel", "kernel"), "launches": ("Runtime", "cuda_runtime", "cuda_driver")}
    else:
        expected = {
            "kernels": ("kernel", "Kernel"),
            "launches": ("cuda_runtime", "cuda_driver", "Runtime"),
            "operators": ("cpu_op",),
            "frames": ("python_function",),
        }
    expected["copies"] = ("gpu_memcpy", "gpu_memset", "Memcpy", "Memset")
    if counted("mtia_ccp_events"):  # kernels, copies and, as ranges, waits of the device
        del expected["kernels"], expected["copies"]
        expected["launches"] = ("mtia_runtime",)
        work = (table(session, "kernels"), table(session, "copies"), table(session, "ranges"))
        of_device = (work[0], work[1], work[2].filter(pl.col("domain") == "mtia_ccp_events"))
        assert sum(rows.height for rows in of_device) == counted("mtia_ccp_events")
    lost = sum(notes(session).get(n, 0) for n in ("rows without usable times", "rows longer than ten days"))
    assert lost == 0
    cpu_only = table(session, "ranks")["device_kind"][0] == "cpu"
    for ours, theirs in expected.items():
        if ours == "kernels" and cpu_only:
            continue
        rows = session.trace.table(ours)
        count = 0 if rows is None else rows.select(pl.len()).collect().item()
        assert count == sum(map(counted, theirs)), ours


# --- the whole GPU window
# ------------------------------------------------------------------------------------------

# GPU rows, Σ durations, window, compute, communication, exposed, copies exposed, idle.
WINDOWS = {
    "deepseek/train": (983, 244069000, 129012000, 124310000, 113440000, 4190000, 15000, 497000),
    "nccl_data": (3774, 165185838, 660551005, 115655847, 46876493, 39559468, 2284699, 503050991),
    "df_index_resolver": (
        22290,
        1000613000,
        1732965000,
        620516000,
        357343000,
        357343000,
        22754000,
        732352000,
    ),
    "negative_queue": (7747, 449763000, 1231461000, 210998000, 187870000, 185317000, 42109000, 793037000),
    "sampled_rank-0": (1204, 607844000, 1222847000, 210320000, 396199000, 336983000, 353000, 675191000),
    "sampled_rank-1": (1154, 667530000, 1231186000, 271973000, 379053000, 303523000, 4554000, 651136000),
    "h100__Qwen": (1707, 45647300, 49652832, 45432698, 0, 0, 214602, 4005532),
    "h100__Falconsai": (156, 1225310, 7559844, 1220926, 0, 0, 4384, 6334534),
    "h100__gaunernst": (61, 309437, 3907825, 307197, 0, 0, 2240, 3598388),
    "mi300__Qwen": (1517, 43062802, 47085800, 43062042, 0, 0, 760, 4022998),
    "mi300__Falconsai": (155, 1716301, 6868849, 1716301, 0, 0, 0, 5152548),
    "mi300__gaunernst": (61, 390748, 3495976, 388344, 0, 0, 2404, 3105228),
    "mi300__resnet": (3653, 100230072, 86567708, 25739303, 71516523, 55625224, 2637529, 2565652),
    "mi210__gpu_only": (562, 5343422, 5979503, 5343422, 0, 0, 0, 636081),
    "sglang_Qwen3-8B_decode": (558, 9778614, 473749943, 9759749, 0, 0, 13177, 463977017),
    "sglang_Qwen3-8B_prefilldecode": (534, 492811563, 987288887, 492768906, 0, 0, 37971, 494482010),
    "piecewise__graph_execution": (423, 156085905, 156466417, 156008394, 0, 0, 77399, 380624),
    "param/linear": (10356, 370983000, 1008570000, 369343000, 0, 0, 1640000, 637587000),
    "worker0.1623143089861": (9096, 603558000, 996477000, 591532000, 0, 0, 12026000, 392919000),
    "worker0.1623143566756": (9096, 602145000, 876066000, 591209000, 0, 0, 10936000, 273921000),
    "worker0.1623212756351": (9258, 614413000, 801550000, 594868000, 0, 0, 19545000, 187137000),
    "older_resnet50": (10015, 653527000, 927973000, 640354000, 0, 0, 13173000, 274446000),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_the_whole_gpu_window_is_accounted_for(name: str, opened: Opened) -> None:
    session = opened(name)
    columns = ["rank", "start", "end"]
    kernels = table(session, "kernels")
    copies = session.trace.table("copies")
    talk = session.trace.table("collectives")
    moved = pl.DataFrame(schema=kernels.select(columns).schema)
    moves = moved if copies is None else copies.filter(~pl.col("communication")).select(columns).collect()
    talks = moved if talk is None else talk.select(columns).collect()
    work = kernels.filter(pl.col("family") != "communication").select(columns)
    rows = pl.concat([kernels.select(columns), moves])
    start, end = rows.select(pl.col("start").min(), pl.col("end").max()).row(0)
    window = pl.LazyFrame({"rank": [0], "start": [start], "end": [end]}).cast({"rank": pl.Int32})
    rank = kernels["rank"][0]
    painted = intervals.paint(
        window.with_columns(rank=pl.lit(rank, dtype=pl.Int32)),
        {"compute": work.lazy(), "exposed": talks.lazy(), "copies": moves.lazy()},
        by=["rank"],
    )
    length = (pl.col("end") - pl.col("start")).sum()
    spent = dict(painted.group_by("account").agg(length).collect().iter_rows())
    union = intervals.union(talks.lazy(), by=["rank"]).select(length)
    assert (
        rows.height,
        (rows["end"] - rows["start"]).sum(),
        end - start,
        spent.get("compute", 0),
        union.collect().item(),
        spent.get("exposed", 0),
        spent.get("copies", 0),
        spent.get(None, 0),
    ) == WINDOWS[name]


def test_deepseek_hides_its_communication_that_others_do_not_see(opened: Opened) -> None:
    session = opened("deepseek/train")
    row = ask(session, "communication_exposed").row(0, named=True)
    assert (row["compute"], row["total"], row["exposed"]) == (124_310_000, 113_440_000, 4_190_000)
    assert row["hidden"] == 109_250_000
    assert round(row["hidden_share"], 4) == 0.9631
    kernels = table(session, "kernels").filter(pl.col("family") == "communication")
    name = pl.col("name").cast(pl.String)
    length = (pl.col("end") - pl.col("start")).sum()
    assert kernels.height == 36
    parts = {
        part: kernels.filter(name.str.contains(part)).select(length).item()
        for part in (
            "::combine",
            "::dispatch",
            "::cached_notify",
            "::notify_dispatch",
            "::get_dispatch_layout",
        )
    }
    assert list(parts.values()) == [49_448_000, 31_004_000, 23_610_000, 8_968_000, 410_000]
    assert set(table(session, "collectives")["library"].cast(pl.String)) == {"DeepEP"}


@pytest.mark.parametrize(
    ("name", "exposed", "idle"),
    [("num_workers_4__worker0", 15_353_000, 1_169_000), ("worker0.1623143566756", 8_749_000, 765_000)],
)
def test_pinning_could_save_what_pageable_copies_and_their_calls_cost(
    opened: Opened, name: str, exposed: int, idle: int
) -> None:
    answer = opened(name).run("copy_summary_by_time")
    assert not isinstance(answer, Skipped)
    row = answer.table.filter(pl.col("host_memory") == "pageable").row(0, named=True)
    assert (row["copies_in_steps"], row["in_steps"], row["idle_in_calls"]) == (10, exposed, idle)
    (finding,) = (f for f in answer.findings if f.name == "copies-pageable")
    assert finding.ns_per_step == row["at_most"] // 5 >= (exposed + idle) // 5


def test_exposed_communication_is_claimed_of_the_steps_that_its_gain_is_of(opened: Opened) -> None:
    answer = opened("mi300__resnet_act_checkpoint").run("communication_exposed")
    assert not isinstance(answer, Skipped)
    (finding,) = answer.findings
    assert finding.cost_per_step == answer.table["in_steps"][0] // 2 == 11_699_040
    assert finding.claim == "Communication that no computation hides costs 11.7 ms per step (62.3 %)."
    share = "74.7 % of the communication inside steps is exposed: 23.4 ms of 31.3 ms, added up over steps"
    assert finding.evidence[0] == share
    assert finding.ns_per_step == answer.table["at_most"][0] // 2 >= finding.cost_per_step


def test_the_top_kernel_of_an_h100_is_counted_exactly(opened: Opened) -> None:
    kernels = table(opened("h100__Qwen"), "kernels").with_columns(ns=pl.col("end") - pl.col("start"))
    assert kernels["name"].n_unique() == 26
    by_name = kernels.group_by("name").agg(
        pl.len(),
        total=pl.col("ns").sum(),
        mean=pl.col("ns").mean(),
        low=pl.col("ns").min(),
        top=pl.col("ns").max(),
    )
    top = by_name.sort("total").row(-1, named=True)
    assert str(top["name"]).startswith("sm90_xmma_gemm")
    assert (top["len"], top["total"], round(top["mean"]), top["low"], top["top"]) == (
        241, 12_789_918, 53_070, 30_912, 86_016,
    )  # fmt: skip


def test_the_sizes_of_all_reduces_and_broadcasts_come_from_their_metadata(opened: Opened) -> None:
    talk = table(opened("nccl_data"), "collectives").with_columns(pl.col("kind", "dtype").cast(pl.String))
    assert talk["evidence"].to_list() == [1] * 21
    counts = {
        (kind, dtype, size): count
        for kind, dtype, size, count in talk.group_by("kind", "dtype", "bytes_in").len().iter_rows()
    }
    floats = (2_049_000, 7_875_584, 6_563_840, 6_637_568, 2_431_040)
    assert counts == {
        **{("all-reduce", "Float", 4 * n): 3 for n in floats},
        ("broadcast", "Float", 4 * 53_120): 3,
        ("broadcast", "Long", 8 * 53): 3,
    }
    reduces = talk.filter(pl.col("kind") == "all-reduce")
    assert (reduces["end"] - reduces["start"]).sum() == 46_762_159
    assert reduces["group_size"].unique().to_list() == [2]


# --- steps
# ------------------------------------------------------------------------------------------

# Step: length, compute, communication, copies, idle.
STEPS: dict[str, dict[int, tuple[int, ...]]] = {
    "nccl_data": {
        4: (222503285, 38506406, 10163762, 768753, 173064364),
        5: (219786430, 38429422, 10539609, 759895, 170057504),
        6: (224936243, 38720019, 18856097, 756051, 166604076),
    },
    "df_index_resolver": {
        2: (345823000, 124235000, 59630000, 4577000, 157381000),
        3: (365300000, 124096000, 59518000, 4600000, 177086000),
        4: (346141000, 123957000, 59560000, 4586000, 158038000),
        5: (344310000, 124197000, 59566000, 4535000, 156012000),
        6: (336328000, 124031000, 119069000, 4456000, 88772000),
    },
    "deepseek/train": {1: (129545000, 124310000, 4190000, 15000, 1030000)},
    "h100__Qwen": {6: (35183362, 31760058, 0, 145415, 3277889)},
    "h100__Falconsai": {6: (7894065, 1220926, 0, 4384, 6668755)},
    "h100__gaunernst": {6: (4426114, 307197, 0, 2240, 4116677)},
    "mi300__resnet": {
        15: (18980345, 6434141, 11885056, 568529, 92619),
        16: (18982928, 6354816, 11955460, 590354, 82298),
        17: (18554331, 6445137, 11442621, 557953, 108620),
    },
}


def accounts(ledger: pl.DataFrame, *by: str) -> dict[Any, tuple[int, ...]]:
    """Length, compute, communication, copies and idle of each step."""
    of = pl.col("account")
    sums = ledger.group_by(*by).agg(
        (pl.col("end") - pl.col("start")).first().alias("length"),
        pl.col("ns").filter(of == "compute").sum().alias("compute"),
        pl.col("ns").filter(of.str.starts_with("communication")).sum().alias("communication"),
        pl.col("ns").filter(of == "copy").sum().alias("copies"),
        pl.col("ns").filter(of.str.starts_with("idle.")).sum().alias("idle"),
    )
    return {row[: len(by)] if len(by) > 1 else row[0]: row[len(by) :] for row in sums.sort(by).iter_rows()}


@pytest.mark.parametrize("name", STEPS)
def test_each_step_is_accounted_for(name: str, opened: Opened) -> None:
    session = opened(name)
    assert accounts(ask(session, "step_ledger"), "step") == STEPS[name]
    assert set(table(session, "steps")["source"].cast(pl.String)) == {"profiler"}


# The same between the markers on the host, whatever was launched in them: they check the intervals.
MARKED: dict[str, dict[int, tuple[int, ...]]] = {
    "deepseek/train": {1: (112202000, 108971000, 2202000, 15000, 1014000)},
    "h100__Qwen": {6: (47151395, 43071901, 0, 203049, 3876445)},
    "mi300__resnet": {
        15: (16819343, 4786431, 9116155, 634912, 2281845),
        16: (15968298, 4059485, 11246291, 579113, 83409),
        17: (15887029, 4061235, 11791448, 8775, 25571),
    },
    "dlrm8/worker1_": {10: (19901000, 1246000, 11056000, 19000, 7580000)},
    "dlrm8/worker3_": {10: (19313000, 1240000, 9450000, 18000, 8605000)},
}


@pytest.mark.parametrize("name", MARKED)
def test_the_time_between_markers_is_accounted_for(name: str, opened: Opened) -> None:
    session = opened(name)
    marks = table(session, "ranges").with_columns(pl.col("name").cast(pl.String))
    marks = marks.filter(pl.col("name").str.starts_with("ProfilerStep#")).unique(["start", "name"])
    marks = marks.sort("start").select(
        "rank",
        "start",
        end=pl.coalesce(pl.col("start").shift(-1), "end"),
        step=pl.col("name").str.extract(r"#(\d+)").cast(pl.Int64),
    )
    kernels, copies = table(session, "kernels"), table(session, "copies")
    talks = pl.col("family") == "communication"
    layers = {
        "compute": kernels.filter(~talks).lazy(),
        "communication": kernels.filter(talks).lazy(),
        "copies": copies.lazy(),
    }
    painted = intervals.paint(marks.lazy(), layers, ["rank"]).collect()
    length = pl.col("end") - pl.col("start")
    spent = {
        (step, account or "idle"): ns
        for step, account, ns in painted.group_by("step", "account").agg(length.sum()).iter_rows()
    }
    names = ("compute", "communication", "copies", "idle")
    whole = dict(marks.select("step", length).iter_rows())
    assert {step: (whole[step], *(spent.get((step, name), 0) for name in names)) for step in whole} == MARKED[
        name
    ]


def test_one_rank_alone_claims_neither_wait_nor_transfer(opened: Opened) -> None:
    for name in ("nccl_data", "df_index_resolver", "deepseek/train", "mi300__resnet"):
        claimed = set(ask(opened(name), "step_ledger")["account"])
        assert "communication.exposed" in claimed
        assert not claimed & {"communication.wait", "communication.transfer"}


# --- eight ranks: wait against transfer
# ------------------------------------------------------------------------------------------

DLRM = tuple(f"dlrm8/worker{r}_" for r in range(8))
# kind, bytes in on rank 0, last rank, Σ wait, Σ transfer, shortest kernel; µs.
COLLECTIVES = [
    ("all-to-all", 24_576, 7, 26_435, 81, 10),
    ("all-to-all", 192, 7, 6_231, 60, 8),
    ("all-to-all", 1_536, 7, 1_161, 58, 7),
    ("all-to-all", 13_568, 7, 871, 58, 7),
    ("all-reduce", 1_576_964, 7, 854, 678, 86),
    ("all-to-all", 24_576, 5, 2_903, 77, 10),
    ("all-reduce", 448, 5, 3_379, 157, 20),
    ("all-reduce", 907_840, 4, 5_009, 530, 69),
]
SPREADS = [(7624, 2), (1101, 2), (168, 1), (125, 2), (223, 5), (534, 3), (584, 5), (885, 7)]
# step, compute, wait exposed, transfer exposed, copies exposed, idle; µs, ranks 0 to 7.
RANKS = [
    (14_455, 1_034, 5_342, 195, 19, 7_865),
    (18_567, 1_043, 10_854, 202, 18, 6_450),
    (13_017, 1_068, 3_034, 183, 19, 8_713),
    (18_711, 1_064, 9_253, 197, 18, 8_179),
    (17_979, 1_126, 6_337, 213, 26, 10_277),
    (17_797, 1_041, 6_007, 204, 19, 10_526),
    (13_091, 1_051, 3_109, 180, 19, 8_732),
    (12_509, 1_059, 1_380, 200, 20, 9_850),
]


def test_every_collective_of_eight_ranks_is_matched_and_split(opened: Opened) -> None:
    talk = ask(opened(*DLRM), "communication_matches").with_columns(pl.col("kind").cast(pl.String))
    assert talk.height == 64 and talk["instance"].null_count() == 0
    assert talk["evidence"].unique().to_list() == [2]
    per = talk.group_by("instance").agg(
        pl.col("kind").unique().sort(),
        pl.col("bytes_in").filter(pl.col("rank") == 0).first(),
        pl.col("last_rank").first(),
        pl.col("wait").sum(),
        pl.col("transfer").sum(),
        pl.col("latency").first(),
        (pl.col("arrival").max() - pl.col("arrival").min()).alias("starts"),
        (pl.col("end").max() - pl.col("end").min()).alias("ends"),
        pl.col("members").first(),
    )
    per = per.sort("instance")
    assert per["members"].unique().to_list() == [8] and per["kind"].list.len().unique().to_list() == [1]
    got = [
        (row["kind"][0], row["bytes_in"], row["last_rank"], row["wait"], row["transfer"], row["latency"])
        for row in per.iter_rows(named=True)
    ]
    assert got == [(k, b, last, *(1000 * us for us in rest)) for k, b, last, *rest in COLLECTIVES]
    assert per.select("starts", "ends").rows() == [(1000 * a, 1000 * b) for a, b in SPREADS]
    wait, transfer = talk["wait"].sum(), talk["transfer"].sum()
    assert (wait, transfer) == (46_843_000, 1_699_000)
    assert round(wait / (wait + transfer), 3) == 0.965
    stays = dict(
        talk.group_by("rank").agg((pl.col("end") - pl.col("arrival")).sum() // 1000).sort("rank").iter_rows()
    )
    assert sum(stays.values()) == 48_542
    assert (min(stays.items(), key=lambda s: s[1]), max(stays.items(), key=lambda s: s[1])) == (
        (7, 1_746),
        (1, 11_336),
    )


def test_the_blame_for_waiting_goes_to_who_came_last(opened: Opened) -> None:
    blame = ask(opened(*DLRM), "communication_imbalance")
    charged = {row["rank"]: row["blame"] for row in blame.iter_rows(named=True)}
    assert charged == {7: 35_552_000, 5: 6_282_000, 4: 5_009_000, **dict.fromkeys((0, 1, 2, 3, 6), 0)}
    shares = {row["rank"]: round(row["blame_share"], 3) for row in blame.iter_rows(named=True)}
    assert (shares[7], shares[5], shares[4]) == (0.759, 0.134, 0.107)
    waits = {row["rank"]: row["own_wait"] // 1000 for row in blame.iter_rows(named=True)}
    assert [waits[r] for r in range(8)] == [5580, 11125, 3280, 9571, 6370, 6041, 3342, 1534]


def test_the_steps_of_eight_ranks_split_into_wait_and_transfer(opened: Opened) -> None:
    ledger = ask(opened(*DLRM), "step_ledger")
    assert ledger["step"].unique().to_list() == [10]
    spent = {(r, a): ns // 1000 for r, a, ns in ledger.select("rank", "account", "ns").iter_rows()}
    plain = accounts(ledger, "rank")
    got = [
        (
            plain[r][0] // 1000,
            spent[r, "compute"],
            spent[r, "communication.wait"],
            spent[r, "communication.transfer"],
            spent[r, "copy"],
            plain[r][4] // 1000,
        )
        for r in range(8)
    ]
    assert got == RANKS
    assert not ledger.filter(pl.col("account") == "communication.exposed").height
    assert [sum(column) for column in zip(*got, strict=True)] == [126_126, 8_486, 45_316, 1_574, 158, 70_592]


def test_one_host_is_known_to_have_one_clock_within_microseconds(opened: Opened) -> None:
    ranks = table(opened(*DLRM), "ranks")
    assert ranks["clock_offset"].to_list() == [0] * 8
    assert (ranks["clock_error"] <= 7_000).all()


def test_eight_ranks_of_which_one_is_absent_claim_no_wait(opened: Opened) -> None:
    session = opened(*DLRM[:7])
    talk = ask(session, "communication_matches")
    assert talk["wait"].null_count() == talk.height
    assert "7 of 8" in talk["reason"][0]
    assert not ask(session, "step_ledger")["account"].str.contains("wait|transfer").any()


def test_two_sampled_ranks_of_128_are_not_matched(opened: Opened) -> None:
    session = opened("sampled_rank-0", "sampled_rank-1")
    talk = ask(session, "communication_matches")
    assert talk.height == 20
    assert talk["wait"].null_count() == talk["instance"].null_count() == 20
    assert (talk["reason"] != "").all()
    assert not ask(session, "step_ledger")["account"].str.contains("wait|transfer").any()


# --- gloo
# ------------------------------------------------------------------------------------------

DDP = tuple(f"torch213_cpu/ddp_rank{r}" for r in range(4))


def test_gloo_waits_from_the_operator_on_not_from_its_annotation(opened: Opened) -> None:
    talk = ask(opened(*DDP), "communication_matches")
    assert talk.height == 48 and talk["instance"].null_count() == 0
    per = talk.group_by("rank").agg(pl.col("wait").sum(), pl.col("transfer").sum()).sort("rank")
    assert per["wait"].to_list() == [45_867_249, 1_449_509_678, 1_423_131_969, 1_526_795_299]
    # Adding start and duration as floating-point numbers first makes three of these 1 or 2 ns longer.
    assert per["transfer"].to_list() == [146_944_986, 144_085_155, 140_500_612, 125_193_217]
    arrived = talk.filter(pl.col("arrival") == pl.col("last_arrival")).group_by("rank").len().sort("rank")
    assert arrived["len"].to_list() == [7, 1, 1, 3]


def test_an_injected_sleep_is_found_as_a_host_range_of_its_length(opened: Opened) -> None:
    ranges = table(opened(*DDP), "ranges").filter(
        pl.col("name").cast(pl.String) == "injected_straggler_sleep"
    )
    assert ranges["rank"].unique().to_list() == [1]
    lengths = (ranges["end"] - ranges["start"]).to_list()
    assert [round(ns / 1e6, 1) for ns in lengths] == [52.0, 57.3, 61.9]


@pytest.mark.parametrize(("job_name", "count"), [("ddp", 12), ("fsdp2", 42), ("tp_pp", 144)])
def test_every_gloo_operation_has_its_operator(job_name: str, count: int, opened: Opened) -> None:
    session = opened(*(f"torch213_cpu/{job_name}_rank{r}" for r in range(4)))
    talk = table(session, "collectives").with_columns(pl.col("kind").cast(pl.String))
    p2p = talk["kind"].is_in(["send", "receive"])
    assert talk.filter(~p2p).group_by("rank").len()["len"].to_list() == [count] * 4
    assert (talk.filter(~p2p)["evidence"] == 2).all()
    assert (talk["start"] < talk["end"]).all()
    if job_name == "fsdp2":
        kinds = talk.filter(pl.col("rank") == 0)["kind"].value_counts().rows()
        assert dict(kinds) == {"all-gather": 27, "reduce-scatter": 15}
    if job_name == "tp_pp":  # the operator names a place in its group, the table global ranks
        assert talk.filter(p2p).group_by("rank").len()["len"].to_list() == [24] * 4
        peers = talk.filter(p2p).select("rank", "peer").unique().sort("rank").rows()
        assert peers == [(0, 2), (1, 3), (2, 0), (3, 1)]


# --- data loading
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "step_ms", "starved"),
    [
        ("worker0.1623143089861", 177.59, 33.37),
        ("worker0.1623143566756", 154.91, 22.92),
        ("worker0.1623212756351", 141.09, 0.84),
        ("older_resnet50", 148.74, 21.0),
    ],
)
def test_data_loading_costs_what_no_gpu_work_hides(
    name: str, step_ms: float, starved: float, opened: Opened
) -> None:
    """Worked out from the rows: every moment in the loader without GPU work. Of these the ledger gives to
    other causes the microseconds between kernels that were queued already, or whose launch is not known."""
    session = opened(name)
    idle = ask(session, "idle_causes")
    loader = table(session, "ranges").filter(pl.col("name").cast(pl.String).str.starts_with("enumerate("))
    loading = intervals.union(loader.select("rank", "start", "end").lazy(), by=["rank"])
    within = intervals.inside(idle.lazy(), loading, {"within": pl.lit(True)}).filter(pl.col("within") > 0)
    spent = dict(within.group_by("account").agg(pl.col("within").sum()).collect().iter_rows())
    ledger = ask(session, "step_ledger")
    whole = ledger.unique("step").select((pl.col("end") - pl.col("start")).sum()).item()
    loading = ledger.filter(pl.col("account") == "idle.data_loading")["ns"].sum()
    assert ledger["step"].n_unique() == 6
    assert whole / 6e6 == pytest.approx(step_ms, rel=0.001)
    assert 100 * sum(spent.values()) / whole == pytest.approx(starved, abs=0.05)
    assert spent.pop("idle.data_loading") == loading
    assert set(spent) <= {"idle.dependency", "idle.unrecorded"}
    assert sum(spent.values()) < 0.006 * whole


@pytest.mark.parametrize(
    ("name", "step_ms", "loading", "starved", "busy"),
    [
        ("worker0.1623143089861", 174.83, 39.6, 33.9, 56.0),
        ("worker0.1623143566756", 152.96, 29.7, 23.2, 64.4),
        ("worker0.1623212756351", 139.69, 1.0, 0.85, 72.4),
        ("older_resnet50", 154.75, 30.1, 20.3, 70.4),
    ],
)
def test_the_loader_of_the_markers_spans_is_as_published(
    name: str, step_ms: float, loading: float, starved: float, busy: float, opened: Opened
) -> None:
    session = opened(name)
    ranges = table(session, "ranges").with_columns(pl.col("name").cast(pl.String))
    steps = ranges.filter(pl.col("name").str.starts_with("ProfilerStep#")).unique(["start", "name"]).lazy()
    loader = ranges.filter(pl.col("name").str.starts_with("enumerate(")).lazy()
    work = pl.concat([table(session, t).select("rank", "start", "end") for t in ("kernels", "copies")]).lazy()
    pieces = intervals.overlay({"loads": loader, "works": work}, by=["rank"])
    loads, works = pl.col("loads") > 0, pl.col("works") > 0
    parts = {"loading": loads, "starved": loads & ~works, "busy": works}
    spent = intervals.inside(steps.select("rank", "start", "end"), pieces, parts).collect()
    whole = (spent["end"] - spent["start"]).sum()
    assert spent.height == 6 and whole / 6e6 == pytest.approx(step_ms, abs=0.005)
    told = [100 * spent[c].sum() / whole for c in parts]
    assert told == pytest.approx([loading, starved, busy], abs=0.051)


# --- quirks
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rank", "source"),
    [
        ("rank_unavailable", 0, "assigned"),
        ("distributed_info_unavailable", 0, "assigned"),
        ("large_integer_trace", 70, "file name"),
        ("older_resnet50", 0, "file name"),
        ("rank-34_older", 34, "distributedInfo"),
        ("df_index_resolver", 1, "distributedInfo"),
        ("trace_compare__base", 1, "distributedInfo"),
    ],
)
def test_the_rank_is_what_the_trace_says_and_assigned_ranks_are_called_so(
    name: str, rank: int, source: str, opened: Opened
) -> None:
    session = opened(name)
    assert table(session, "ranks").select("rank", "rank_source").rows() == [(rank, source)]
    assert ("rank not recorded" in notes(session)) == (source == "assigned")


@pytest.mark.parametrize(
    ("name", "device", "gpu", "sms"),
    [
        ("sglang_Qwen3-8B_decode", 9, "AMD Instinct MI300X", 304),
        ("vllm_decode_full", 2, None, 304),
        ("mi300__Qwen", 2, "AMD Instinct MI300X VF", 304),
        ("mi250_minitoy", 2, "AMD Radeon Graphics", 104),
        ("aorta/", 0, "AMD Instinct MI350X", 256),
        ("deepseek/train", 0, "NVIDIA H800", 132),
        ("tb_plugin_gpu_metrics_input", 0, "Tesla V100-DGXS-32GB", 80),
    ],
)
def test_devices_are_numbered_as_their_rows_say(
    name: str, device: int, gpu: str | None, sms: int, opened: Opened
) -> None:
    row = table(opened(name), "ranks").row(0, named=True)
    assert (row["device"], row["gpu"], row["num_sms"]) == (device, gpu, sms)


def test_work_on_stream_0_is_work(opened: Opened) -> None:
    for name in ("mi300__Qwen", "mi250_minitoy"):
        assert 0 in table(opened(name), "kernels")["stream"].to_list()


@pytest.mark.parametrize(
    ("name", "rows", "without"),
    [
        ("h100__Qwen", 1707, 509),
        ("mi300__Qwen", 1517, 463),
        ("mi300__resnet", 3653, 968),
        ("negative_queue", 7747, 872),
        ("older_resnet50", 10_015, 733),
        ("worker1_step_12", 326, 64),
        ("worker3_step_12", 337, 64),
        ("trace_compare__base", 18, 16),
        ("trace_compare__test", 17, 16),
        ("sglang_Qwen3-8B_decode", 558, 0),
        ("mi210__gpu_only", 562, 0),
    ],
)
def test_work_without_its_launch_is_counted_not_guessed(
    name: str, rows: int, without: int, opened: Opened
) -> None:
    session = opened(name)
    work = pl.concat(
        [table(session, t).select("launch_start") for t in ("kernels", "copies") if session.trace.has(t)]
    )
    assert (work.height, work["launch_start"].null_count()) == (rows, without)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("mi300__resnet", 968, 0),
        ("deepseek/train", 0, 0),
        ("negative_queue", 899, 0),
        ("h100__Qwen", 509, 0),
    ],
)
def test_gpu_work_outside_all_steps_is_told(name: str, before: int, after: int, opened: Opened) -> None:
    """What was launched before the recording; what a step launched is in it, wherever the host is then."""
    told = notes(opened(name))
    assert told.get("GPU work before the first step", 0) == before
    assert told.get("GPU work after the last step", 0) == after


@pytest.mark.parametrize(
    ("name", "captured", "of"),
    [("sglang_decode__capture", 544, 546), ("vllm_prefilldecode_piecewise__capture", 361, 460)],
)
def test_launches_that_became_part_of_a_graph_are_told(
    name: str, captured: int, of: int, opened: Opened
) -> None:
    """The reference counts launches without GPU rows: all of them were captured."""
    (note,) = (q for q in opened(name).trace.manifest.quality if q.name == "launches captured into a graph")
    assert (note.count, note.of) == (captured, of)


def ns_by_account(session: Session) -> dict[str, int]:
    return dict(ask(session, "step_ledger").group_by("account").agg(pl.col("ns").sum()).iter_rows())


@pytest.mark.parametrize(
    ("name", "captures_ms", "of_ms"),
    [
        ("sglang_decode__capture", 30.6, 33.7),
        ("vllm_decode_full__capture", 54.98, 57.8),
        ("vllm_prefilldecode_piecewise__capture", 45.2, 55.2),
        ("xdit_flux.1__capture", 224.7, 396.6),
        ("xdit_flux.1_aiter_sage__capture", 538.4, 713.9),
    ],
)
def test_a_captured_graph_is_no_launch_bound_step(
    name: str, captures_ms: float, of_ms: float, opened: Opened
) -> None:
    """Worked out from the file: idle time between the calls that begin and end a capture."""
    spent = ns_by_account(opened(name))
    assert spent["idle.graph_capture"] / 1e6 == pytest.approx(captures_ms, abs=0.06)
    assert sum(spent.values()) / 1e6 == pytest.approx(of_ms, abs=0.06)
    assert spent["idle.launch_bound"] < 0.15 * sum(spent.values())


@pytest.mark.parametrize(
    ("name", "after_begin_ms", "in_calls_ms"),
    [
        ("perf_model__normalization", 980.5, 979.5),
        ("simple_add__input", 4_221.7, 4_221.6),
        ("v0.1_resnet50", 1_685.3, 1_668.8),
        ("mi250", 6.759, 6.667),
        ("worker0.1623212756351", 67.55, 55.04),
        ("df_index_resolver", 132.5, 93.1),
        ("nccl_data", 31.2, 25.5),
    ],
)
def test_dependency_is_what_follows_the_return_of_the_launching_call(
    name: str, after_begin_ms: float, in_calls_ms: float, opened: Opened
) -> None:
    """Worked out from the files: idle time after the next work's call began, and how much lies in it."""
    late = ns_by_account(opened(name))["idle.dependency"] / 1e6
    assert late == pytest.approx(after_begin_ms - in_calls_ms, abs=0.11)


@pytest.mark.parametrize(
    ("name", "waits_ms"), [("sglang_Qwen3-8B_decode", 463.25), ("sglang_Qwen3-8B_prefilldecode", 493.24)]
)
def test_work_that_waits_on_a_device_that_seems_idle_is_not_recorded_as_dependency(
    name: str, waits_ms: float, opened: Opened
) -> None:
    """A kernel is launched at once, and begins after half a second in which a copy blocks the host."""
    session = opened(name)
    spent = ns_by_account(session)
    assert spent["idle.unrecorded"] / 1e6 == pytest.approx(waits_ms, abs=0.01)
    assert spent["idle.dependency"] < 100_000
    said = session.run("idle_summary")
    assert not isinstance(said, Skipped)
    found = {finding.name: finding for finding in said.findings}
    assert found["recording-incomplete"].gain == "unknown"
    assert found["recording-incomplete"].ns_per_step == 0


@pytest.mark.parametrize(
    ("name", "busy"),
    [
        ("mi300__resnet", "27.77 ms"),
        ("older_resnet50", "35.17 ms"),
        ("negative_queue", "62.03 ms"),
        ("h100__Qwen", "13.74 ms"),
    ],
)
def test_work_before_the_first_step_is_told_as_time_of_the_device(
    name: str, busy: str, opened: Opened
) -> None:
    (fact,) = [q for q in opened(name).trace.manifest.quality if q.name == "GPU work before the first step"]
    assert f"busy there for {busy}," in fact.text


def test_a_mean_step_is_of_the_steps_that_were_recorded_from_end_to_end(opened: Opened) -> None:
    session = opened("kineto_tb/v0.1_resnet50")
    steps = table(session, "steps")
    assert steps.filter("complete").height == 5 and steps.height == 7
    totals = session.run("step_totals")
    assert isinstance(totals, Answer)
    assert totals.table["steps"].to_list() == [5]
    assert round(totals.table["step_time"].item() / 5e6, 2) == 161.12
    asked = Session(session.trace.select(steps=(0, 6))).run("step_totals")
    assert isinstance(asked, Answer) and asked.table["steps"].to_list() == [7]


def test_work_shorter_than_a_microsecond_clock_is_told(opened: Opened) -> None:
    assert notes(opened("deepseek/train"))["GPU rows of no length"] == 7
    assert notes(opened("worker0.1623143089861"))["GPU rows of no length"] == 636


def test_what_a_step_launched_runs_in_it_however_far_the_host_is_ahead(opened: Opened) -> None:
    """Not one of these rows runs while the host is still in the step that launched it."""
    session = opened("mi300__resnet")
    work = pl.concat(
        [table(session, t).select("start", "end", "launch_start") for t in ("kernels", "copies")]
    )
    for step in table(session, "steps").iter_rows(named=True):
        launched = work.filter(
            pl.col("launch_start").is_between(step["host_start"], step["host_end"], closed="left")
        )
        assert launched.height == 895
        assert launched["start"].min() >= step["start"] and launched["end"].max() <= step["end"]
        assert launched["start"].min() > step["host_end"]


def test_a_step_that_outlives_the_recording_is_cut_and_incomplete(opened: Opened) -> None:
    steps = table(opened("triton_example"), "steps")
    assert steps["complete"].to_list() == [False]
    assert (steps["end"] - steps["start"]).item() < 13_000_000_000


def test_a_graph_launch_owns_all_its_kernels(opened: Opened) -> None:
    kernels = table(opened("sglang_Qwen3-8B_decode"), "kernels")
    assert kernels.group_by("correlation").len()["len"].max() == 544
    assert kernels["launch_start"].null_count() == 0


def test_of_two_calls_that_share_an_id_the_outer_one_launches(opened: Opened) -> None:
    session = opened("aorta/")
    calls = table(session, "launches").with_columns(pl.col("name").cast(pl.String))
    shared = calls.filter(pl.col("correlation").is_duplicated())
    assert sorted(shared["name"]) == ["hipArray3DCreate"] * 2 + ["hipMemsetAsync"] * 2
    kernels = table(session, "kernels")
    assert kernels.height == 20
    assert kernels["launch_start"].null_count() == kernels["operator"].null_count() == 0
    fills = kernels.join(shared.select("correlation"), on="correlation", how="semi")
    outer = shared.filter(pl.col("name") == "hipMemsetAsync")
    assert sorted(fills["launch_end"]) == sorted(outer["end"])
    assert not kernels["name"].cast(pl.String).str.contains(r"\.kd").any()


def test_grid_and_block_that_changed_places_are_put_right(opened: Opened) -> None:
    kernels = table(opened("aorta/"), "kernels").filter(pl.col("block").is_not_null())
    assert kernels["block"].max() <= 1024
    assert (256, 2048) in kernels.select("block", "grid").rows()  # written as grid 256, block 524,288


def test_operators_found_by_containment_are_those_the_profiler_linked(opened: Opened) -> None:
    """A trace whose external ids can be trusted: each GPU row's is that of the operator we found."""
    for name in ("nccl_data", "mi300__Qwen", "h100__Qwen"):
        events = json.loads(gzip.decompress(found(name).read_bytes()))["traceEvents"]
        operator = {
            e["args"]["External id"]: e["name"]
            for e in events
            if e.get("cat") == "cpu_op" and "External id" in e.get("args", {})
        }
        linked = {
            (e["args"]["correlation"], e["name"]): operator[e["args"]["External id"]]
            for e in events
            if e.get("cat") == "kernel" and e["args"].get("External id") in operator
        }
        ours = table(opened(name), "kernels").select("correlation", "name", "operator", "launch_start")
        checked = 0
        for correlation, kernel, found_operator, launched in ours.iter_rows():
            theirs = linked.get((correlation, kernel))
            if theirs is not None and launched is not None:
                assert found_operator == theirs
                checked += 1
        assert checked > 900


def test_bytes_of_rocm_copies_come_from_their_calls(opened: Opened) -> None:
    copies = table(opened("mi300__resnet"), "copies")
    with_bytes = copies.filter(pl.col("bytes").is_not_null())
    assert with_bytes.height >= 366


def test_a_memory_timeline_is_no_trace_of_events(opened: Opened) -> None:
    with pytest.raises(NotATrace, match=r"memory_timeline\.raw"):
        job.open(REAL / "hta" / "memory_analysis__memory_timeline.raw.gz")


def test_a_gpu_job_without_gpu_rows_says_so(opened: Opened) -> None:
    for name in ("mixed_files__rank_non_gpu", "distributed_info_unavailable"):
        session = opened(name)
        assert table(session, "ranks")["device_kind"].to_list() == ["cpu"]
        assert session.trace.table("copies") is None


def test_ids_beyond_64_bits_are_read(opened: Opened) -> None:
    session = opened("large_integer_trace")
    assert table(session, "kernels").height == 1


def test_counters_instead_of_kernels_are_named(opened: Opened) -> None:
    session = opened("cupti_profiler")
    assert notes(session)["rows of category 'cuda_profiler_range'"] == 77


def test_device_work_that_is_not_there_is_counted_by_what_began_it(opened: Opened) -> None:
    told = notes(opened("cupti_profiler"))
    assert told[GPU_WORK_LOST] == 77 + 16 + 1 + 10  # launches, copies and memsets
    assert DEVICE_UNKNOWN not in told


def test_the_work_of_an_accelerator_with_categories_of_its_own_is_read(opened: Opened) -> None:
    """Of MTIA's 1,313 device rows 339 are waits and records of events; 877 move data."""
    session = opened("mtia_inference")
    assert table(session, "ranks").select("device_kind", "gpu").rows() == [("gpu", "ARTEMIS")]
    assert DEVICE_UNKNOWN not in notes(session)
    kernels, copies = table(session, "kernels"), table(session, "copies")
    assert dict(kernels.group_by("name").len().iter_rows()) == {"merge": 36, "pe_exe": 24, "remote": 37}
    assert kernels["launch_start"].null_count() == 24  # pe_exe carries no correlation
    assert dict(copies.group_by("direction").len().iter_rows()) == {
        "host to device": 427,
        "device to host": 450,
    }
    assert table(session, "launches").height == 823


# --- the parallel way
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("name", ["mi300__resnet", "torch213_cpu/tp_pp_rank0"])
def test_several_processes_read_the_same_tables_as_one(
    name: str, plain: bool, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = found(name)
    if plain:
        unpacked = tmp_path / source.name.removesuffix(".gz")
        unpacked.write_bytes(gzip.decompress(source.read_bytes()))
        source = unpacked
    shipped: list[int] = []
    ship, skip = kineto.Pool.ship, kineto.PlainPool.skip
    monkeypatch.setattr(stream, "CHUNK", 1 << 20)
    monkeypatch.setattr(
        kineto.Pool, "ship", lambda pool, chunk: (shipped.append(len(chunk)), ship(pool, chunk))
    )

    def skipped(pool: kineto.PlainPool, begin: int) -> int:
        end = skip(pool, begin)
        shipped.extend([end - begin] if end > begin else [])
        return end

    monkeypatch.setattr(kineto.PlainPool, "skip", skipped)
    (alone,) = kineto.read(source, tmp_path / "one", processes=1)
    assert not shipped
    monkeypatch.setattr(kineto, "WORTH_PROCESSES", 0)
    (together,) = kineto.read(source, tmp_path / "two", processes=2)
    assert shipped
    assert alone.tables == together.tables
    assert (alone.num_events, alone.quality, alone.facts) == (
        together.num_events, together.quality, together.facts,
    )  # fmt: skip
    for kind in alone.tables:
        one, two = (pl.read_parquet(Path(p.folder) / f"{kind}.parquet") for p in (alone, together))
        order = [c for c in one.columns if one[c].dtype not in (pl.Categorical, pl.Enum)]
        text = [pl.col(c).cast(pl.String) for c in one.columns if c not in order]
        one, two = (f.with_columns(text).sort(f.columns) for f in (one, two))
        assert one.equals(two), kind
