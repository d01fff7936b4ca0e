"""A trace that is packed with something else than gzip says so, by whatever name it has."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from lostflops import ingest
from lostflops.errors import NotATrace
from lostflops.ingest import formats, sources
from lostflops.ingest.kineto import reader as kineto
from lostflops.ingest.kineto.columns import integers, number


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"BZh9", "bzip2"),
        (b"\xfd7zXZ\0", "xz"),
        (b"PK\x03\x04", "zip"),
        (b"\x04\x22\x4d\x18", "LZ4"),
    ],
)
@pytest.mark.parametrize(
    "file", ["rank0.json", "rank0.json.zst", "RANK0.JSON.BZ2", "rank0.pt.trace.json.packed"]
)
def test_what_a_trace_is_packed_with_is_said(tmp_path: Path, head: bytes, name: str, file: str) -> None:
    path = tmp_path / file
    path.write_bytes(head + bytes(64))
    assert formats.reader_of(path) is ingest.kineto.READER
    with pytest.raises(NotATrace, match=f"packed with {name}"):
        kineto.read(path, tmp_path / "out")


@pytest.mark.parametrize(
    "file", ["trace.json", "trace.json.gz", "trace.json.tar", "trace.tar.gz", "trace.tgz"]
)
def test_an_archive_of_traces_is_said_to_be_one(tmp_path: Path, file: str) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz" if file.endswith("gz") else "w") as archive:
        archive.addfile(tarfile.TarInfo("rank0.json"))
    (tmp_path / file).write_bytes(packed.getvalue())
    assert formats.reader_of(tmp_path / file) is ingest.kineto.READER
    with pytest.raises(NotATrace, match="packed with tar"):
        kineto.read(tmp_path / file, tmp_path / "out")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_text_of_wide_characters_is_said_to_be_so_without_a_mark(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "rank0.json").write_bytes('{"traceEvents": []}'.encode(encoding))
    with pytest.raises(NotATrace, match="its text is UTF-16 or UTF-32"):
        kineto.read(tmp_path / "rank0.json", tmp_path / "out")


def test_what_is_packed_and_named_like_nothing_of_ours_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / "backup.zip").write_bytes(b"PK\x03\x04" + bytes(64))
    with pytest.raises(NotATrace, match="match no format"):
        formats.reader_of(tmp_path / "backup.zip")


def test_true_and_false_are_no_numbers() -> None:
    assert number(True) is number(False) is None
    assert integers(["7", True, 1, False, 0]).to_list() == [7, None, 1, None, 0]
    assert integers(["x 3", True, 1]).to_list() == [3, None, 1]


@pytest.mark.parametrize(
    ("name", "megabytes", "small"),
    [("a.json", 98, True), ("a.json", 102, False), ("a.json.gz", 8, True), ("a.json.gz", 9, False)],
)
def test_text_that_is_not_packed_is_read_here_up_to_twelve_times_as_much(
    tmp_path: Path, name: str, megabytes: int, small: bool
) -> None:
    """Of 14 MB of plain text, starting two processes took longer than reading it."""
    files = [tmp_path / f"{n}{name}" for n in range(2)]
    for file in files:
        with file.open("wb") as hole:
            hole.truncate(megabytes * 1_000_000 // 2)
    assert sources.is_small(files) == small
