"""Keeps what pods have recorded until somebody fetches it: a folder behind two ports.

Pods write, over TLS and with the token of their namespace; what is there cannot be changed, only be added to.
Reading is answered on loopback alone, where `kubectl port-forward` comes out. Standard library only: it runs
in a pod without lostflops installed.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import shutil
import sys
import threading
from argparse import ArgumentParser
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote

from lostflops.capture.kubernetes.tls import Handler, Server

PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,200}")
DEPTH = 12
AT_ONCE = 1 << 20


def opened(folder: Path, limit: int) -> ResultsFolder:
    """The folder as a restart finds it, without the halves of files that were being written."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.rglob(".*"):
        with suppress(OSError):
            left.unlink()
    store = ResultsFolder(folder, limit)
    # What is there already does not take from what is free.
    store.limit = min(limit, store.used + shutil.disk_usage(folder).free)
    return store


class ResultsFolder:
    """The folder. Its size is counted once, then kept."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self.lock = threading.Lock()
        self.used = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())

    def place(self, path: str) -> Path | None:
        """The file of a request's path; None for a path that leads elsewhere."""
        parts = unquote(path).lstrip("/").split("/")
        if len(parts) > DEPTH or not all(PART.fullmatch(part) for part in parts):
            return None
        # A link could lead out of the folder: none is followed.
        whole = self.folder.resolve().joinpath(*parts)
        return self.folder.joinpath(*parts) if whole.resolve() == whole else None

    def take(self, size: int) -> bool:
        with self.lock:
            if self.used + size > self.limit:
                return False
            self.used += size
            return True

    def give_back(self, size: int) -> None:
        with self.lock:
            self.used -= size

    def listing(self) -> list[dict[str, object]]:
        return [
            {"path": str(file.relative_to(self.folder)), "size": file.stat().st_size}
            for file in sorted(self.folder.rglob("*"))
            if file.is_file() and not file.is_symlink() and not file.name.startswith(".")
        ]


def writing(store: ResultsFolder, token: Path) -> type[Handler]:
    """Answers pods."""

    class Writing(Handler):
        def do_HEAD(self) -> None:  # noqa: N802
            place = self._place()
            if place is None:
                return
            size = place.stat().st_size if place.is_file() else 0
            self.answer(200 if place.is_file() else 404, Lostflops_Size=str(size))

        def do_PUT(self) -> None:  # noqa: N802
            place = self._place()
            length = self.length(store.limit) if place is not None else None
            if place is None or length is None:
                return
            offset = self.headers.get("Lostflops-Offset")
            if offset is None and place.exists():
                self.answer(409, b"it is there already\n")
                return
            if not store.take(length):
                self.answer(507, b"the collector is full\n")
                return
            status, size = 400, 0
            try:
                with self._spooled(place, length) as spool:
                    if spool is not None:
                        status, size = self._kept(place, spool, offset)
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                store.give_back(length)
                self.answer(400, b"a file cannot be a folder, too\n")
                return
            except OSError as error:
                store.give_back(length)
                self.answer(507, f"{error.strerror}\n".encode())
                return
            if status != 200:
                store.give_back(length)
            if status == 400:
                self.answer(400, b"the body ended early\n")
            else:
                self.answer(status, Lostflops_Size=str(size))

        @contextmanager
        def _spooled(self, place: Path, length: int) -> Generator[Path | None]:
            """The body in a file beside its place, None where it ended early; nothing of it stays behind."""
            made = [folder for folder in place.parents if not folder.exists()]
            place.parent.mkdir(parents=True, exist_ok=True)
            beside = place.with_name(f".{place.name[:200]}.{threading.get_ident()}")
            try:
                with beside.open("wb") as file:
                    left = length
                    while left and (chunk := self.rfile.read(min(left, AT_ONCE))):
                        file.write(chunk)
                        left -= len(chunk)
                yield None if left else beside
            finally:
                beside.unlink(missing_ok=True)
                for folder in made:
                    with suppress(OSError):
                        folder.rmdir()  # which refuses what is not empty

        def _kept(self, place: Path, spool: Path, offset: str | None) -> tuple[int, int]:
            """Put the body in its place, or behind what the pod thinks is there; what to answer."""
            with store.lock:
                had = place.stat().st_size if place.is_file() else 0
                if offset not in (None, str(had)) or (offset is None and place.exists()):
                    return 409, had
                if offset is None or not had:
                    spool.replace(place)
                else:
                    self._copied(place, spool, had)
                return 200, place.stat().st_size

        def _copied(self, place: Path, spool: Path, had: int) -> None:
            try:
                with place.open("ab") as file, spool.open("rb") as source:
                    shutil.copyfileobj(source, file, AT_ONCE)
            except OSError:
                os.truncate(place, had)
                raise

        def _place(self) -> Path | None:
            given = self.headers.get("Authorization", "")
            # Read each time: like the certificate, it may be renewed.
            wanted = f"Bearer {token.read_text().strip()}"
            if not hmac.compare_digest(given.encode(), wanted.encode()):
                self.answer(401, b"the token is missing or another\n")
                return None
            place = store.place(self.path)
            if place is None:
                self.answer(400, b"the path is not one of a recording\n")
            return place

    return Writing


def reading(store: ResultsFolder) -> type[Handler]:
    """Answers `lostflops launch k8s fetch`."""

    class Reading(Handler):
        def do_GET(self) -> None:  # noqa: N802
            if self.path == "/":
                self.answer(200, json.dumps(store.listing()).encode(), "application/json")
                return
            place = store.place(self.path)
            if place is None or not place.is_file():
                self.answer(404)
                return
            with place.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                self.send_response(200)
                self.send_header("Content-Length", str(size))
                self.end_headers()
                left = size  # it may grow meanwhile
                while left and (chunk := file.read(min(left, AT_ONCE))):
                    self.wfile.write(chunk)
                    left -= len(chunk)

    return Reading


def main(words: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(prog="collector")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--certificate", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8443)
    parser.add_argument("--read-port", type=int, default=8080)
    parser.add_argument("--limit", type=int, required=True)
    given = parser.parse_args(words)
    store = opened(given.folder, given.limit)
    writer = Server((given.host, given.port), writing(store, given.certificate / "token"), given.certificate)
    reader = Server(("127.0.0.1", given.read_port), reading(store), None)
    threading.Thread(target=reader.serve_forever, daemon=True).start()
    print(f"collecting in {given.folder}", file=sys.stderr, flush=True)
    writer.serve_forever()


if __name__ == "__main__":
    main()
