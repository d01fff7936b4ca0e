"""Whatever holds a recording - a file, an export, a folder of both - cleaned or looked through."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from lostflops.errors import (
    BadOption,
    CannotClean,
    CannotWrite,
    LostflopsError,
    NothingThere,
    NoTraces,
    OutputExists,
    Unreadable,
    shown,
)
from lostflops.privacy import database, text
from lostflops.privacy.apart import Apart
from lostflops.privacy.cleaner import KINDS, Cleaner
from lostflops.privacy.forms import UNKNOWN, Form, form_of, is_export, machine_named

NOT_OPENED = Form(why_not=UNKNOWN)


@dataclass
class Looked:
    """What one file holds: how often each kind was found, and how many different ones."""

    name: str
    form: Form = NOT_OPENED
    found: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    values: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    problem: str = ""

    @property
    def why_not(self) -> str:
        """Why it cannot be looked into, nothing if it can."""
        return self.problem or self.form.why_not


def inspected(path: Path, cleaner: Cleaner) -> Iterator[Looked]:
    """What each file at `path` holds; of a folder, also which are damaged.

    Raises NothingThere, or what is wrong with the file that was named.
    """
    with Apart() as apart:
        for file, looked in _learned(path, cleaner, apart):
            if looked.form.ours:
                continue
            for counter in cleaner.found.values():
                counter.clear()
            cleaner.text(file.name.encode(errors="surrogateescape"))
            if not looked.why_not:
                with _told(looked, file != path):
                    _clean(file, looked.form, None, cleaner, apart)
            looked.found = {k: (c.total(), len(c)) for k, c in cleaner.found.items() if c}
            looked.values = {
                k: sorted(v.decode(errors="replace") for v in c) for k, c in cleaner.found.items() if c
            }
            yield looked


def scrubbed(path: Path, output: Path, cleaner: Cleaner) -> list[Looked]:
    """Write a clean copy of a file or a folder to `output`, which appears when it is whole.

    What cannot be cleaned is left out and told. Raises BadOption, OutputExists, CannotWrite, NothingThere, or
    what is wrong with a file.
    """
    _refuse(path, output)
    with Apart() as apart:
        return _scrubbed(path, output, cleaner, apart)


def _scrubbed(path: Path, output: Path, cleaner: Cleaner, apart: Apart) -> list[Looked]:
    files = _learned(path, cleaner, apart)
    try:
        beside = Path(tempfile.mkdtemp(prefix=f".{output.name[:100]}.", suffix=".tmp", dir=output.parent))
    except OSError as error:
        raise CannotWrite(output, error) from error
    try:
        left_out: list[Looked] = []
        for file, looked in files:
            if looked.why_not and file == path:
                raise CannotClean(path, looked.why_not)
            if looked.why_not:
                left_out.append(looked)
                continue
            target = (
                beside / "whole"
                if file == path
                else _place(beside / "whole", file.relative_to(path), cleaner)
            )
            if looked.form.storage == "export":
                target.mkdir(parents=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
            with _told(looked, file != path):
                _clean(file, looked.form, target, cleaner, apart, named=output if file == path else file)
            if looked.problem:
                left_out.append(looked)
                shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
        if not any(p.is_file() for p in (beside, *beside.rglob("*"))):
            if left_out and all(looked.problem for looked in left_out):
                raise CannotClean(path, left_out[0].problem)
            raise NoTraces(path, ("something that can be cleaned",))
        (beside / "whole").replace(output)
        return left_out
    except OSError as error:
        raise CannotWrite(output, error) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def kinds(given: str) -> Collection[str]:
    """The kinds of 'hosts,paths'. Raises BadOption."""
    asked = [word.strip() for word in given.split(",") if word.strip()]
    for word in asked:
        if word not in KINDS:
            raise BadOption(
                f"'{shown(word)}' is not a kind that `scrub` removes.", f"choose from {', '.join(KINDS)}."
            )
    return asked


def _listed(path: Path) -> list[Path]:
    """The files and exports at a path. Links are not followed: they may lead out of it."""
    if not path.exists():
        raise NothingThere(path)
    if path.is_file() or is_export(path):
        return [path]
    found: list[Path] = []
    try:
        for folder, inside, files in os.walk(path, onerror=_refused):
            exports = [name for name in inside if is_export(Path(folder, name))]
            inside[:] = sorted(name for name in inside if name not in exports)
            here = [Path(folder, name) for name in (*exports, *files)]
            found += [p for p in here if not p.is_symlink() and (p.is_file() or p.is_dir())]
    except OSError as error:
        raise Unreadable(Path(os.fsdecode(error.filename or path)), error) from error
    if not found:
        raise NoTraces(path, ("any file",))
    return sorted(found)


def _refused(error: OSError) -> None:
    """A folder that cannot be listed may hold anything: it is not passed over."""
    raise error


@contextmanager
def _told(looked: Looked, tell: bool) -> Generator[None]:
    """Note what is wrong with a file that was found in a folder; raise it for one that was named."""
    try:
        yield
    except LostflopsError as error:
        if not tell or isinstance(error, CannotWrite):
            raise
        looked.problem = error.message


def _learned(path: Path, cleaner: Cleaner, apart: Apart) -> list[tuple[Path, Looked]]:
    """The files at a path, each looked through for names of machines."""
    found: list[tuple[Path, Looked]] = []
    for file in _listed(path):
        looked = Looked(_name(file, path))
        with _told(looked, file != path):
            looked.form = form_of(file)
            _learn(file, looked.form, cleaner, apart)
        found.append((file, looked))
    return found


def _refuse(path: Path, output: Path) -> None:
    given, made = (Path(os.path.realpath(p)) for p in (path, output))  # links may lead back to themselves
    if made == given or given in made.parents or made in given.parents:
        raise BadOption(
            f"'{shown(output)}' overlaps the input: a recording is never cleaned in place.",
            "choose another place for the copy.",
        )
    if output.exists() and not (output.is_file() and path.is_file()):
        raise OutputExists(output)
    if not output.parent.is_dir():
        raise CannotWrite(output, FileNotFoundError(0, "its folder does not exist"))


def _learn(path: Path, form: Form, cleaner: Cleaner, apart: Apart) -> None:
    if host := machine_named(path.name):
        cleaner.host(host.encode())
    match form.storage:
        case "text":
            text.learn(path, cleaner)
        case "database":
            database.learn(path, form.settings, cleaner)
        case "export":
            apart.ask("learn", path, None, form.settings, cleaner)
        case _:
            pass


def _clean(
    path: Path, form: Form, target: Path | None, cleaner: Cleaner, apart: Apart, named: Path | None = None
) -> None:
    match form.storage:
        case "text" if target is None:
            text.clean(path, None, cleaner)
        case "text":
            assert target is not None
            text.packed(path, target, cleaner, zipped=".gz" in (named or path).suffixes)
        case "database":
            database.clean(path, target, form.settings, cleaner)
        case "columns":
            apart.ask("clean", path, target, form.settings, cleaner)
        case "export":
            apart.ask("clean_export", path, target, form.settings, cleaner)
        case _:
            pass


def _place(top: Path, inside: Path, cleaner: Cleaner) -> Path:
    """Where a file goes: machines and people stand in names of files and folders too."""
    parts = [
        cleaner.text(part.encode(errors="surrogateescape")).decode(errors="replace") for part in inside.parts
    ]
    place = top.joinpath(*(part.replace("/", "-") for part in parts))
    number = 1
    while place.exists():
        number += 1
        with suppress(ValueError):
            place = place.with_name(f"{number}-{parts[-1]}")
    return place


def _name(file: Path, path: Path) -> str:
    return path.name if file == path else str(file.relative_to(path))
