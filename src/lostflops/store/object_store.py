"""Traces and runs on object stores such as s3:// and gs://, as local copies that are fetched once.

A copy lies in the cache under a name made of its address. What changed there since is fetched again, what is
gone there goes. fsspec speaks with the stores; it and the package of a store are imported where one is named.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from lostflops.errors import LostflopsError, MissingExtra, NothingThere, OutputExists, StoreSilent, shown
from lostflops.run_folder import MANIFEST, UNFINISHED

from .answers import FOLDER as ANSWERS

Progress = Callable[[str, float], None]
URL = re.compile(r"([a-z][a-z0-9+.-]*)://")
EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}
# What stores call the thing that changes with a file.
CHANGES = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "updated", "created")


def is_url(path: str | Path) -> bool:
    """Whether a path is an address of an object store, `file://` included."""
    return isinstance(path, str) and URL.match(path) is not None


def fetched(path: str | Path, cache: Path, progress: Progress | None = None) -> str | Path:
    """The path, or where the copy of what an address names lies: a file, a folder, or all that match.

    Raises NothingThere, MissingExtra or StoreSilent.
    """
    if not isinstance(path, str) or not is_url(path):
        return path
    if path.startswith("file://"):
        return path.removeprefix("file://")
    with _speaking(path):
        files, inside = _opened(path)
        listed = _listed(files, inside)
        if not listed:
            raise NothingThere(path)
        single = len(listed) == 1 and next(iter(listed)) == inside
        above = inside.rpartition("/")[0] if single or _is_pattern(inside) else inside
        place = place_of(path, cache)
        _copy(files, {name: _below(name, above) for name in listed}, listed, place, progress)
    return place / PurePosixPath(inside).name if single else place


def place_of(url: str, cache: Path) -> Path:
    """Where the copy of what lies at an address is."""
    return cache / "objects" / hashlib.blake2b(url.rstrip("/").encode(), digest_size=16).hexdigest()


def put(run: Path, url: str, progress: Progress | None = None) -> None:
    """Copy a run that was made at `place_of(url)` to the address, where it appears when it is whole.

    Raises OutputExists, MissingExtra or StoreSilent.
    """
    with _speaking(url):
        files, inside = _opened(url.rstrip("/"))
        there = _listed(files, inside)
        manifest = f"{inside}/{MANIFEST}"
        if there and manifest not in there:
            raise OutputExists(url)
        if there:
            files.rm_file(manifest)
        ours = [file for file in sorted(run.rglob("*")) if file.is_file() and _is_of_run(file, run)]
        last_is_manifest = sorted(ours, key=lambda file: file.name == MANIFEST)
        names = {f"{inside}/{file.relative_to(run).as_posix()}": file for file in last_is_manifest}
        for stale in there.keys() - names.keys() - {manifest}:
            files.rm_file(stale)
        for done, (name, file) in enumerate(names.items()):
            if progress:
                progress(f"writing {shown(file.name)}", done / len(names))
            files.put_file(str(file), name)
        files.invalidate_cache()
        known = {_below(name, inside): _token(info) for name, info in _listed(files, inside).items()}
    _remember(run, known)


def _is_of_run(file: Path, run: Path) -> bool:
    return file.relative_to(run).parts[0] != ANSWERS


def _opened(url: str) -> tuple[Any, str]:
    """The store that an address names, and what that calls the place."""
    protocol = url.partition("://")[0]
    try:
        core: Any = import_module("fsspec.core")
        return core.url_to_fs(url)
    except ImportError:
        raise MissingExtra(f"'{shown(url)}'", EXTRAS.get(protocol, "s3")) from None
    except ValueError as error:  # a protocol that nobody knows
        raise NothingThere(url) from error


def _is_pattern(inside: str) -> bool:
    return any(sign in inside for sign in "*?[")


def _listed(files: Any, inside: str) -> Mapping[str, Any]:
    """The files at a place, below it, or that match it, with what the store says of each."""
    if _is_pattern(inside):
        found: dict[str, Any] = files.glob(inside, detail=True)
        below = {
            name: info
            for folder, known in found.items()
            if known["type"] == "directory"
            for name, info in files.find(folder, detail=True).items()
        }
        found = {name: info for name, info in found.items() if info["type"] == "file"} | below
    else:
        found = files.find(inside, detail=True)
    return {name: info for name, info in sorted(found.items()) if not name.endswith("/")}


def _below(name: str, above: str) -> str:
    """The name of an object below a place, as a path that stays there. Raises StoreSilent."""
    # Of a pattern the part before its first sign is the same for all.
    fixed = above if not _is_pattern(above) else re.split(r"[*?\[]", above)[0].rpartition("/")[0]
    path = PurePosixPath(name.removeprefix(fixed).lstrip("/"))
    if ".." in path.parts or path.is_absolute() or not path.parts:
        raise StoreSilent(name, "the name of an object leads out of its folder")
    return str(path)


def _token(info: Mapping[str, Any]) -> str:
    """What is other when a file is."""
    return f"{info.get('size')}|{[str(info[name]) for name in CHANGES if name in info]}"


def _copy(
    files: Any,
    names: Mapping[str, str],
    listed: Mapping[str, Any],
    place: Path,
    progress: Progress | None,
) -> None:
    known = _remembered(place)
    kept = {below: _token(listed[name]) for name, below in names.items()}
    for below in known.keys() - kept.keys():
        with suppress(OSError):
            (place / below).unlink()
    wanted = {n: b for n, b in names.items() if known.get(b) != kept[b] or not (place / b).is_file()}
    for done, (name, below) in enumerate(wanted.items()):
        if progress:
            progress(f"fetching {shown(PurePosixPath(below).name)}", done / len(wanted))
        target = place / below
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.{os.getpid()}{UNFINISHED}")
        try:
            files.get_file(name, str(part))
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    if wanted or known != kept:
        _remember(place, kept)


def _memory(place: Path) -> Path:
    return place.with_name(f"{place.name}.json")


def _remembered(place: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(_memory(place).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError, ValueError):
        return {}


def _remember(place: Path, known: Mapping[str, str]) -> None:
    part = place.with_name(f"{place.name}.{os.getpid()}{UNFINISHED}")
    part.write_bytes(msgspec.json.encode(known))
    part.replace(_memory(place))


@contextmanager
def _speaking(url: str) -> Generator[None]:
    """Say in words what a store's own library raises, of whatever class that is."""
    try:
        yield
    except LostflopsError:
        raise
    except FileNotFoundError as error:
        raise NothingThere(url) from error
    except Exception as error:
        raise StoreSilent(url, " ".join(str(error).split()) or type(error).__name__) from error
