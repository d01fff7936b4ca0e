"""Holistic Trace Analysis and lostflops, asked the same of the same files: equal, or it is said who is right.

HTA runs in an environment of its own (`make .venv-hta/.installed`); without it or the recorded traces these
tests are skipped. It tells whole microseconds of these traces.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lostflops
from lostflops.session import Session, Skipped

ROOT = Path(__file__).parents[2]
HTA = ROOT / ".venv-hta" / "bin" / "python"
TRACES = ROOT.parent / "shared" / "traces" / "kineto"
DLRM = {rank: next(TRACES.glob(f"param_dlrm8/worker{rank}_*.json.gz"), None) for rank in range(8)}
DEEPSEEK = {0: TRACES / "deepseek" / "train.json.gz"}

pytestmark = pytest.mark.skipif(
    not (ROOT / ".venv-hta" / ".installed").exists() or None in DLRM.values(),
    reason="HTA or the recorded traces are not here",
)
US = 1000


class Theirs:
    """HTA with its ranks loaded: what each analysis says, as lists of rows."""

    def __init__(self, files: dict[int, Path]) -> None:
        named = json.dumps({rank: str(file) for rank, file in files.items()})
        command = [str(HTA), str(ROOT / "benchmarks" / "ask_hta.py"), named, "--results"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )
        self._said: dict[str, Any] = {}
        assert "versions" in self._line()

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, analysis: str) -> Any:
        if analysis not in self._said:
            assert self._process.stdin is not None
            self._process.stdin.write(f"{analysis}\n")
            self._process.stdin.flush()
            answer = self._line()
            self._said[analysis] = answer.get("result", answer.get("error"))
        return self._said[analysis]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def theirs() -> Iterator[Theirs]:
    asked = Theirs({rank: file for rank, file in DLRM.items() if file})
    yield asked
    asked.close()


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOSTFLOPS_CACHE", str(tmp_path_factory.mktemp("store")))
        yield Session(lostflops.open([file for file in DLRM.values() if file]))


def table(ours: Session, recipe: str) -> pl.DataFrame:
    said = ours.run(recipe)
    assert not isinstance(said, Skipped), said
    return said.table


def by_rank(ledger: pl.DataFrame, accounts: pl.Expr) -> dict[int, int]:
    return dict(ledger.filter(accounts).group_by("rank").agg(pl.col("ns").sum()).iter_rows())


def test_compute_and_other_work_are_equal_and_idle_differs_by_the_window(
    theirs: Theirs, ours: Session
) -> None:
    """HTA's window begins with the first kernel and ends with the last: what the GPU idles in the step before
    and behind them is in no account of its. Ours is the step, and on two ranks it leaves out a kernel of the
    step before."""
    running: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for rank, what, time in table(ours, "gpu_overlap").select("rank", "running", "time").iter_rows():
        running[rank][what] += time
    ledger = table(ours, "step_ledger")
    idle = by_rank(ledger, pl.col("account").str.starts_with("idle"))
    all_of = by_rank(ledger, pl.lit(True))
    whole = 0
    for row in theirs.ask("get_temporal_breakdown"):
        rank, found = row["rank"], running[row["rank"]]
        compute = sum(time for what, time in found.items() if "compute" in what)
        work = sum(time for what, time in found.items() if what != "nothing")
        assert row["compute_time(us)"] * US == compute
        assert row["non_compute_time(us)"] * US == work - compute
        if all_of[rank] - idle[rank] == work:  # all of the rank's work is of the step
            whole += 1
            outside_of_its_window = all_of[rank] - row["kernel_time(us)"] * US
            assert outside_of_its_window > 0
            assert row["idle_time(us)"] * US + outside_of_its_window == idle[rank]
    assert whole == 6


def test_hidden_communication_is_equal(theirs: Theirs, ours: Session) -> None:
    shares = dict(table(ours, "communication_exposed").select("rank", "hidden_share").iter_rows())
    found = {row["rank"]: row["comp_comm_overlap_pctg"] for row in theirs.ask("get_comm_comp_overlap")}
    assert found == {rank: round(100 * share, 2) for rank, share in shares.items()}


def test_kinds_of_work_and_their_overlaps_are_equal(theirs: Theirs, ours: Session) -> None:
    kinds, _ = theirs.ask("get_gpu_kernel_breakdown")
    theirs_of = {row["kernel_type"]: row["sum"] * US for row in kinds}
    sums: dict[str, int] = defaultdict(int)
    for running, time in table(ours, "gpu_overlap").select("running", "time").iter_rows():
        sums[running] += time
    assert theirs_of["COMPUTATION"] == sums["compute"]
    assert theirs_of["COMPUTATION overlapping COMMUNICATION"] == sums["compute + communication"]
    assert theirs_of["COMMUNICATION"] == sums["communication"]
    assert theirs_of["MEMORY"] == sums["copies"]
    assert theirs_of["COMMUNICATION overlapping MEMORY"] == sums["communication + copies"]


def test_kernels_are_equal_where_hta_groups_once(theirs: Theirs, ours: Session) -> None:
    """It groups twice: with more than ten names of a kind, its mean, shortest and longest are the sum. Ours
    are those of the single executions, which the trace itself tells."""
    _, names = theirs.ask("get_gpu_kernel_breakdown")
    ours_of = {
        (rank, name): rest
        for rank, name, *rest in table(ours, "kernel_summary")
        .select("rank", pl.col("name").cast(pl.String), "time", "min", "max", "mean", "calls")
        .iter_rows()
    }
    kernels = ours.trace.table("kernels")
    assert kernels is not None
    truth = {
        (rank, name): rest
        for rank, name, *rest in kernels.group_by("rank", pl.col("name").cast(pl.String))
        .agg(
            shortest=(pl.col("end") - pl.col("start")).min(), longest=(pl.col("end") - pl.col("start")).max()
        )
        .collect()
        .iter_rows()
    }
    wrong = compared = 0
    for row in names:
        if row["kernel_type"] == "MEMORY" or row["name"] == "others":
            continue
        time, shortest, longest, mean, calls = ours_of[row["rank"], row["name"]]
        assert row["sum (us)"] * US == time
        assert [shortest, longest] == truth[row["rank"], row["name"]]
        compared += 1
        if calls > 1 and row["kernel_type"] == "COMPUTATION":
            assert row["mean (us)"] == row["max (us)"] == row["min (us)"] == row["sum (us)"]
            assert shortest <= mean <= longest < time
            wrong += 1
        else:
            assert [row["min (us)"] * US, row["max (us)"] * US] == [shortest, longest]
            assert round(row["mean (us)"] * US) == mean
    assert compared > 80 and wrong > 50


def test_each_launch_is_equal(theirs: Theirs, ours: Session) -> None:
    """HTA counts copies, too; their calls are in `launches`, and their times in `copies`."""
    launches = {
        (rank, correlation): rest
        for rank, correlation, *rest in table(ours, "launch_latency_trace")
        .select("rank", "correlation", "api", "kernel", "queue")
        .iter_rows()
    }
    copied = ours.trace.table("copies")
    assert copied is not None
    copies = {
        (rank, correlation): rest
        for rank, correlation, *rest in copied.select(
            "rank",
            "correlation",
            pl.col("launch_end") - pl.col("launch_start"),
            pl.col("end") - pl.col("start"),
            pl.max_horizontal(pl.col("start") - pl.col("launch_end"), 0),
        )
        .collect()
        .iter_rows()
    }
    told = {
        (int(rank), row["correlation"]): [
            row[c] * US for c in ("cpu_duration", "gpu_duration", "launch_delay")
        ]
        for rank, rows in theirs.ask("get_cuda_kernel_launch_stats").items()
        for row in rows
    }
    known = launches | copies
    assert len(told) > 1900 and set(told) <= set(known)
    # Of a copy that ran before its call returned, HTA's delay is 0, as ours above.
    assert all(known[key] == value for key, value in told.items())


def test_ranges_take_as_long(theirs: Theirs, ours: Session) -> None:
    ranges = {
        (rank, name): [time, shortest, longest]
        for rank, name, time, shortest, longest in table(ours, "range_summary")
        .select("rank", pl.col("name").cast(pl.String), "time", "min", "max")
        .iter_rows()
    }
    told = theirs.ask("get_gpu_user_annotation_breakdown")
    # Only those that carry nine tenths of the time stand for themselves: it has no single row for the others.
    named = [row for row in told if row["name"] != "others"]
    assert len(named) > 100
    for row in named:
        assert [row[f"{c} (us)"] * US for c in ("sum", "min", "max")] == ranges[row["rank"], row["name"]]


def test_the_steps_are_the_same(theirs: Theirs, ours: Session) -> None:
    steps = table(ours, "counted_steps")["step"].unique().to_list()
    assert [int(step) for step in theirs.ask("get_profiler_steps")] == steps


def test_hta_names_two_stragglers_of_which_one_waits_for_others(theirs: Theirs, ours: Session) -> None:
    """It always names as many as it was asked for, by who starts late: rank 2, for which nobody ever waits,
    and rank 7, which three quarters of all waiting is for. By blame, rank 7 is first and rank 2 has none."""
    assert theirs.ask("get_potential_stragglers") == [2, 7]
    blame = dict(table(ours, "communication_imbalance").select("rank", "blame").iter_rows())
    assert max(blame, key=lambda rank: blame[rank]) == 7 and blame[2] == 0
    assert blame == {7: 35_552_000, 5: 6_282_000, 4: 5_009_000, **dict.fromkeys((0, 1, 2, 3, 6), 0)}


def test_what_streams_wait_for_is_equal(theirs: Theirs, ours: Session) -> None:
    """HTA compares its 30 ns with microseconds, and takes work whose launch is not in the file (64 kernels of
    rank 1) for work that was launched late.

    How long the device idles is another question: a stream has gaps while others work."""
    names = {"host": "host_wait", "next kernel": "kernel_wait", "other": "other", "unknown": "host_wait"}
    said = ours.run("stream_waits", short_ns=30 * US)
    assert not isinstance(said, Skipped), said
    found = defaultdict[tuple[int, int, str], int](int)
    for rank, stream, what, ns in said.table.select("rank", "stream", "waits_for", "time").iter_rows():
        found[rank, stream, names[what]] += ns
    told = {
        (row["rank"], row["stream"], row["idle_category"]): row["idle_time"] * US
        for row in theirs.ask("get_idle_time_breakdown")[0]
        if row["idle_time"]
    }
    assert len({(rank, stream) for rank, stream, _ in told}) == 32 and found == told
    summary = table(ours, "idle_summary")
    device = int((summary["per_step"] * summary["steps"]).sum())
    assert 0 < device < sum(found.values())


def test_queues_are_as_deep_but_for_the_copies_in_them(theirs: Theirs, ours: Session) -> None:
    """It counts copies among the launches. Nobody finds a full queue."""
    told = {
        (row["('rank', '')"], row["('stream', '')"]): row["('queue_length', 'max')"]
        for row in theirs.ask("get_queue_length_summary")
    }
    full = table(ours, "launch_queue_full")
    deepest = {(r, s): many for r, s, many in full.select("rank", "stream", "deepest").iter_rows()}
    copies = ours.trace.table("copies")
    assert copies is not None
    copied = set(copies.select("rank", "stream").unique().collect().iter_rows())
    more = {key: told[key] - many for key, many in deepest.items() if told[key] != many}
    assert len(deepest) == 24 and more == {(4, 7): 1.0, (5, 7): 1.0}
    assert set(more) <= copied and set(told) - set(deepest) <= copied
    assert theirs.ask("get_time_spent_blocked_on_full_queue") == [] and full["blocked"].sum() == 0


def test_copies_are_as_many_and_as_fast_to_the_microsecond(theirs: Theirs, ours: Session) -> None:
    """It reads the rate that the profiler printed, of a time before that was cut to whole microseconds."""
    copies = ours.trace.table("copies")
    assert copies is not None
    names = {
        "device to device": "Memcpy DtoD",
        "device to host": "Memcpy DtoH",
        "host to device": "Memcpy HtoD",
    }
    known: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    rows = copies.select(
        "rank", pl.col("direction").cast(pl.String), "bytes", pl.col("end") - pl.col("start")
    )
    for rank, direction, size, time in rows.collect().iter_rows():
        known[rank, names.get(direction, "Memset")].append((size, time))
    told = theirs.ask("get_memory_bw_summary")
    assert len(told) == 26
    for row in told:
        mine = known[row["('rank', '')"], row["('name', '')"]]
        assert row["('memory_bw_gbps', 'count')"] == len(mine)
        for which in ("min", "max"):
            rate = row[f"('memory_bw_gbps', '{which}')"]
            assert any(int(size / rate) // US * US == time for size, time in mine)


def test_kernels_of_operators_are_equal_on_its_first_rank_and_leak_into_the_others(
    theirs: Theirs, ours: Session
) -> None:
    calls = (
        table(ours, "operator_kernel_summary")
        .with_columns(pl.col("operator", "name").cast(pl.String))
        .group_by("rank", "operator", "name")
        .agg(pl.col("calls").sum())
    )
    mine = {(rank, operator, name): many for rank, operator, name, many in calls.iter_rows()}
    for rank in ("0", "1"):
        told = {
            (int(rank), row["aten_op_name"], row["kernel_sequence"]): row["occurrence_count"]
            for row in theirs.ask("get_aten_op_kernels_and_delay")[rank]
        }
        both = {key: (many, mine[key]) for key, many in told.items() if key in mine}
        assert len(both) == 50
        if rank == "0":
            assert all(many == times for many, times in both.values())
        else:  # its counts hold the first rank's, too
            assert all(many > times for many, times in both.values())


def test_the_sequence_under_an_operator_takes_as_long(theirs: Theirs, ours: Session) -> None:
    """It asks for one operator by name; ours finds what repeats under any. The kernels below `aten::linear`
    take the time that it tells."""
    operators, kernels = ours.trace.table("operators"), ours.trace.table("kernels")
    assert operators is not None and kernels is not None
    linear = operators.filter(pl.col("name").cast(pl.String) == "aten::linear").collect()
    launched = kernels.select("rank", "launch_start", time=pl.col("end") - pl.col("start")).collect()
    for rank, told in enumerate(theirs.ask("get_frequent_cuda_kernel_sequences")):
        spent = [
            launched.filter((pl.col("rank") == rank) & pl.col("launch_start").is_between(opened, closed))[
                "time"
            ].sum()
            for opened, closed in linear.filter(pl.col("rank") == rank).select("start", "end").iter_rows()
        ]
        assert sum(row["GPU kernel duration (us)"] * row["count"] for row in told) * US <= sum(spent)
        assert any(row["GPU kernel duration (us)"] * US in spent for row in told)


def test_kernels_of_ranges_are_told_without_their_copies_on_the_gpu(theirs: Theirs, ours: Session) -> None:
    """It needs the profiler's copies of ranges on the GPU, which this trace lacks: ours goes by launch."""
    assert theirs.ask("get_gpu_kernels_with_user_annotations") == [None] * 8
    told = table(ours, "range_kernel_summary")
    steps = told.filter(pl.col("range") == "ProfilerStep#10")
    assert sorted(steps["rank"].unique().to_list()) == list(range(8))


def test_every_analysis_that_both_have_is_compared() -> None:
    both = re.findall(r'"(get_\w+)": "', (ROOT / "benchmarks" / "analyses.py").read_text())
    tests = Path(__file__).read_text()
    assert len(both) == 14
    assert not [name for name in both if f'ask("{name}")' not in tests]


def test_the_communication_of_deepseek_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTA knows communication by the names of NCCL's kernels: of DeepEP it sees none, and calls all of it
    computation. 88 % of that step has communication, as its authors published."""
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path))
    ours = Session(lostflops.open(DEEPSEEK[0]))
    exposed = table(ours, "communication_exposed").row(0, named=True)
    asked = Theirs(DEEPSEEK)
    try:
        (overlap,) = asked.ask("get_comm_comp_overlap")
        (whole,) = asked.ask("get_temporal_breakdown")
    finally:
        asked.close()
    assert overlap["comp_comm_overlap_pctg"] is None
    assert whole["compute_time_pctg"] == 99.6
    assert exposed["total"] == 113_440_000 and exposed["exposed"] == 4_190_000
