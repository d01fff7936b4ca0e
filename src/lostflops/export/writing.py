"""Files that an export writes: whole or not at all."""

from __future__ import annotations

import glob
import gzip
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from polars.exceptions import PolarsError

from lostflops.errors import BadOption, CannotWrite, shown
from lostflops.ingest import formats
from lostflops.store.trace import ABANDONED_AFTER, OS_ERROR

BUFFER = 1 << 20
FASTEST = 1  # of gzip's levels


def require_outside(target: Path, inputs: Sequence[str | Path]) -> None:
    """Raise BadOption where `target` would be read as a trace of its own run from then on."""
    real = Path(os.path.realpath(target))
    folders = [Path(given).expanduser() for given in inputs]
    around = [f for f in folders if f.is_dir() and Path(os.path.realpath(f)) in real.parents]
    if around and (formats.looks_like_trace(target) or not target.suffix):
        raise BadOption(
            f"'{shown(target)}' lies in the run's own folder: from then on it would be read as one of its "
            "traces.",
            f"choose another place: `--output {shown(target.name)}`.",
        )


@contextmanager
def writing(target: Path) -> Generator[Path]:
    """A file to fill beside `target`, which takes its place when the block ends without an error.

    Raises CannotWrite.
    """
    with _told(target), _filling(target) as place:
        yield place


@contextmanager
def _told(target: Path) -> Generator[None]:
    """What goes wrong with files in the block is told of `target`."""
    try:
        yield
    except OSError as error:
        raise CannotWrite(target, error) from error
    except PolarsError as error:
        number = OS_ERROR.search(str(error))
        if number is None:
            raise
        raise CannotWrite(target, OSError(int(number[1]), os.strerror(int(number[1])))) from error


@contextmanager
def _filling(target: Path) -> Generator[Path]:
    real = Path(os.path.realpath(target))
    # Long names that differ in their endings must not share one.
    whole = zlib.crc32(os.fsencode(real.name))
    beside = real.with_name(f".{real.name[:60]}.{whole:08x}.{os.getpid()}.tmp")
    try:
        if target.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        if target.exists() and not target.is_file():  # a device or a pipe: there is nothing to replace
            yield target
            return
        _sweep(real)
        yield beside
        beside.replace(real)
    finally:
        beside.unlink(missing_ok=True)


def _sweep(target: Path) -> None:
    """Remove what killed exports to `target` left, a day after."""
    for left in target.parent.glob(f".{glob.escape(target.name[:60])}.*.tmp"):
        if time.time() - left.stat().st_mtime > ABANDONED_AFTER:
            shutil.rmtree(left) if left.is_dir() else left.unlink()


@contextmanager
def writing_all(targets: Sequence[Path]) -> Generator[list[Path]]:
    """Several files to fill, which take their places together, the last one last. Raises CannotWrite."""
    with _told(targets[-1]), ExitStack() as all_of_them:
        # Those entered first are put in their places last.
        places = [all_of_them.enter_context(_filling(target)) for target in reversed(targets)]
        yield places[::-1]


@contextmanager
def scratch(target: Path) -> Generator[Path]:
    """A folder beside `target` for what it is made of, removed when the block ends."""
    with tempfile.TemporaryDirectory(
        dir=target.parent, prefix=f".{target.name[:60]}.", suffix=".tmp"
    ) as folder:
        yield Path(folder)


@contextmanager
def writing_folder(target: Path) -> Generator[Path]:
    """A folder to fill beside `target`, the name of a folder that is not there or is empty."""
    beside: Path | None = None
    try:
        _sweep(target)
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise FileExistsError(0, "something is there already")
        beside = Path(tempfile.mkdtemp(prefix=f".{target.name[:60]}.", suffix=".tmp", dir=target.parent))
        yield beside
        beside.chmod(0o777 & ~_umask())
        if target.is_dir():
            target.rmdir()
        beside.rename(target)
    except OSError as error:
        raise CannotWrite(target, error) from error
    finally:
        if beside is not None:
            shutil.rmtree(beside, ignore_errors=True)


def _umask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now


@contextmanager
def compressed(place: Path, target: Path) -> Generator[IO[bytes]]:
    """The file at `place`, compressed where the name of `target` ends in '.gz'."""
    with place.open("wb", buffering=BUFFER) as file:
        if target.name.endswith(".gz"):
            # Neither a name nor a time within: the same run gives the same bytes.
            with gzip.GzipFile("", "wb", FASTEST, file, mtime=0) as packed:
                yield packed  # pyright: ignore[reportReturnType]
        else:
            yield file
