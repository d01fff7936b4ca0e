"""Files that are damaged, missing, unreadable or in the way: what is asked is answered rightly or refused."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from kineto_files import head, one_step, trace, written
from lostflops.cli import main
from lostflops.cli.output import files
from lostflops.errors import BadOption, CannotWrite, DamagedStore, NotATrace, Unreadable
from lostflops.ingest import assembly, job
from lostflops.session import Answer, Session
from lostflops.store import answers, parts
from lostflops.store import trace as store
from lostflops.store.trace import MANIFEST, Trace


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LOSTFLOPS_DEBUG", raising=False)
    return tmp_path / "cache" / "runs"


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A folder with the traces of two ranks."""
    for rank in (0, 1):
        place = tmp_path / "traces" / f"rank{rank}.json"
        place.parent.mkdir(exist_ok=True)
        written(place, trace(one_step(), head(rank=rank, world=2)))
    return tmp_path / "traces"


@pytest.fixture
def run(traces: Path, tmp_path: Path) -> Path:
    return job.open(traces, output=tmp_path / "RUN").path


def ledger(trace: Trace) -> pl.DataFrame:
    said = Session(trace).run("step_ledger")
    assert isinstance(said, Answer)
    return said.table


def left_out(trace: Trace) -> list[str]:
    return [fact.text for fact in trace.manifest.quality if fact.name == "file left out"]


def fails(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What a command says that exits with 2."""
    assert main([str(word) for word in words]) == 2
    return capsys.readouterr().err


# -- outputs ------------------------------------------------------------------------------------------------


def test_no_output_takes_the_place_of_a_trace_among_the_inputs(
    traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rank, other = traces / "rank0.json", traces / "link.json"
    before = rank.read_bytes()
    other.symlink_to(rank)
    for given in (traces, traces / "rank*.json", rank):
        for target in (rank, other):
            for flag in ("--json", "--html"):
                assert "is an input" in fails(capsys, "why", given, flag, target)
            said = fails(capsys, "recipe", "kernel-summary", given, "--output", target)
            assert "is an input" in said
    assert rank.read_bytes() == before


def test_no_output_goes_into_a_run_or_an_export_that_is_asked_about(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export = tmp_path / "y_pqtdir"
    export.mkdir()
    for given, file in ((run, MANIFEST), (run, "new.json"), (export, "CUPTI_ACTIVITY_KIND_KERNEL.parquet")):
        assert "is an input" in fails(capsys, "why", given, "--json", given / file)
    assert "is an input" in fails(capsys, "why", tmp_path / "*_pqtdir", "--json", export / "x.json")


def test_a_trace_that_appears_under_an_output_while_it_is_made_stays(traces: Path) -> None:
    late = traces / "rank2.json"
    files.check(late, [str(traces)])
    late.write_text("[]")
    with pytest.raises(BadOption, match="is an input"), files.replacing(late, [str(traces)]) as file:
        file.write_text("page")
    assert late.read_text() == "[]"


def test_a_page_among_the_traces_may_be_written_again(traces: Path) -> None:
    for _ in range(2):
        assert main(["why", str(traces), "--json", str(traces / "page.json")]) == 0


def test_two_outputs_in_one_file_are_refused(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").symlink_to(tmp_path)
    two = ("--html", tmp_path / "page", "--json", tmp_path / "here" / "page")
    assert "name one file" in fails(capsys, "why", traces, *two)
    assert not (tmp_path / "page").exists()


def test_a_link_stays_a_link_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    page, link = tmp_path / "deep" / "page.html", tmp_path / "link.html"
    page.parent.mkdir()
    page.write_text("old")
    link.symlink_to(page)
    with files.replacing(link) as file:
        file.write_text("new")
    assert link.is_symlink()
    assert page.read_text() == "new"
    assert [p.name for p in page.parent.iterdir()] == ["page.html"]


def test_a_file_that_must_not_be_written_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.html"
    page.write_text("kept")
    monkeypatch.setattr(os, "access", lambda *_: False)  # the superuser may write everything
    with pytest.raises(CannotWrite, match="Permission denied"), files.replacing(page):
        pass
    assert page.read_text() == "kept"


@pytest.mark.parametrize("flag", ["--json", "--html", "--steps"])
def test_an_option_without_a_value_is_refused(
    flag: str, traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fails(capsys, "why", traces, flag, "")
    assert fails(capsys, "recipe", "kernel-summary", traces, "--ranks", "")


# -- stores -------------------------------------------------------------------------------------------------


def flip(file: Path, where: float) -> None:
    content = bytearray(file.read_bytes())
    middle = int(len(content) * where)
    content[middle : middle + 4] = bytes(b ^ 0xFF for b in content[middle : middle + 4])
    file.write_bytes(content)


@pytest.fixture
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether tables are small, which makes one part of those of the ranks."""
    if not request.param:
        monkeypatch.setattr(parts, "JOINED_AT_MOST", 0)
    return request.param


PARTS_OF_RANKS: dict[str, Callable[[Path], object]] = {
    "a rank's part is gone": lambda run: shutil.rmtree(run / "kernels" / "rank=0"),
    "a rank is gone": lambda run: shutil.rmtree(run / "ranks" / "rank=1"),
    "bytes changed": lambda run: flip(run / "kernels" / "rank=1" / "part-0.parquet", 0.1),
    "the footer changed": lambda run: flip(run / "kernels" / "rank=1" / "part-0.parquet", 0.9),
    "another table's part": lambda run: shutil.copy(
        run / "steps" / "rank=1" / "part-0.parquet", run / "kernels" / "rank=1" / "part-0.parquet"
    ),
    "one part too many": lambda run: shutil.copy(
        run / "kernels" / "rank=0" / "part-0.parquet", run / "kernels" / "rank=0" / "part-1.parquet"
    ),
}
ONE_PART: dict[str, Callable[[Path], object]] = {
    "the part is gone": lambda run: (run / "kernels" / "part-0.parquet").unlink(),
    "all ranks are gone": lambda run: shutil.rmtree(run / "ranks"),
    "bytes changed": lambda run: flip(run / "kernels" / "part-0.parquet", 0.1),
    "the footer changed": lambda run: flip(run / "kernels" / "part-0.parquet", 0.9),
    "another table's part": lambda run: shutil.copy(
        run / "steps" / "part-0.parquet", run / "kernels" / "part-0.parquet"
    ),
    "one part too many": lambda run: shutil.copy(
        run / "kernels" / "part-0.parquet", run / "kernels" / "part-1.parquet"
    ),
}
DAMAGES = {False: PARTS_OF_RANKS, True: ONE_PART}


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    ("small", "damage"), [(s, name) for s, known in DAMAGES.items() for name in known], indirect=["small"]
)
def test_a_damaged_run_is_refused_and_a_damaged_cache_is_made_anew(
    small: bool, damage: str, large: bool, traces: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ledger(Trace.open(run))
    cached = job.open(traces).path
    for place in (run, cached):
        shutil.rmtree(place / answers.FOLDER, ignore_errors=True)
        DAMAGES[small][damage](place)
    assert_frame_equal(ledger(job.open(traces)), whole)
    if large:  # then a table is compared when it is first read
        monkeypatch.setattr(store, "COMPARED_AT_ONCE", 0)
    with pytest.raises(DamagedStore, match=r"is missing|is not|is no part"):
        for name in Trace.open(run).manifest.tables:
            Trace.open(run).table(name)


def test_a_run_of_an_earlier_lostflops_still_opens(run: Path) -> None:
    manifest = Trace.open(run).manifest
    manifest.parts = None
    (run / MANIFEST).write_bytes(store.msgspec.json.encode(manifest))
    assert ledger(Trace.open(run)).height


def test_a_run_that_is_removed_while_it_is_asked_is_damaged(run: Path) -> None:
    session = Session(Trace.open(run))
    shutil.rmtree(run)
    with pytest.raises(DamagedStore, match="missing"):
        session.run("step_ledger")


def test_an_answer_in_another_ones_place_is_computed_anew(run: Path) -> None:
    whole = ledger(Trace.open(run))
    Session(Trace.open(run)).run("kernel_summary")
    files = {file.name.partition("-")[0]: file for file in (run / answers.FOLDER).iterdir()}
    shutil.copy(files["kernel_summary"], files["step_ledger"])
    assert_frame_equal(ledger(Trace.open(run)), whole)
    flip(files["step_ledger"], 0.3)
    assert_frame_equal(ledger(Trace.open(run)), whole)


def test_a_file_in_the_place_of_a_cached_run_is_removed(traces: Path) -> None:
    cached = job.open(traces).path
    shutil.rmtree(cached)
    cached.write_text("no run")
    assert ledger(job.open(traces)).height


def test_a_store_may_lie_below_a_name_with_brackets(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOSTFLOPS_CACHE", str(tmp_path / "c[ab]*"))
    assert ledger(job.open(traces)).height


def test_a_full_disk_is_said(traces: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands for it: Python and Polars fail with an error number in both."""
    code = (
        "import resource, sys; from lostflops.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    for output in ([], ["--output", str(tmp_path / "new")]):
        command = [sys.executable, "-c", code, "import" if output else "why", str(traces), *output]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout) == (2, "")
        assert "could not be written: File too large" in done.stderr


def test_a_device_fact_that_no_column_holds_is_not_known(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"rank": 0, "start": 0, "end": 9, "world_size": 1, "num_sms": 2**31}]
    assembly._write_ranks(tmp_path, rows)  # pyright: ignore[reportPrivateUsage]
    kept = pl.read_parquet(tmp_path / "ranks" / "rank=0" / "part-0.parquet")
    assert kept.select("num_sms", "world_size").row(0) == (None, 1)


def test_a_gpu_with_an_endless_name_has_a_short_one(tmp_path: Path) -> None:
    file = written(
        tmp_path / "t.json", trace(one_step(), head(deviceProperties=[{"id": 0, "name": "H" * 10**6}]))
    )
    ranks = job.open(file).table("ranks")
    assert ranks is not None
    assert len(ranks.collect()["gpu"][0]) <= 200


# -- inputs -------------------------------------------------------------------------------------------------


def spoil_pipe(place: Path) -> None:
    os.mkfifo(place)


ODD: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pipe": (spoil_pipe, "a pipe"),
    "a link to nothing": (lambda p: p.symlink_to("nowhere"), "a link that leads to nothing"),
    "a circle of links": (lambda p: p.symlink_to(p), "a link that leads back to itself"),
    "a device": (lambda p: p.symlink_to("/dev/null"), "a device"),
}


@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_file_is_left_out_of_a_folder_and_refused_by_name(odd: str, traces: Path) -> None:
    make, said = ODD[odd]
    make(traces / "odd.json")
    trace = job.open(traces)
    assert trace.table("ranks").collect().height == 2  # pyright: ignore[reportOptionalMemberAccess]
    assert [said in text for text in left_out(trace)] == [True]
    with pytest.raises(NotATrace, match=said):
        job.open(traces / "odd.json")
    alone = traces.parent / "alone"
    alone.mkdir()
    make(alone / "odd.json")
    with pytest.raises(NotATrace, match=said):
        job.open(alone)


def test_a_name_that_is_not_utf8_is_left_out_of_a_folder_and_refused_by_name(traces: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(traces) + b"/bad\xff.json"))
    shutil.copy(traces / "rank0.json", odd)
    assert left_out(job.open(traces)) == [
        "bad\\udcff.json is not a trace that lostflops can read: its path is not UTF-8."
    ]
    with pytest.raises(NotATrace, match="not UTF-8"):
        job.open(odd)
    with pytest.raises(CannotWrite, match="not UTF-8"):
        job.open(traces, output=traces.parent / odd.stem)


def test_a_path_longer_than_any_is_refused(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "File name too long" in fails(capsys, "why", "x" * 5000)
    assert "File name too long" in fails(capsys, "why", traces, "--json", "x" * 300)
    assert "File name too long" in fails(capsys, "why", "x" * 5000, "--json", traces.parent / "new.json")


def test_a_folder_that_cannot_be_listed_is_refused(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks may lie in it, unseen."""
    (traces / "deep").mkdir()
    listed = os.scandir

    def refuses(place: Any) -> Any:
        if Path(place).name == "deep":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))
        return listed(place)

    monkeypatch.setattr(os, "scandir", refuses)  # the superuser may list every folder
    with pytest.raises(Unreadable, match="deep could not be read: Permission denied"):
        job.open(traces)


def test_a_table_of_an_export_that_leads_to_nothing_cannot_be_read(tmp_path: Path) -> None:
    export = tmp_path / "y_pqtdir"
    export.mkdir()
    (export / "StringIds.parquet").symlink_to("nowhere")
    with pytest.raises(Unreadable, match=r"StringIds.parquet could not be read: No such file"):
        job.open(export)


def test_a_trace_that_is_removed_while_it_is_read_is_said_to_be(
    traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = job.read_all

    def removed(*given: Any, **more: Any) -> Any:
        (traces / "rank1.json").unlink()
        return read(*given, **more)

    monkeypatch.setattr(job, "read_all", removed)
    with pytest.raises(Unreadable, match=r"rank1.json could not be read: No such file") as caught:
        job.open(traces)
    assert caught.value.hint == "check the path."


def test_any_bit_of_a_runs_manifest_that_flips_is_told_or_changes_nothing(run: Path) -> None:
    manifest = run / MANIFEST
    whole = manifest.read_bytes()
    said = Trace.open(run).manifest
    for at in range(0, len(whole), 7):
        for bit in (0, 3, 7):
            manifest.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            try:
                assert Trace.open(run).manifest == said, f"bit {bit} of byte {at}"
            except DamagedStore as error:
                assert MANIFEST in error.message
    manifest.write_bytes(whole)
    assert Trace.open(run).manifest == said


def test_a_cache_entry_whose_manifest_is_damaged_is_made_again(traces: Path, cache: Path) -> None:
    before = ledger(job.open(traces))
    (entry,) = cache.iterdir()
    whole = (entry / MANIFEST).read_bytes()
    (entry / MANIFEST).write_bytes(whole.replace(b'"format"', b'"form\xfft"', 1))
    assert_frame_equal(ledger(job.open(traces)), before)
    assert (entry / MANIFEST).read_bytes() == whole
