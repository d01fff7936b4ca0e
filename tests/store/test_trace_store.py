"""A stored run is whole or not there; the next question reads it instead of the traces."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from kineto_files import Event, head, one_step, step, trace, written
from lostflops.errors import (
    CannotWrite,
    DamagedStore,
    LostflopsError,
    NewerStore,
    NoSuchStep,
    NotATrace,
    NothingThere,
    NoTraces,
    OutputExists,
    RanksMissing,
    RunAmongTraces,
    SameRankTwice,
)
from lostflops.ingest import assembly, job, sources
from lostflops.ingest.part import Part, write_table
from lostflops.session import Session, Skipped
from lostflops.store import parts
from lostflops.store.parts import write_part
from lostflops.store.trace import (
    ABANDONED_AFTER,
    FORMAT,
    MANIFEST,
    Manifest,
    Source,
    Trace,
    write_manifest,
    writing,
)
from lostflops.tables import TABLES
from lostflops.testing import example_table

EXAMPLES = Path(__file__).parents[2] / "examples" / "runs"


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "runs"


def traced(path: Path, events: list[Event] | None = None, **more: Any) -> Path:
    """A small trace of one rank."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return written(path, trace(one_step() if events is None else events, head(**more)))


def runs(store: Path) -> list[Path]:
    return sorted(p for p in store.iterdir() if not p.name.startswith(".")) if store.exists() else []


def unfinished(store: Path) -> list[Path]:
    return sorted(store.glob(".*"))


def count(trace: Trace, name: str) -> int:
    frame = trace.table(name)
    assert frame is not None
    return frame.select(pl.len()).collect().item()


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_all(*_: object, **__: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(job, "read_all", read_all)


def made(folder: Path, rows: dict[str, list[dict[str, Any]]], **facts: Any) -> Path:
    """A run of these rows; every rank's rows in a part of their own."""
    for name, some in rows.items():
        table = example_table(TABLES[name], some).collect()
        for (rank,), mine in table.group_by("rank"):
            write_part(folder, name, int(str(rank)), mine)
    given: dict[str, Any] = {"offsets": {}, "origin_ns": 0, **facts}
    write_manifest(
        folder,
        Manifest(
            format=FORMAT, lostflops="0", clock="a test's", sources=[], tables=sorted(rows), num_events=0,
            quality=[], **given,
        ),
    )  # fmt: skip
    return folder


# -- whole or not there -------------------------------------------------------------------------------------


def test_the_second_question_reads_the_store(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = traced(tmp_path / "trace.json")
    first = job.open(file)
    forbid_reading(monkeypatch)
    again = job.open(str(file))
    assert again.path == first.path == runs(store)[0]
    assert count(again, "kernels") == 1
    assert unfinished(store) == []


def test_an_import_that_fails_leaves_nothing_and_the_next_one_does_it(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = traced(tmp_path / "trace.json")
    whole = assembly.assemble

    def fails(*given: Any) -> None:
        whole(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(assembly, "assemble", fails)
        with pytest.raises(KeyboardInterrupt):
            job.open(file)
    assert list(store.iterdir()) == []
    assert count(job.open(file), "kernels") == 1


KILLED = """
import os, signal, sys
from lostflops.ingest import assembly, job
from lostflops.store import parts
write = parts.write_parts
def killed(*given, **more):
    write(*given, **more)
    os.kill(os.getpid(), signal.SIGKILL)
assembly.write_parts = killed
job.open(sys.argv[1])
"""


def test_a_killed_import_leaves_no_run_and_what_it_leaves_is_swept_after_a_day(
    tmp_path: Path, store: Path
) -> None:
    file = traced(tmp_path / "trace.json")
    done = subprocess.run([sys.executable, "-c", KILLED, str(file)], capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert runs(store) == []
    (left,) = unfinished(store)
    assert list(left.rglob("*.parquet"))
    assert count(job.open(file), "kernels") == 1
    assert unfinished(store) == [left], "it may be an import that is still going on"
    long_ago = time.time() - ABANDONED_AFTER - 60
    os.utime(left, (long_ago, long_ago))
    job.open(traced(tmp_path / "other.json", one_step(3)))
    assert unfinished(store) == []


def test_a_run_that_is_replaced_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    output = tmp_path / "kept"
    job.open(traced(tmp_path / "one.json"), output=output)
    with pytest.raises(NotATrace):
        job.open(written(tmp_path / "no.json", b"hello"), output=output)
    assert count(Trace.open(output), "steps") == 1
    job.open(traced(tmp_path / "two.json", [*one_step(), step(8, 1100, 50)]), output=output)
    assert count(Trace.open(output), "steps") == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["kept", "no.json", "one.json", "two.json"]


def test_only_a_run_or_an_empty_folder_is_written_over(tmp_path: Path) -> None:
    file = traced(tmp_path / "trace.json")
    full, empty = tmp_path / "full", tmp_path / "empty"
    full.mkdir(), empty.mkdir()
    (full / "thesis.txt").write_text("mine")
    for taken in (full, file):
        with pytest.raises(OutputExists):
            job.open(file, output=taken)
    assert (full / "thesis.txt").read_text() == "mine"
    assert count(job.open(file, output=empty), "kernels") == 1


def test_importing_the_same_traces_at_once_gives_everybody_the_run(tmp_path: Path, store: Path) -> None:
    file = traced(tmp_path / "trace.json")
    together = threading.Barrier(4)
    read, counts = job.read_all, list[int]()

    def wait(*given: Any, **more: Any) -> Any:
        together.wait(30)
        return read(*given, **more)

    def ask() -> None:
        counts.append(count(job.open(file), "kernels"))

    job.read_all = wait
    try:
        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        job.read_all = read
    assert counts == [1] * 4
    assert len(runs(store)) == 1 and unfinished(store) == []


def test_a_run_that_others_read_is_not_replaced_by_the_same_one(tmp_path: Path) -> None:
    target = tmp_path / "runs" / "key"
    with writing(target, replace=False) as slow:
        with writing(target, replace=False) as fast:
            made(fast, {"ranks": [{}]})
        first = (target / MANIFEST).stat().st_ino
        made(slow, {"ranks": [{}]})
    assert (target / MANIFEST).stat().st_ino == first
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("error", [OSError, pl.exceptions.ComputeError, pl.exceptions.PanicException])
def test_an_error_of_a_run_that_changed_meanwhile_is_told_as_its_damage(
    error: type[BaseException], tmp_path: Path
) -> None:
    target = tmp_path / "run"
    with writing(target) as folder:
        made(folder, {"ranks": [{}]})
    trace = Trace.open(target)
    with pytest.raises(error, match="its own"), trace.reading():
        raise error("its own")
    (part,) = (target / "ranks").rglob("*.parquet")
    part.write_bytes(part.read_bytes()[:-7])
    with pytest.raises(DamagedStore, match="is not whole"), trace.reading():
        raise error("range end index 7")


# -- what is not whole --------------------------------------------------------------------------------------


def spoil_manifest(text: str) -> Callable[[Path], object]:
    return lambda run: (run / MANIFEST).write_text(text)


def change_manifest(**values: Any) -> Callable[[Path], object]:
    def change(run: Path) -> None:
        changed = json.loads((run / MANIFEST).read_text()) | values | {"crc32": "0" * 10}
        text = json.dumps(changed)
        own = f"{zlib.crc32(text.encode()):010d}"
        (run / MANIFEST).write_text(text.replace('"crc32": "0000000000"', f'"crc32": "{own}"', 1))

    return change


def cut_kernels(run: Path) -> None:
    (file,) = (run / "kernels").rglob("*.parquet")
    file.write_bytes(file.read_bytes()[:-9])


def empty_kernels(run: Path) -> None:
    (file,) = (run / "kernels").rglob("*.parquet")
    file.write_bytes(b"")


def lose_kernels(run: Path) -> None:
    (file,) = (run / "kernels").rglob("*.parquet")
    file.unlink()


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda run: (run / MANIFEST).unlink(), "run.json is missing or unreadable"),
    "an empty manifest": (spoil_manifest(""), "run.json is not what lostflops writes"),
    "a manifest that is text": (spoil_manifest("hello"), "run.json is not what lostflops writes"),
    "a manifest that is a list": (spoil_manifest("[1]"), "run.json is not what lostflops writes"),
    "another program's": (spoil_manifest('{"name": "x"}'), "run.json is not what lostflops writes"),
    "a manifest without fields": (
        spoil_manifest(f'{{"format": {FORMAT}}}'),
        "run.json is not what lostflops writes",
    ),
    "a time beyond all": (change_manifest(origin_ns=10**30), "run.json is not what lostflops writes"),
    "an unknown table": (change_manifest(tables=["../../etc"]), "its table '../../etc' is missing"),
    "a table that is gone": (lose_kernels, "its table 'kernels' is missing"),
    "a file cut short": (cut_kernels, "'kernels/rank=0/part-0.parquet' is not whole"),
    "an empty file": (empty_kernels, "'kernels/rank=0/part-0.parquet' is not whole"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_says_what_is_wrong_and_the_store_mends_itself(damage: str, tmp_path: Path) -> None:
    spoil, said = DAMAGES[damage]
    file = traced(tmp_path / "trace.json")
    run = job.open(file, output=tmp_path / "run").path
    spoil(run)
    with pytest.raises(DamagedStore, match=said) as caught:
        Trace.open(run)
    assert "import the traces again" in caught.value.hint
    spoil(job.open(file).path)
    assert count(job.open(file), "kernels") == 1


@pytest.mark.parametrize("found", [FORMAT + 1, 0, "1", [FORMAT]])
def test_a_run_of_another_format_is_refused(found: object, tmp_path: Path) -> None:
    run = job.open(traced(tmp_path / "trace.json"), output=tmp_path / "run").path
    change_manifest(format=found)(run)
    with pytest.raises(NewerStore, match=f"this lostflops reads format {FORMAT}") as caught:
        job.open(run)
    assert "import the traces again" in caught.value.hint


def test_a_later_format_is_named_whatever_its_checksum_is(tmp_path: Path) -> None:
    run = job.open(traced(tmp_path / "trace.json"), output=tmp_path / "run").path
    later = json.loads((run / MANIFEST).read_text()) | {"format": FORMAT + 1}
    (run / MANIFEST).write_text(json.dumps(later))  # as it is written, a checksum that is not ours
    with pytest.raises(NewerStore, match=f"this lostflops reads format {FORMAT}"):
        job.open(run)


# -- small tables are one file -------------------------------------------------------------------------------


def test_small_tables_of_ranks_are_one_part_with_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {
        "kernels": [{"rank": rank, "start": rank, "end": 20 + at} for rank in (0, 3, 11) for at in (5, 4)],
        "ranks": [{"rank": rank} for rank in (0, 3, 11)],
    }
    joined = Trace.open(made(tmp_path / "joined", rows, origin_ns=7, offsets={"3": 100}))
    monkeypatch.setattr(parts, "JOINED_AT_MOST", 0)
    apart = Trace.open(made(tmp_path / "apart", rows, origin_ns=7, offsets={"3": 100}))
    assert joined.files("kernels") == ["kernels/part-0.parquet"]
    assert [part.partition("/p")[0] for part in apart.files("kernels")] == [
        f"kernels/rank={rank}" for rank in (0, 11, 3)
    ]
    for ranks in (None, frozenset({3}), frozenset({0, 11}), frozenset({5})):
        one, other = (trace if ranks is None else trace.select(ranks) for trace in (joined, apart))
        for name in rows:
            first, second = one.table(name), other.table(name)
            assert first is not None and second is not None
            assert_frame_equal(first.collect(), second.collect())


@pytest.mark.parametrize("held", [0, 1500])
def test_tables_held_in_memory_are_stored_as_those_that_files_held(
    held: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is held, or only those of the ranks with fewer events; twelve, for '10' stands before '2'."""
    files = [
        traced(
            tmp_path / f"rank-{n}.json", [event for m in range(n + 1) for event in one_step(m)], **of_rank(n)
        )
        for n in range(12)
    ]
    whole = job.open(files, output=tmp_path / "held").path
    monkeypatch.setattr("lostflops.ingest.part.HELD_AT_MOST", held)
    apart = job.open(files, output=tmp_path / "written").path
    for name in Trace.open(whole).manifest.tables:
        assert_frame_equal(*(pl.read_parquet(run / name / "part-0.parquet") for run in (whole, apart)))
    one, other = (json.loads((run / MANIFEST).read_text()) for run in (whole, apart))
    assert one["parts"].keys() == other["parts"].keys()
    assert one | {"crc32": 0, "parts": 0} == other | {"crc32": 0, "parts": 0}


def of_rank(number: int) -> dict[str, Any]:
    return {"distributedInfo": {"backend": "nccl", "rank": number, "world_size": 12}}


# -- which store --------------------------------------------------------------------------------------------


def test_another_content_time_name_or_way_of_reading_is_another_run(tmp_path: Path, store: Path) -> None:
    file = traced(tmp_path / "trace.json")
    keys = [job.open(file).path]

    def asked_anew(**options: Any) -> bool:
        keys.append(job.open(file, **options).path)
        return len(set(keys)) == len(keys) == len(runs(store))

    os.utime(file, (1, 1))
    assert asked_anew()
    content = file.read_bytes()
    file.write_bytes(content.replace(b"sgemm", b"hgemm"))  # as long, and at the same time
    os.utime(file, (1, 1))
    assert asked_anew()
    assert asked_anew(salvage=True)
    file = file.rename(tmp_path / "renamed.json")
    assert asked_anew()


def test_the_store_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = traced(tmp_path / "trace.json")
    assert job.open(file).path.parent == tmp_path / "cache" / "runs"
    monkeypatch.delenv("LOSTFLOPS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert job.open(file).path.parent == tmp_path / "xdg" / "lostflops" / "runs"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert job.open(file).path.parent == tmp_path / "home" / ".cache" / "lostflops" / "runs"


def test_a_store_that_cannot_be_written_says_how_to_choose_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = traced(tmp_path / "trace.json")
    blocked = tmp_path / "a-file"
    blocked.write_text("")
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(blocked))
    with pytest.raises(CannotWrite) as caught:
        job.open(file)
    assert "LOSTFLOPS_CACHE=" in caught.value.hint
    with pytest.raises(CannotWrite) as caught:
        job.open(file, output=blocked / "run")
    assert "LOSTFLOPS_CACHE" not in caught.value.hint


# -- reading a run ------------------------------------------------------------------------------------------

TWO_RANKS: dict[str, list[dict[str, Any]]] = {
    "ranks": [{"rank": 0, "start": 1000, "end": 1300}, {"rank": 11, "start": 995, "end": 1300}],
    "steps": [
        {"rank": rank, "start": at, "end": at + 100, "step": number}
        for rank in (0, 11)
        for number, at in ((5, 1000), (6, 1100), (7, 1200))
    ],
    "operators": [
        {"rank": 0, "start": 1090, "end": 1100, "name": "before"},
        {"rank": 0, "start": 1095, "end": 1101, "name": "into"},
        {"rank": 0, "start": 1100, "end": 1100, "name": "at the start"},
        {"rank": 0, "start": 1150, "end": 1150, "name": "no time"},
        {"rank": 0, "start": 1199, "end": 1400, "name": "out of"},
        {"rank": 0, "start": 1200, "end": 1200, "name": "at the end"},
        {"rank": 0, "start": 1200, "end": 1210, "name": "after"},
        {"rank": 11, "start": 1150, "end": 1160, "name": "another rank"},
    ],
}


def names(trace: Trace) -> list[str]:
    table = trace.table("operators")
    assert table is not None
    return table.select(pl.col("name").cast(pl.String)).collect()["name"].to_list()


def test_times_are_shown_from_the_origin_each_rank_moved_by_its_offset(tmp_path: Path) -> None:
    run = Trace.open(made(tmp_path, TWO_RANKS, origin_ns=995, offsets={"11": 30}))
    for name in TWO_RANKS:
        table = run.table(name)
        assert table is not None
        stored = pl.DataFrame(TWO_RANKS[name]).select("rank", "start", "end")
        moved = pl.when(pl.col("rank") == 11).then(30 - 995).otherwise(-995)
        expected = stored.with_columns(pl.col("start", "end") + moved).cast({"rank": pl.Int32})
        assert_frame_equal(table.select("rank", "start", "end").collect(), expected, check_row_order=False)


def test_a_slice_of_steps_holds_what_overlaps_them(tmp_path: Path) -> None:
    run = Trace.open(made(tmp_path, TWO_RANKS))
    sixth = run.select(steps=(6, 6))
    assert names(sixth) == ["into", "at the start", "no time", "out of", "another rank"]
    assert count(sixth, "steps") == 2 and count(sixth, "ranks") == 2
    assert names(run.select(steps=(5, 7))) == names(run)


def test_a_slice_of_ranks_holds_those_ranks_only(tmp_path: Path) -> None:
    run = Trace.open(made(tmp_path, TWO_RANKS))
    eleven = run.select(ranks=frozenset({11}))
    assert names(eleven) == ["another rank"]
    assert count(eleven, "ranks") == 1 and count(eleven, "steps") == 3
    assert names(eleven.select(steps=(7, 7))) == []
    assert names(run.select(steps=(6, 6)).select(ranks=frozenset({11}))) == ["another rank"]
    assert count(run.select(ranks=frozenset()), "operators") == 0


def test_a_slice_keeps_what_is_about_all_ranks_or_steps_together(tmp_path: Path) -> None:
    eleven = Trace.open(made(tmp_path, TWO_RANKS)).select(ranks=frozenset({11}))
    together = pl.DataFrame({"pipeline": [0, 1], "length": [7, 9]})
    assert_frame_equal(eleven.cut(together.lazy()).collect(), together)
    assert_frame_equal(eleven.select(steps=(6, 6)).cut(together.lazy()).collect(), together)
    of_steps = together.with_columns(step=pl.Series([5, 6]))
    assert_frame_equal(eleven.select(steps=(6, 6)).cut(of_steps.lazy()).collect(), of_steps[1:])


def test_a_small_table_is_read_once_and_a_large_one_where_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(tmp_path, TWO_RANKS)
    small, large = Trace.open(path), Trace.open(path)
    with monkeypatch.context() as patch:
        patch.setattr("lostflops.store.trace.KEPT_AT_ONCE", 0)
        scanned = large.table("operators")
    kept, one = small.table("operators"), small.select(ranks=frozenset({11}))
    assert kept is not None and scanned is not None and names(one) == ["another rank"]
    assert_frame_equal(kept.collect(), scanned.collect(), check_row_order=True)
    for part in (path / "operators").rglob("*.parquet"):
        part.unlink()
    assert names(one) == names(one.select(steps=(5, 6))) == ["another rank"]
    assert names(small) == names(small.select(steps=(5, 7)).whole) == kept.collect()["name"].to_list()
    with pytest.raises(DamagedStore), large.reading():
        scanned.collect()


def test_a_slice_without_steps_says_which_there_are(tmp_path: Path) -> None:
    run = Trace.open(made(tmp_path / "run", TWO_RANKS))
    with pytest.raises(NoSuchStep, match="no step in '8-9'; it has steps 5 to 7"):
        run.select(steps=(8, 9))
    bare = Trace.open(made(tmp_path / "bare", {"ranks": TWO_RANKS["ranks"]}))
    with pytest.raises(NoSuchStep, match="it has no steps"):
        bare.select(steps=(0, 0))


def test_a_missing_table_is_none_with_a_reason(tmp_path: Path) -> None:
    run = Trace.open(made(tmp_path, TWO_RANKS, absent={"copies": "no GPU was there"}))
    assert run.table("copies") is None and not run.has("copies")
    assert run.absence("copies").startswith("no GPU was there; needs ")
    assert run.absence("frames").startswith("needs ")


@pytest.mark.parametrize("name", ["run[1]", "a*b?", "rank=9", "step=77/x", "ü ö", "{a,b}"])
def test_a_run_may_lie_in_a_folder_of_any_name(name: str, tmp_path: Path) -> None:
    run = job.open(made(tmp_path / name, TWO_RANKS))
    table = run.table("steps")
    assert table is not None
    assert sorted(set(table.select("rank", "step").collect().rows())) == [
        (rank, number) for rank in (0, 11) for number in (5, 6, 7)
    ]


@pytest.mark.parametrize("example", ["fsdp2", "lora-workers-0"])
def test_a_step_has_the_same_ledger_alone_as_among_others(example: str) -> None:
    whole = job.open(EXAMPLES / example)

    def of(trace: Trace, name: str) -> pl.DataFrame:
        answer = Session(trace).run(name)
        assert not isinstance(answer, Skipped)
        return answer.table

    full = of(whole, "step_ledger")
    for number in full["step"].unique().sort().to_list():
        alone = of(whole.select(steps=(number, number)), "step_ledger")
        assert_frame_equal(alone, full.filter(pl.col("step") == number))
    if example == "fsdp2":
        one = whole.select(ranks=frozenset({1}))
        assert_frame_equal(of(one, "step_ledger"), full.filter(pl.col("rank") == 1))
        assert of(one, "pipeline_bubble").is_empty()  # of all ranks together: it has no column `rank`


# -- which sources ------------------------------------------------------------------------------------------


def test_a_folder_may_hold_other_files(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    traced(folder / "rank0.json", world=2)
    traced(folder / "deep" / "rank1.json", rank=1, world=2)
    written(folder / "config.json", b'{"lr": 0.1}')
    written(folder / "readme.txt", b"hello")
    written(folder / ".hidden.json", b"")
    written(folder / "deep" / "void.json", b"")
    run = job.open(folder)
    assert [s.name for s in run.manifest.sources] == ["rank1.json", "rank0.json"]
    left_out = [q.text for q in run.manifest.quality if q.name == "file left out"]
    assert [text.partition(" ")[0] for text in left_out] == ["config.json", "void.json"]
    assert all(q.level == "warning" for q in run.manifest.quality if q.name == "file left out")
    assert count(job.open(str(folder / "**" / "*.json")), "kernels") == 2
    with pytest.raises(NotATrace, match=r"config\.json"):
        job.open([folder / "rank0.json", folder / "config.json"])


def test_a_folder_in_which_nothing_is_a_trace_says_so(tmp_path: Path) -> None:
    written(tmp_path / "config.json", b'{"lr": 0.1}')
    with pytest.raises(NotATrace, match=r"config\.json"):
        job.open(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(NoTraces):
        job.open(tmp_path)
    for nothing in (tmp_path / "none.json", str(tmp_path / "*.json")):
        with pytest.raises(NothingThere):
            job.open(nothing)


def test_an_imported_run_is_asked_about_alone(tmp_path: Path) -> None:
    file = traced(tmp_path / "traces" / "trace.json")
    run = job.open(file, output=tmp_path / "traces" / "run").path
    assert job.open(run).path == run
    with pytest.raises(RunAmongTraces):
        job.open([file, run])
    with pytest.raises(RunAmongTraces):
        job.open(run, output=tmp_path / "copy")
    assert [s.name for s in job.open(tmp_path / "traces").manifest.sources] == ["trace.json"]


def test_sources_come_in_the_order_in_which_a_person_counts(tmp_path: Path) -> None:
    made_names = ["r10.json", "r9.json", "r²1.json", "²2.json", "7²3.json", "r1.json"]
    for name in made_names:
        traced(tmp_path / name)
    found = [p.name for p in job.find([tmp_path, tmp_path / "r9.json"])]
    assert sorted(found) == sorted(made_names)
    assert [n for n in found if n in ("r1.json", "r9.json", "r10.json")] == ["r1.json", "r9.json", "r10.json"]


def test_a_report_is_not_read_beside_its_own_export(tmp_path: Path) -> None:
    for name in ("a.nsys-rep", "a.sqlite", "b.nsys-rep"):
        (tmp_path / name).write_bytes(b"x")
    assert [p.name for p in job.find([tmp_path])] == ["a.sqlite", "b.nsys-rep"]


def test_missing_ranks_are_asked_for_also_of_what_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [traced(tmp_path / f"{rank}.json", rank=rank, world=4) for rank in (0, 2)]
    with pytest.raises(RanksMissing, match="Missing: 1, 3"):
        job.open(files)
    forbid_reading(monkeypatch)
    with pytest.raises(RanksMissing, match="Missing: 1, 3"):
        job.open(files)
    assert count(job.open(files, allow_missing_ranks=True), "ranks") == 2


def test_an_output_with_ranks_missing_is_not_made(tmp_path: Path) -> None:
    files = [traced(tmp_path / f"{rank}.json", rank=rank, world=4) for rank in (0, 2)]
    with pytest.raises(RanksMissing):
        job.open(files, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_reading_process_that_dies_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [traced(tmp_path / f"{rank}.json", rank=rank, world=2) for rank in (0, 1)]
    monkeypatch.setattr(sources, "WORTH_A_PROCESS", 10)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert count(job.open(files), "ranks") == 2
    for program in ("/bin/true", "/bin/echo"):
        monkeypatch.setattr(sys, "executable", program)
        with pytest.raises(LostflopsError, match="ended without an answer"):
            job.open([*files, traced(tmp_path / "more" / "2.json", rank=2, world=2)])


# -- several recordings of one rank, several clocks ---------------------------------------------------------


def part(folder: Path, start: int, rank: int | None = 0, epoch: int | None = None, **more: Any) -> Part:
    """One recording: a step of 100 ns with a kernel of 40 in it."""
    write_table(folder, "steps", pl.DataFrame({"start": [start], "end": [start + 100], "step": [3]}))
    kernels = pl.DataFrame({"start": [start + 10], "end": [start + 50], "name": ["mm"], "family": ["gemm"]})
    write_table(folder, "kernels", kernels)
    return Part(
        folder=str(folder), rank=rank, rank_source="a test", start=start, end=start + 100, num_events=2,
        tables=["steps", "kernels"], epoch_ns=epoch, **more,
    )  # fmt: skip


def assembled(folder: Path, *recordings: tuple[str, Part]) -> Trace:
    given = [
        (Source(name, 1, name, form), [one])
        for (name, one), form in zip(recordings, ["nsys"] * 9, strict=False)
    ]
    folder.mkdir()
    assembly.assemble(given, [], folder)
    return Trace.open(folder)


def shown(trace: Trace, name: str) -> list[tuple[Any, ...]]:
    table = trace.table(name)
    assert table is not None
    columns = ["rank", "start", "end", *(["step"] if name == "steps" else [])]
    return sorted(table.select(columns).collect().rows())


def test_recordings_of_one_rank_follow_each_other_on_one_clock(tmp_path: Path) -> None:
    """Each report counts from its own start; the second began 1,000 ns after the first."""
    later = part(tmp_path / "a", 20, epoch=6_000)
    first = part(tmp_path / "b", 50, epoch=5_000)
    run = assembled(tmp_path / "run", ("a", later), ("b", first))
    assert shown(run, "steps") == [(0, 0, 100, 3), (0, 970, 1070, 4)]
    assert shown(run, "kernels") == [(0, 10, 50), (0, 980, 1020)]
    assert run.manifest.origin_ns == 5_050 and run.manifest.offsets == {"0": 5_000}
    assert [q.name for q in run.manifest.quality] == ["steps renumbered"]


def test_reports_of_several_ranks_share_a_clock_by_when_they_began(tmp_path: Path) -> None:
    run = assembled(
        tmp_path / "run", ("a", part(tmp_path / "a", 20, 0, 6_000)), ("b", part(tmp_path / "b", 50, 1, 5_500))
    )
    assert shown(run, "steps") == [(0, 470, 570, 3), (1, 0, 100, 3)]


def test_clocks_that_cannot_be_compared_are_told(tmp_path: Path) -> None:
    run = assembled(
        tmp_path / "run", ("a", part(tmp_path / "a", 20, 0, 6_000)), ("b", part(tmp_path / "b", 50, 1, None))
    )
    assert shown(run, "steps") == [(0, 0, 100, 3), (1, 30, 130, 3)]
    (fact,) = run.manifest.quality
    assert (fact.name, fact.level) == ("clocks unrelated", "warning") and fact.text.startswith("b ")


def test_one_rank_twice_at_one_time_is_refused(tmp_path: Path) -> None:
    one, same = part(tmp_path / "a", 20, epoch=1_000), part(tmp_path / "b", 50, epoch=1_069)
    with pytest.raises(SameRankTwice, match="a and b both hold rank 0"):
        assembled(tmp_path / "run", ("a", one), ("b", same))
    after = part(tmp_path / "c", 50, epoch=1_070)
    assert shown(assembled(tmp_path / "two", ("a", one), ("c", after)), "steps") == [
        (0, 0, 100, 3),
        (0, 100, 200, 4),
    ]


def test_a_rank_beyond_all_jobs_is_numbered_anew(tmp_path: Path) -> None:
    run = assembled(tmp_path / "run", ("a", part(tmp_path / "a", 20, 2**31)))
    assert shown(run, "steps") == [(0, 0, 100, 3)]
    assert [q.name for q in run.manifest.quality] == ["rank not recorded"]


def test_nothing_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LostflopsError, match="a holds nothing to analyse"):
        assembly.assemble([(Source("a", 1, "a", "nsys"), [])], [], tmp_path)


def test_a_small_table_is_read_once_and_a_large_one_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = job.open([traced(tmp_path / "a.json", [*one_step(), step(2, 600, 900)])])
    scanned: list[str] = []
    scan = pl.scan_parquet

    def counting(files: Any, **options: Any) -> pl.LazyFrame:
        scanned.append(str(files))
        return scan(files, **options)

    monkeypatch.setattr(pl, "scan_parquet", counting)

    def asked(trace: Trace) -> pl.DataFrame:
        found = trace.table("kernels")
        assert found is not None
        return found.collect()

    once = Trace.open(run.path)
    assert_frame_equal(asked(once), asked(once))
    assert not scanned  # a very small one has a copy
    copy = run.path / "small" / "kernels.arrow"
    whole = copy.read_bytes()
    for damaged in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), b"", None):
        copy.unlink() if damaged is None else copy.write_bytes(damaged)
        without = Trace.open(run.path)
        assert_frame_equal(asked(once), asked(without))
        assert_frame_equal(asked(once), asked(without))
        assert len(scanned) == 1
        scanned.clear()
    monkeypatch.setattr("lostflops.store.trace.KEPT_AT_ONCE", 1)
    fresh = Trace.open(run.path)
    first, second, third = asked(fresh), asked(fresh), asked(fresh)
    assert len(scanned) == 2  # once as a scan, once to keep
    assert_frame_equal(first, second)
    assert_frame_equal(first, third)
    assert asked(fresh.select(ranks=frozenset({99}))).is_empty()  # a slice cuts the rows that are kept
    assert len(scanned) == 2

    monkeypatch.setattr("lostflops.store.trace.KEPT_AT_MOST", 1)
    large = Trace.open(run.path)
    assert_frame_equal(asked(large), asked(large))
    assert len(scanned) == 4
