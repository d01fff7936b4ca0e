"""`lostflops diff`: what it says adds up, on small made-up runs and on real ones, and it says its limits."""

from __future__ import annotations

import io
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import lostflops
from kineto_files import Event, call, head, kernel, operator, span, step, trace, written
from lostflops.cli import main
from lostflops.experiment.difference import noise
from lostflops.experiment.difference.compare import Difference
from lostflops.experiment.difference.pieces import first_running
from lostflops.experiment.difference.shown.amounts import shared

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "examples" / "runs"
TRACES = ROOT.parent / "shared" / "traces" / "kineto"
PAIRS = (
    ("kineto_tb/resnet50_num_workers_0__worker0.1623143089861", "kineto_tb/resnet50_num_workers_4__"),
    ("hta/trace_compare__base", "hta/trace_compare__test"),
    ("tracelens/h100__Qwen", "tracelens/mi300__Qwen"),
    ("tracelens/h100__gaunernst", "tracelens/mi300__gaunernst"),
    ("tracelens/h100__Falconsai", "tracelens/mi300__Falconsai"),
)
real = pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not here")
EVIL = "x\x1b[31mred\x9b\u202e\nnext</script><b>"


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "store"))


def steps(
    *kernels: float,
    name: str = "ampere_sgemm_128x64_nn",
    shapes: str = "[[8, 4], [4, 2]]",
    scale: float = 1.0,
) -> list[Event]:
    """Steps of 100 µs, or of `scale` times as long, in which one product launches a kernel of so many µs."""
    events: list[Event] = []
    for i, length in enumerate(kernels):
        at = 1000 + 100 * scale * i
        events += [
            step(i, at, 100 * scale),
            operator("aten::mm", at + 5, 10, **{"Input Dims": json.loads(shapes)}),
            call(at + 8, 4, i + 1),
            kernel(at + 15, length, i + 1, name),
        ]
    return events


def recorded(folder: Path, name: str, events: list[Event], **more: Any) -> str:
    return str(written(folder / name, trace(events, head(0, 1, **more))))


def adds_up(found: Difference) -> None:
    """What a difference promises, from the runs' own steps."""
    waterfall = found.waterfall
    for side, of in ((found.before, "before_ns"), (found.after, "after_ns")):
        lengths = (side.steps["end"] - side.steps["start"]).to_list()
        whole = getattr(waterfall.step, of)
        assert abs(whole - statistics.fmean(lengths)) <= 0.5
        assert sum(getattr(change, of) for change in waterfall.accounts) == whole
        assert sum(getattr(change, of) for change in waterfall.leaves()) == whole
        for path, below in waterfall.below.items():
            assert sum(getattr(waterfall.parts[p], of) for p in below) == getattr(waterfall.parts[path], of)
        assert side.pieces["ns"].sum() == side.ledger["ns"].sum() == sum(lengths)
        assert side.pieces["ns"].min() > 0  # pyright: ignore[reportOperatorIssue]
    document = found.to_json()
    change = document["after_ns"] - document["before_ns"]
    assert change == document["change_ns"] == sum(row["change_ns"] for row in document["rows"])
    assert change == sum(part["change_ns"] for part in document["parts"])
    for row in document["rows"]:
        assert row["change_ns"] == row["after_ns"] - row["before_ns"]
    table = shared(waterfall)
    for column in ("before", "after", "change"):
        leaves = sum(getattr(row, column) for row in table.rows if row.is_leaf)
        groups = sum(getattr(row, column) for row in table.rows if not row.depth)
        assert leaves == groups == getattr(table.step, column)


@pytest.mark.parametrize("run", ["ddp", "lora-workers-0"])
def test_a_run_against_itself_changes_nothing(run: str) -> None:
    found = lostflops.diff(RUNS / run, RUNS / run)
    adds_up(found)
    assert all(change.ns == 0 for change in found.waterfall.parts.values())
    assert found.verdict == "no difference" and "no difference" in str(found)
    assert found.comparable and not found.mismatches


def test_data_loading_explains_what_workers_gain() -> None:
    found = lostflops.diff(RUNS / "lora-workers-0", RUNS / "lora-workers-4")
    adds_up(found)
    assert found.waterfall.of(())[0].path == ("idle.data_loading",)
    # A loader with workers is the same loader: one row, with time on both sides.
    (name,) = found.waterfall.of(("idle.data_loading",))
    assert name.before_ns > name.after_ns > 0
    assert [m.name for m in found.mismatches] == ["data loader workers"]


def test_ranks_are_matched_by_number_and_collectives_by_kind() -> None:
    found = lostflops.diff(RUNS / "ddp", RUNS / "fsdp2")
    adds_up(found)
    assert sorted(one.rank for one in found.ranks) == [0, 1, 2, 3]
    wait = {change.path[1]: change for change in found.waterfall.of(("communication.wait",))}
    assert wait["all-reduce"].after_ns == 0 and wait["all-gather"].before_ns == 0
    assert ("data parallelism", "DDP", "FSDP") in [(m.name, m.before, m.after) for m in found.mismatches]


def test_a_slower_kernel_is_found_and_counted_by_hand(tmp_path: Path) -> None:
    before = recorded(tmp_path, "a.json", steps(40, 41, 39, 40))
    after = recorded(tmp_path, "b.json", steps(60, 61, 59, 60))
    found = lostflops.diff(before, after)
    adds_up(found)
    compute = found.waterfall.parts[("compute",)]
    assert (compute.before_ns, compute.after_ns, compute.ns) == (40_000, 60_000, 20_000)
    leaf = found.waterfall.parts[("compute", "gemm", "aten::mm", "ampere_sgemm_128x64_nn")]
    assert (leaf.ns, leaf.before_calls, leaf.after_calls) == (20_000, 1.0, 1.0)


def test_noise_is_the_spread_of_the_steps_themselves() -> None:
    before, after = [10.0, 12.0, 11.0], [20.0, 24.0, 22.0, 30.0]
    # Variances 1 and 18.67 over 3 and 4 steps; 2 degrees of freedom, so t is 4.303. Steps that are half like
    # the one before tell a third as much as independent ones.
    error = (1 / 3 + statistics.variance(after) / 4) ** 0.5
    assert noise.band(before, after) == round(4.3027 * 3**0.5 * error)
    assert noise.band([10.0], after) is None
    assert noise.band([10.0, 10.0], [11.0, 11.0]) == 0
    assert noise.quantile(10**9) == pytest.approx(1.96, abs=0.02)
    # One of eight rows: 0.625 % of Student's t with 3 degrees of freedom.
    assert noise.quantile(3, rows=8) == pytest.approx(6.895, abs=1e-3)


@pytest.mark.parametrize(("many", "rows"), [(5, 8), (10, 8), (10, 30)])
def test_of_equal_runs_a_row_is_seldom_beyond_its_noise(many: int, rows: int) -> None:
    """Steps that are half like the one before: in 400 pairs of equal runs at most 5 % have such a row."""
    rng = np.random.default_rng(17)
    shocks = rng.standard_normal((400, 2, rows, many + 20))
    each = np.zeros_like(shocks)
    for n in range(1, many + 20):
        each[..., n] = 0.5 * each[..., n - 1] + shocks[..., n]
    each = 1e6 * (20 + each[..., 20:])
    marked = 0
    for before, after in each:
        bands = [noise.band(a, b, rows) for a, b in zip(before.tolist(), after.tolist(), strict=True)]
        changes = np.abs(after.mean(axis=1) - before.mean(axis=1))
        marked += any(c > (band or 0) for c, band in zip(changes, bands, strict=True))
    assert marked <= 20


def test_what_two_starts_of_one_job_differ_by_is_no_verdict(tmp_path: Path) -> None:
    """The last step ends with its own kernel: 3 % longer with hardly any scatter, as another start may be."""
    a = recorded(tmp_path, "a.json", steps(80, 80, 85.0, scale=1.0))
    b = recorded(tmp_path, "b.json", steps(80, 80, 85.0, scale=1.03))
    c = recorded(tmp_path, "c.json", steps(80, 80, 85.0, scale=1.3))
    found = lostflops.diff(a, b)
    adds_up(found)
    assert found.waterfall.step.is_beyond_noise
    assert found.verdict == "cannot tell" and "Two starts of one job may differ as much" in found.sentence
    assert lostflops.diff(a, c).verdict == "slower" and lostflops.diff(c, a).verdict == "faster"


def test_a_change_within_the_noise_is_not_called_one(tmp_path: Path) -> None:
    # The last step ends with its own kernel, so steps differ in length.
    a = recorded(tmp_path, "a.json", steps(40, 45, 35, 80))
    b = recorded(tmp_path, "b.json", steps(45, 40, 80, 36))
    found = lostflops.diff(a, b)
    adds_up(found)
    assert found.verdict in ("no difference", "cannot tell")
    one = recorded(tmp_path, "c.json", steps(40))
    alone = lostflops.diff(one, b)
    adds_up(alone)
    assert alone.verdict == "cannot tell" and "only one step" in str(alone)


def test_kernels_of_other_vendors_are_found_below_the_operator(tmp_path: Path) -> None:
    nvidia = recorded(tmp_path, "a.json", steps(40, 41, 39))
    amd = recorded(tmp_path, "b.json", steps(50, 51, 49, name="Cijk_Ailk_Bljk_SB_MT64x64x16"))
    found = lostflops.diff(nvidia, amd)
    adds_up(found)
    assert found.waterfall.parts[("compute", "gemm", "aten::mm")].ns == 10_000
    assert "→ Cijk" in str(found)


def test_of_kernels_that_run_at_once_the_first_has_the_time() -> None:
    rows = pl.DataFrame(
        {
            "rank": [0, 0, 0, 0, 1],
            "start": [0, 4, 2, 20, 3],
            "end": [10, 13, 5, 20, 9],
            "name": list("abcde"),
        }
    )
    kept = {name: (start, end) for _, start, end, name in first_running(rows).iter_rows()}
    assert kept == {"a": (0, 10), "b": (10, 13), "e": (3, 9)}


Rows = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 30), st.integers(0, 12)), max_size=12)


@given(Rows)
def test_what_runs_first_covers_what_all_cover_once(rows: list[tuple[int, int, int]]) -> None:
    table = pl.DataFrame(
        [(rank, start, start + long, str(i)) for i, (rank, start, long) in enumerate(rows)],
        schema={"rank": pl.Int64, "start": pl.Int64, "end": pl.Int64, "name": pl.String},
        orient="row",
    )
    kept = list(first_running(table).iter_rows())
    covered = [(rank, t) for rank, start, end, _ in kept for t in range(start, end)]
    assert len(covered) == len(set(covered))
    assert set(covered) == {(rank, t) for rank, start, end, _ in table.iter_rows() for t in range(start, end)}


def test_other_work_is_not_compared(tmp_path: Path) -> None:
    a = recorded(tmp_path, "a.json", steps(40, 41, 39))
    b = recorded(tmp_path, "b.json", steps(40, 41, 39, shapes="[[16, 4], [4, 2]]"))
    found = lostflops.diff(a, b)
    adds_up(found)
    assert not found.comparable and found.verdict == "cannot tell"
    assert "no matrix product has the same shape" in found.obstacles[0]
    assert "shapes of aten::mm" in [m.name for m in found.mismatches]


def tokens(many: int) -> list[Event]:
    events = steps(40, 41, 39)
    for i in range(3):
        dims = {"Input Dims": [[100, 8], [2, many]]}
        events.append(operator("aten::embedding", 1002 + 100 * i, 2, **dims))
    return events


def test_another_batch_is_said_with_both_sizes(tmp_path: Path) -> None:
    a = recorded(tmp_path, "a.json", tokens(16))
    b = recorded(tmp_path, "b.json", tokens(32))
    (why,) = lostflops.diff(a, b).obstacles
    assert "32 tokens" in why and "64" in why


def test_a_whole_recording_is_not_compared_with_steps(tmp_path: Path) -> None:
    marked = recorded(tmp_path, "a.json", steps(40, 41, 39))
    events = [event for event in steps(40, 41, 39) if not event["name"].startswith("ProfilerStep")]
    unmarked = recorded(tmp_path, "b.json", [events[0], *events[2:4]])
    found = lostflops.diff(marked, unmarked)
    adds_up(found)
    assert not found.comparable and "after marks no steps" in found.obstacles[0]


def test_recordings_without_steps_are_compared_where_they_do_the_same_work(tmp_path: Path) -> None:
    def unmarked(name: str, *kernels: float) -> str:
        events = [event for event in steps(*kernels) if not event["name"].startswith("ProfilerStep")]
        return recorded(tmp_path, name, events)

    a, b, c = unmarked("a.json", 40, 40), unmarked("b.json", 50, 50), unmarked("c.json", 40, 40, 40)
    assert lostflops.diff(a, b).comparable
    longer = lostflops.diff(a, c)
    adds_up(longer)
    assert not longer.comparable and "neither recording marks steps" in longer.obstacles[0]
    assert lostflops.diff(a, a).verdict == "no difference" and "no difference" in str(lostflops.diff(a, a))


def test_a_cpu_is_not_compared_with_a_gpu(tmp_path: Path) -> None:
    gpu = recorded(tmp_path, "a.json", steps(40, 41, 39))
    cpu = recorded(
        tmp_path, "b.json", [e for e in steps(40, 41, 39) if e["cat"] in ("cpu_op", "user_annotation")]
    )
    found = lostflops.diff(gpu, cpu)
    assert "after shows only the CPU's operators, before the GPU's kernels" in found.obstacles


def test_a_run_without_a_ledger_is_said_and_nothing_is_made_up(tmp_path: Path) -> None:
    a = recorded(tmp_path, "a.json", steps(40, 41, 39))
    empty = recorded(tmp_path, "b.json", [span("user_annotation", "nothing", 1000, 5)])
    document = lostflops.diff(a, empty).to_json()
    assert document["before_ns"] is None and document["rows"] == [] and not document["comparable"]
    assert document["obstacles"][0].startswith("after has no ledger")


def test_the_setups_are_compared(tmp_path: Path) -> None:
    a = recorded(tmp_path, "a.json", steps(40, 41, 39), cuda_runtime_version=12040)
    b = recorded(
        tmp_path, "b.json", steps(40, 41, 39), cuda_runtime_version=12080,
        deviceProperties=[{"id": 0, "name": "NVIDIA H200", "numSms": 132}],
    )  # fmt: skip
    found = {m.name: (m.before, m.after) for m in lostflops.diff(a, b).mismatches}
    assert found["version of cuda runtime"] == ("12040", "12080")
    assert found["GPU"] == ("GPU", "NVIDIA H200")


def test_modules_are_named_by_their_class(tmp_path: Path) -> None:
    def in_module(number: int, length: float) -> list[Event]:
        found = steps(length, length + 1, length - 1)
        return found + [
            span("python_function", f"nn.Module: Linear_{number}", 1004 + 100 * i, 12) for i in range(3)
        ]

    a = recorded(tmp_path, "a.json", in_module(3, 40))
    b = recorded(tmp_path, "b.json", in_module(5, 50))
    found = lostflops.diff(a, b)
    assert [(c.path, c.ns) for c in found.modules] == [(("Linear",), 10_000)]


def test_steps_of_one_number_are_put_side_by_side(tmp_path: Path) -> None:
    a = recorded(tmp_path, "a.json", steps(40, 41, 39, 40))
    b = recorded(tmp_path, "b.json", steps(40, 41))
    assert [one.step for one in lostflops.diff(a, b).steps] == [0, 1]


def test_the_command_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = str(RUNS / "lora-workers-0"), str(RUNS / "lora-workers-4")
    page, document = tmp_path / "d.html", tmp_path / "d.json"
    assert main(["diff", before, after, "--html", str(page), "--json", str(document), "--all"]) == 0
    said = capsys.readouterr().out
    assert "data loading" in said and before in said
    assert main(["diff", before, after, "--json", "-"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(document.read_text())
    assert {"before_ns", "after_ns", "rows", "comparable", "mismatches"} <= printed.keys()
    text = page.read_text()
    assert text.startswith("<!doctype html>") and "data loading" in text
    assert str(RUNS) not in text, "a file that may be sent names no path"


def test_errors_are_said_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, page = str(RUNS / "lora-workers-0"), tmp_path / "d.html"
    for words in (
        [run, str(tmp_path / "absent"), "--html", str(page)],
        [run, run, "--html", ""],
        [run, run, "--json", ""],
        [run, run, "--html", str(page), "--json", str(page)],
        [run, run, "--html", str(tmp_path / "no" / "folder")],
        [run, run, "--steps", "900-901", "--html", str(page)],
    ):
        assert main(["diff", *words]) == 2
        said = capsys.readouterr().err
        assert "Traceback" not in said and said.count("\n") >= 1
        assert not list(tmp_path.glob("*d.html*"))


def test_steps_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    run = str(RUNS / "lora-workers-0")
    assert main(["diff", run, run, "--steps", "4-5", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["before"]["num_steps"] == 2 and document["change_ns"] == 0


def test_hostile_names_reach_neither_terminal_nor_markup(tmp_path: Path) -> None:
    a = recorded(tmp_path, "a.json", steps(40, 41, 39, name=EVIL))
    b = recorded(tmp_path, "b.json", steps(70, 71, 69, name=EVIL + "2"))
    found = lostflops.diff(a, b)
    adds_up(found)
    assert not any(c in str(found) for c in "\x1b\x9b\u202e") and "\nnext" not in str(found)
    assert "</script><b>" not in found.html()
    shown = found._repr_html_()
    assert shown.count("<iframe") == 1 and "</script><b>" not in shown


@pytest.mark.parametrize("width", [20, 60, 200])
def test_any_width_and_a_plain_terminal_will_do(width: int) -> None:
    found = lostflops.diff(RUNS / "lora-workers-0", RUNS / "lora-workers-4")
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    found.show(Console(file=plain, width=width))
    plain.flush()
    assert b"data load" in plain.buffer.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


@real
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0].partition("/")[2][:20])
def test_on_real_pairs_the_waterfall_sums_to_the_change(pair: tuple[str, str]) -> None:
    before, after = (next(TRACES.glob(f"{name}*.gz")) for name in pair)
    found = lostflops.diff(before, after)
    adds_up(found)
    assert found.is_accounted and found.comparable


@real
def test_on_resnet_the_loader_is_the_top_row_and_true_to_the_traces_own_marks() -> None:
    """The loader's own ranges, added up, are what the row says, but for what overlaps GPU work."""
    before, after = (next(TRACES.glob(f"{name}*.gz")) for name in PAIRS[0])
    found = lostflops.diff(before, after)
    top = found.waterfall.of(())[0]
    assert top.path == ("idle.data_loading",) and found.verdict == "faster"
    ranges = lostflops.open(before).table("ranges")
    assert ranges is not None
    loader = ranges.filter(pl.col("name").cast(pl.String).str.contains("DataLoader")).collect()
    per_step = (loader["end"] - loader["start"]).sum() / 6
    assert 0.8 * per_step < top.before_ns <= per_step


def test_kernels_whose_launch_was_not_recorded_are_named(tmp_path: Path) -> None:
    def unlaunched(*lengths: float) -> list[Event]:
        return [event for event in steps(*lengths) if event["cat"] in ("kernel", "user_annotation")]

    a = recorded(tmp_path, "a.json", unlaunched(40, 41, 39))
    b = recorded(tmp_path, "b.json", unlaunched(60, 61, 59))
    found = lostflops.diff(a, b)
    adds_up(found)
    assert "ampere_sgemm_128x64_nn" in str(found)
