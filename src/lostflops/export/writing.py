"""Files that an export writes: whole or not at all."""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from lostflops.errors import CannotWrite

BUFFER = 1 << 20
FASTEST = 1  # of gzip's levels


@contextmanager
def writing(target: Path) -> Generator[Path]:
    """A file to fill beside `target`, which takes its place when the block ends without an error.

    Raises CannotWrite.
    """
    real = Path(os.path.realpath(target))
    beside = real.with_name(f".{real.name[:60]}.{os.getpid()}.tmp")
    try:
        if target.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        if target.exists() and not target.is_file():  # a device or a pipe: there is nothing to replace
            yield target
            return
        yield beside
        beside.replace(real)
    except OSError as error:
        raise CannotWrite(target, error) from error
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def writing_all(targets: Sequence[Path]) -> Generator[list[Path]]:
    """Several files to fill, which take their places together, the last one last. Raises CannotWrite."""
    with ExitStack() as all_of_them:
        # Those entered first are put in their places last.
        places = [all_of_them.enter_context(writing(target)) for target in reversed(targets)]
        yield places[::-1]


@contextmanager
def writing_folder(target: Path) -> Generator[Path]:
    """A folder to fill beside `target`, the name of a folder that is not there or is empty."""
    beside: Path | None = None
    try:
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
