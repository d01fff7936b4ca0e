"""`lostflops bench collectives`: what is timed is right, and the arithmetic is nccl-tests'."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from kineto_files import head, operator, trace, written
from lostflops import cli
from lostflops.errors import BadOption, BenchFailed, BenchLacksTorch, LostflopsError
from lostflops.machine.bench import collectives, fit, ranks
from lostflops.report.machines import bandwidths
from recorded import environment

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "src/lostflops/machine/bench/scripts/collectives.py"
TEN = set(collectives.OPERATIONS) - {"barrier"}


def bench(*words: str | Path, status: int = 0, **more: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "lostflops", "bench", "collectives", *map(str, words)],
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    run = tmp_path_factory.mktemp("job") / "run"
    text = bench("--ranks", "2", "--backend", "gloo", "--sizes", "8,16K", "--repeats", "3", "--output", run)
    return run, text


def kept(run: Path) -> dict[str, Any]:
    (file,) = run.glob("collectives-*.jsonl")
    (line,) = file.read_text().splitlines()
    return json.loads(line)


def test_all_ten_operations_and_the_barrier_are_timed_and_right(two_ranks: tuple[Path, str]) -> None:
    run, text = two_ranks
    rows = kept(run)["bandwidths"]
    assert {row["operation"] for row in rows} == TEN | {"barrier"}
    for row in rows:
        assert (row["group_size"], row["hosts"], row["backend"], row["tool"]) == (2, 1, "gloo", "torch")
        assert row["repeats"] == 3 and 0 < row["fastest"] <= row["time"] <= row["slowest"]
        assert row["operation"] == "barrier" or row["correct"] is True
    in_place = {(row["operation"], row["in_place"]) for row in rows if "in_place" in row}
    assert in_place == {(name, way) for name in ("all-gather", "reduce-scatter") for way in (False, True)}
    assert "WRONG" not in text and text.count("correct") == 12


def test_bandwidths_follow_from_size_and_time_by_nccl_tests_factors(two_ranks: tuple[Path, str]) -> None:
    run, _ = two_ranks
    for row in kept(run)["bandwidths"]:
        if row["operation"] == "barrier":
            assert "algorithm_bandwidth" not in row and row["bytes"] == 0
            continue
        rate = row["bytes"] / row["time"]
        straight = ("all-reduce", "broadcast", "reduce", "send-receive")  # for two ranks 2 (n - 1) / n is 1
        assert math.isclose(row["algorithm_bandwidth"], rate)
        assert math.isclose(row["bus_bandwidth"], rate if row["operation"] in straight else rate / 2)


def test_under_torchrun_it_is_a_rank_and_the_first_one_speaks(tmp_path: Path) -> None:
    run = tmp_path / "run"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    words = [
        "lostflops",
        "bench",
        "collectives",
        "--operations",
        "all-reduce",
        "--sizes",
        "64",
        "--repeats",
        "2",
    ]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, *launcher, *words, "--repeats", "2", "--output", str(run)],
        env=environment(PATH=path, GLOO_SOCKET_IFNAME="lo"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 ranks on 1 host") == 1
    assert [row["bytes"] for row in kept(run)["bandwidths"]] == [64]


def test_other_launchers_ranks_are_ranks_when_they_know_where_to_meet() -> None:
    meet = {"MASTER_ADDR": "first", "MASTER_PORT": "1234"}
    mpi = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
    found = ranks.placed({**mpi, **meet})
    assert {name: found[name] for name in ranks.PLACED} == {
        **meet,
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
    }
    with pytest.raises(BadOption, match="mpirun started 4 processes, which cannot find each other"):
        ranks.placed(mpi)
    with pytest.raises(BadOption, match="srun"):
        ranks.placed({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"})
    assert not ranks.placed({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}), "a task alone"
    assert not ranks.placed({"RANK": "0"}), "may be the index of a pod"


# The measuring script with one thing changed, as a rank.
CHANGED = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("collectives", {script!r})
script = importlib.util.module_from_spec(spec)
sys.modules["collectives"] = script
spec.loader.exec_module(script)
dist = script.dist
{change}
script.main(sys.argv[1:])
"""


def changed(folder: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    (folder / "changed.py").write_text(CHANGED.format(script=str(SCRIPT), change=change))
    monkeypatch.setattr(ranks, "SCRIPTS", folder)
    return folder


def job(num_ranks: int, operations: tuple[str, ...], size: int = 64) -> collectives.Collectives:
    wanted = collectives.Wanted(operations, (size,), "gloo", warm_up=1, repeats=2)
    return collectives.measured(ranks.as_job(sys.executable, "changed.py", wanted.settings(), num_ranks))


def test_a_wrong_result_of_one_rank_is_told_and_what_a_backend_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = (
        "def lazy(data, *args, was=dist.broadcast, **kw):\n"
        "    was(data, *args, **kw)\n"
        "    if dist.get_rank() == 1: data[-1] += 1\n"
        "def lacking(*args, **kw): raise RuntimeError('gloo has no scatter')\n"
        "dist.broadcast, dist.scatter = lazy, lacking\n"
    )
    changed(tmp_path, change, monkeypatch)
    found = job(2, ("scatter", "broadcast", "reduce")).bandwidths
    assert found.select("operation", "correct", "remark", pl.col("time").is_null()).rows() == [
        ("scatter", None, "RuntimeError: gloo has no scatter", True),
        ("broadcast", False, None, False),
        ("reduce", True, None, False),
    ]


def test_several_machines_are_measured_whole_inside_and_across(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed(tmp_path, "script.host = lambda: f\"host {int(script.os.environ['RANK']) // 2}\"", monkeypatch)
    operations = ("all-reduce", "all-to-all-uneven", "gather", "send-receive")
    found = job(4, operations, 3072).bandwidths
    groups = found.select("operation", "group_size", "hosts", "correct").rows()
    assert groups == [
        (name, size, hosts, True) for size, hosts in ((4, 2), (2, 1), (2, 2)) for name in operations
    ]
    of_four = found.filter(group_size=4)
    assert of_four["bytes"].to_list() == [3072, 3040, 3072, 3072], "ten shares of 76 floats"
    factors = of_four["bus_bandwidth"] / of_four["algorithm_bandwidth"]
    assert factors.to_list() == pytest.approx([1.5, 0.75, 0.75, 1.0])


def test_a_rank_alone_sends_nothing_and_a_crash_keeps_what_was_measured_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = "def dying(*args, **kw): script.os._exit(3)\ndist.reduce = dying\n"
    changed(tmp_path, change, monkeypatch)
    found = job(1, ("send-receive", "all-reduce", "reduce"))
    assert found.bandwidths.select("operation", "bus_bandwidth", "remark").rows() == [
        ("send-receive", None, "RuntimeError: a single rank has no other rank to send to"),
        ("all-reduce", 0.0, None),
    ]
    assert found.remarks == ["the measurement ended early: a rank ended with status 3"]
    text = "\n".join(bandwidths.collectives(found.bandwidths, found.about, found.remarks))
    assert "a single rank sends nothing, so its bus bandwidth is 0" in text
    assert "not measured: send-receive at 64 B: RuntimeError" in text


def test_a_python_without_torch_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "changed.py"
    script.write_text("import no_such\n")
    monkeypatch.setattr(ranks, "SCRIPTS", tmp_path)
    with pytest.raises(BenchFailed, match="No module named 'no_such'"):
        job(2, ("all-reduce",))
    monkeypatch.undo()
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(BenchLacksTorch, match="needs PyTorch") as error:
        ranks.alone(str(bare), "links.py", {})
    assert "--python" in error.value.hint


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--sizes", "0"), "is not a list of sizes"),
        (("--sizes", "4K-1K"), "is not a list of sizes"),
        (("--operations", "all-reduce,gossip"), "no collective 'gossip'"),
        (("--ranks", "0"), "from 1 to 1024"),
        (("--repeats", "0"), "1 or more"),
        (("--python", "no-such-python"), "no Python 'no-such-python'"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "collectives", *words]) == 2
    assert said in capsys.readouterr().err


def test_sizes_go_up_in_steps_of_four() -> None:
    assert collectives.sizes("8,1k") == (8, 1024)
    assert collectives.sizes("8-1K") == (8, 32, 128, 512, 1024)
    assert collectives.sizes("1M-16M")[-1] == 16 << 20
    assert collectives.sizes("1.5K") == (1536,)
    for wrong in ("1.5X", "1K-", "-1K", ""):
        with pytest.raises(BadOption):
            collectives.sizes(wrong)


NCCL_TESTS = """\
# nThread 1 nGpus 2 minBytes 8388608 maxBytes 33554432 step: 4(factor) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid  37300 on    node-a device  0 [0x8d] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  37300 on    node-b device  1 [0x91] NVIDIA H100 80GB HBM3
#
#                                                out-of-place                     in-place
#     size        count    type  redop  root    time   algbw   busbw #wrong    time   algbw   busbw #wrong
#      (B)   (elements)                         (us)  (GB/s)  (GB/s)           (us)  (GB/s)  (GB/s)
   8388608      2097152   float    sum    -1   80.00  104.86  104.86      0   64.00  131.07  131.07      0
  33554432      8388608   float    sum    -1  200.00  167.77  167.77      0  256.00  131.07  131.07    N/A
  33554432      8388608   float    sum    -1  200.00
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 133.69
"""


def test_the_table_of_nccl_tests_is_read_with_both_halves(tmp_path: Path) -> None:
    file = tmp_path / "all_gather_perf.txt"
    file.write_text(NCCL_TESTS)
    found = collectives.recorded([file])
    rows = found.bandwidths.select("operation", "bytes", "in_place", "time", "group_size", "hosts", "correct")
    assert rows.rows() == [
        ("all-gather", 8388608, False, 80_000, 2, 2, True),
        ("all-gather", 8388608, True, 64_000, 2, 2, True),
        ("all-gather", 33554432, False, 200_000, 2, 2, True),
        ("all-gather", 33554432, True, 256_000, 2, 2, None),
    ]
    assert found.bandwidths["bus_bandwidth"][0] == pytest.approx(104.86 / 2, rel=1e-3), "for two ranks"
    assert len(found.remarks) == 1 and "left out a line that could not be read: '33554432" in found.remarks[0]


def test_of_two_halves_that_torch_cannot_choose_from_the_faster_counts(tmp_path: Path) -> None:
    file = tmp_path / "saved.txt"
    file.write_text(
        "# Collective test starting: all_reduce_perf\n" + NCCL_TESTS.replace("131.07      0", "131.07      7")
    )
    found = collectives.recorded([file]).bandwidths
    assert found.select("bytes", "time", "in_place", "correct").rows() == [
        (8388608, 64_000, None, False),
        (33554432, 200_000, None, True),
    ]
    assert found["bus_bandwidth"][1] == pytest.approx(167.77, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("out.txt", NCCL_TESTS, "does not say which program"),
        (
            "hypercube_perf.txt",
            "# Collective test starting: hypercube_perf\n" + NCCL_TESTS,
            "does not say which",
        ),
        ("reduce_perf.txt", "nothing\n", "holds no table of nccl-tests"),
    ],
)
def test_another_text_is_refused(name: str, text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(LostflopsError, match=said):
        collectives.recorded([tmp_path / name])


def test_nccl_tests_on_the_path_are_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "all_reduce_perf"
    program.write_text(f"#!{sys.executable}\nimport sys\nprint({NCCL_TESTS!r})\nsys.exit(3)\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = collectives.nccl_tests(collectives.Wanted(), 2)
    assert set(found.bandwidths["tool"]) == {"nccl-tests"} and found.bandwidths.height == 2
    assert found.remarks[-1] == "all_reduce_perf: status 3"
    assert collectives.nccl_tests(collectives.Wanted(("gather",)), 2).bandwidths.is_empty()


def test_a_line_is_found_in_times_that_lie_on_one() -> None:
    sizes = [8, 4096, 1 << 20, 1 << 30]
    rows = [
        {"rank": 0, "operation": name, "bytes": n, "time": round(t0 + n / rate)}
        for name, t0, rate in (("slow", 5000, 25.0), ("fast", 900, 400.0))
        for n in sizes
    ]
    rows += [{"rank": 0, "operation": "two sizes", "bytes": n, "time": n} for n in (1, 2)]
    rows += [{"rank": 0, "operation": "shrinks", "bytes": n, "time": 10 - n} for n in (1, 2, 3)]
    found = fit.fits(collectives.table(rows), ["operation", "hosts"])
    assert found["operation"].to_list() == ["slow", "fast"]
    assert found["latency"].to_list() == [5000, 900]
    assert found["bandwidth"].to_list() == pytest.approx([25.0, 400.0], rel=1e-3)
    assert found["half_size"].to_list() == pytest.approx([125_000, 360_000], rel=1e-2)
    assert found["spread"].max() < 1e-3


def test_a_line_never_begins_below_zero() -> None:
    rows = [{"rank": 0, "operation": "x", "bytes": n, "time": t} for n, t in ((1, 1), (10, 100), (100, 1000))]
    (line,) = fit.fits(collectives.table(rows), ["operation"]).rows(named=True)
    assert line["latency"] == 0 and line["half_size"] == 0 and line["bandwidth"] > 0


def traces(folder: Path) -> None:
    for rank in range(2):
        written(folder / f"rank{rank}.json", trace([operator("aten::mm", 10, 5)], head(rank, 2)))


def test_what_was_measured_becomes_a_table_of_the_run_beside_it(
    two_ranks: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import lostflops

    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "cache"))
    run, _ = two_ranks
    traces(tmp_path)
    without = lostflops.open(tmp_path / "rank0.json")
    assert not without.has("bandwidths") and "lostflops bench" in without.absence("bandwidths")
    for file in run.glob("*.jsonl"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    table = lostflops.open(tmp_path).table("bandwidths")
    assert table is not None
    found = table.collect()
    expected = pl.DataFrame(kept(run)["bandwidths"], schema=found.schema)
    assert_frame_equal(found, expected.select(found.columns), check_row_order=False)
    sliced = lostflops.open(tmp_path).select(ranks=frozenset({1})).table("bandwidths")
    assert sliced is not None and sliced.collect().height == found.height, "it is of the machine"


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        '{"format": 2, "bandwidths": []}',
        '{"format": 1, "bandwidths": [{"operation": "x", "rank": "first"}]}',
        '{"format": 1, "bandwidths": [{"rank": 0, "time": 5}]}',
        '{"format": 1, "bandwidths": "many"}',
        '{"format": 1, "bandwidths": [[1, 2], 3]}',
        '{"format": 1, "bandwidths": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"format": 1, "bandwidths": [{"rank": 0, "operation": "x", "time": 1e300}]}',
        '{"format": 1, "bandwidths": [{"rank": 0, "operation": "x", "time": 99999999999999999999999}]}',
        '{"format": 1, "bandwidths": [{"rank": 0, "operation": "x", "bytes": {"a": 1}}]}',
    ],
)
def test_a_document_that_is_not_ours_is_left_out_and_told(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import lostflops

    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "cache"))
    traces(tmp_path)
    (tmp_path / "collectives-nccl-8.jsonl").write_text(text)
    opened = lostflops.open(tmp_path)
    assert not opened.has("bandwidths")
    (told,) = [fact for fact in opened.manifest.quality if fact.name == "machine left out"]
    assert "collectives-nccl-8.jsonl is not what lostflops writes" in told.text
