"""Turn a `.nsys-rep` report into a SQLite export with the user's own nsys."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lostflops.errors import ExportFailed, NsysNotFound, Unreadable

SUFFIXES = (".nsys-rep", ".qdrep")
_VERSION = re.compile(r"\b20\d\d\.\d+(?:\.\d+)*")


def command(report: Path) -> str:
    """What a user types to export `report` themselves."""
    return shlex.join(
        [
            "nsys",
            "export",
            "--type=sqlite",
            "--include-json=true",
            f"--output={report.stem}.sqlite",
            report.name,
        ]
    )


@contextmanager
def as_database(report: Path, scratch: Path) -> Generator[Path]:
    """A SQLite export of `report`, under `scratch` and only for as long as the block lasts.

    Raises NsysNotFound where there is no nsys on the PATH, ExportFailed where it cannot export the report.
    """
    try:
        with report.open("rb") as file:
            head = file.read(1 << 16)
    except OSError as error:
        raise Unreadable(report, error) from error
    nsys = shutil.which("nsys")
    if nsys is None:
        raise NsysNotFound(report, command(report))
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".nsys-export-", dir=scratch) as folder:
        database = Path(folder) / "export.sqlite"
        said = _export(nsys, report, database, ["--include-json=true"])
        if not database.is_file() and "include-json" in said:  # an option that came with a later nsys
            said = _export(nsys, report, database, [])
        if not database.is_file():
            own = _VERSION.search(_run([nsys, "--version"]))
            others = [v for v in _VERSION.findall(said) if own is None or v != own[0]]
            written_by = others[0] if others else _version_in(head)
            raise ExportFailed(report, own[0] if own else None, written_by, command(report))
        yield database


def _export(nsys: str, report: Path, database: Path, options: Sequence[str]) -> str:
    return _run(
        [
            nsys,
            "export",
            "--type=sqlite",
            *options,
            "--force-overwrite=true",
            f"--output={database}",
            str(report.resolve()),
        ]
    )


def _run(words: Sequence[str]) -> str:
    """What a command said, on both of its channels. Whether it worked shows in what it wrote."""
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        return str(error)
    return done.stdout + done.stderr


def _version_in(head: bytes) -> str | None:
    found = _VERSION.search(head.decode("ascii", "replace"))
    return found[0] if found else None
