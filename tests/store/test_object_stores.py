"""Traces are read from an S3 server on this machine, runs are written there and opened from there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import lostflops
from lostflops.cli import main
from lostflops.errors import MissingExtra, NothingThere, StoreSilent
from lostflops.ingest import job
from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.strategy import strategy
from lostflops.lab.simulate.writing import simulate
from lostflops.store import object_store

# Not imported before a test needs them: that takes a second, of every process that collects the tests.
NEEDED = ("s3fs", "flask_cors", "moto")
if not all(map(find_spec, NEEDED)):
    pytest.skip(
        "there is no S3 server: `pip install s3fs 'moto[s3]' flask flask-cors`", allow_module_level=True
    )


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    simulate(SimulatedJob(strategy("ddp", 2), steps=2, layers=1), folder)
    return folder


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    made: Any = pytest.importorskip("moto.server").ThreadedMotoServer(
        ip_address="127.0.0.1", port=0, verbose=False
    )
    made.start()
    host, port = made.get_host_and_port()
    yield f"http://{host}:{port}"
    made.stop()


@pytest.fixture
def bucket(server: str, traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a bucket of this test's own that holds the traces, and an empty cache."""
    s3fs = pytest.importorskip("s3fs")
    for name, value in {
        "AWS_ENDPOINT_URL": server,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "LOSTFLOPS_CACHE": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    files = s3fs.S3FileSystem()
    name = "".join(c if c.isalnum() else "-" for c in tmp_path.name.replace("_", "-").lower())[-40:].strip(
        "-"
    )
    files.mkdir(name)
    for file in traces.iterdir():
        files.put_file(str(file), f"{name}/traces/{file.name}")
    return f"s3://{name}"


def store() -> Any:
    s3fs = pytest.importorskip("s3fs")
    s3fs.S3FileSystem.clear_instance_cache()
    return s3fs.S3FileSystem()


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and "answers" not in file.parts
    }


def tables(run: Path) -> dict[str, bytes]:
    return {name: content for name, content in files(run).items() if name != "run.json"}


def test_traces_are_read_as_if_they_lay_here(bucket: str, traces: Path) -> None:
    here = lostflops.ask(traces, "step_ledger")
    for named in ("traces", "traces/", "traces/*.json.gz", "*/rank*"):
        assert lostflops.ask(f"{bucket}/{named}", "step_ledger").equals(here), named
    one = f"{bucket}/traces/{sorted(p.name for p in traces.glob('*.gz'))[1]}"
    assert lostflops.open(one).table("ranks").collect()["rank"].to_list() == [1]  # type: ignore[union-attr]


def test_what_was_fetched_is_not_fetched_again_unless_it_changed(
    bucket: str, traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def tell(what: str, share: float) -> None:
        told.append(what)

    def fetched() -> list[str]:
        told.clear()
        store()  # forgets what it listed
        object_store.fetched(f"{bucket}/traces", tmp_path / "cache", tell)
        return told

    names = sorted(file.name for file in traces.iterdir())
    assert fetched() == [f"fetching {name}" for name in names]
    assert fetched() == []
    files = store()
    files.pipe_file(f"{bucket}/traces/{names[0]}", b"other")
    files.rm_file(f"{bucket}/traces/{names[1]}")
    assert fetched() == [f"fetching {names[0]}"]
    place = object_store.place_of(f"{bucket}/traces", tmp_path / "cache")
    assert sorted(file.name for file in place.iterdir()) == [names[0], *names[2:]]


def test_a_run_is_written_to_a_store_and_opened_from_it(
    bucket: str, traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", str(traces), "--output", f"{bucket}/runs/base"]) == 0
    assert f"-> {bucket}/runs/base  (" in capsys.readouterr().out
    job.open(traces, output=tmp_path / "here")
    store().get(f"{bucket}/runs/base", str(tmp_path / "there"), recursive=True)
    assert files(tmp_path / "there") == files(tmp_path / "here")
    shutil.rmtree(tmp_path / "cache")  # on another machine
    assert main(["why", f"{bucket}/runs/base"]) == 0
    page = capsys.readouterr().out
    assert main(["why", str(tmp_path / "here")]) == 0
    local = capsys.readouterr().out
    assert page.replace(f"{bucket}/runs/base", "RUN") == local.replace(str(tmp_path / "here"), "RUN")


def test_a_run_is_replaced_but_nothing_else(
    bucket: str, traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = sorted(traces.glob("*.gz"))[0]
    for source in (traces, one):
        assert main(["import", str(source), "--output", f"{bucket}/runs/base"]) == 0
    job.open(one, output=tmp_path / "here")
    store().get(f"{bucket}/runs/base", str(tmp_path / "there"), recursive=True)
    assert files(tmp_path / "there") == files(tmp_path / "here"), "no part of the other run is left"
    capsys.readouterr()
    assert main(["import", str(one), "--output", f"{bucket}/traces"]) == 2
    assert "already exists and is not a lostflops run" in capsys.readouterr().err
    assert len(store().ls(f"{bucket}/traces")) == len(list(traces.iterdir()))


def test_what_is_not_there_is_told(bucket: str) -> None:
    for address in (f"{bucket}/nothing", f"{bucket}/*.none", "s3://no-such-bucket-here/x", "nosuch://a/b"):
        with pytest.raises(NothingThere, match="no file or folder at"):
            lostflops.open(address)


def test_a_store_that_does_not_answer_is_told(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    store()
    with pytest.raises(StoreSilent, match="cannot be reached") as told:
        lostflops.open("s3://elsewhere/traces")
    assert "credentials" in str(told.value)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(MissingExtra, match=r"lostflops\[gs\]"):
        lostflops.open("gs://bucket/traces")


def test_an_address_of_this_machine_is_a_path(traces: Path, tmp_path: Path) -> None:
    assert main(["import", f"file://{traces}", "--output", f"file://{tmp_path}/run"]) == 0
    assert (tmp_path / "run" / "run.json").is_file()


def test_a_name_that_leads_out_of_its_folder_is_refused(tmp_path: Path) -> None:
    memory: Any = pytest.importorskip("fsspec").filesystem("memory")
    memory.store.clear()
    memory.store["/bucket/a/../../escaped.json"] = memory.open("/seed", "wb")
    with pytest.raises(StoreSilent, match="leads out of its folder"):
        object_store.fetched("memory://bucket", tmp_path / "cache")
    assert not list(tmp_path.rglob("escaped.json"))


def test_paths_alone_import_no_library_of_stores(traces: Path, tmp_path: Path) -> None:
    code = f"import sys, lostflops; lostflops.open({str(traces)!r}); print('fsspec' in sys.modules)"
    environment = {**os.environ, "LOSTFLOPS_CACHE": str(tmp_path)}
    said = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert said == "False\n"
