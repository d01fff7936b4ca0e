"""The collector keeps what arrives whole, and nothing of what does not."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lostflops.capture.kubernetes import collector
from lostflops.capture.kubernetes.collector import ResultsFolder, writing
from lostflops.capture.kubernetes.tls import Server

LIMIT = 100_000


class Running:
    """A collector without TLS, and what is in its folder."""

    def __init__(self, folder: Path) -> None:
        (folder / "token").write_text("t")
        self.store = ResultsFolder(folder / "kept", LIMIT)
        self.server = Server(("127.0.0.1", 0), writing(self.store, folder / "token"), None)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def put(self, path: str, body: bytes, offset: int | None = None) -> int:
        connection = http.client.HTTPConnection(*self.server.server_address[:2], timeout=20)
        headers = {"Authorization": "Bearer t"} | (
            {} if offset is None else {"Lostflops-Offset": str(offset)}
        )
        connection.request("PUT", path, body, headers)
        status = connection.getresponse().status
        connection.close()
        return status

    def left(self) -> dict[str, bytes]:
        folder = self.store.folder
        return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path)
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_what_is_appended_stands_in_order_and_a_wrong_offset_makes_nothing(running: Running) -> None:
    assert running.put("/run/log", b"one", 0) == 200
    assert running.put("/run/log", b"two", 3) == 200
    assert running.put("/run/log", b"lost", 3) == 409
    assert running.put("/else/log", b"lost", 7) == 409
    assert running.left() == {"run/log": b"onetwo"}
    assert running.store.used == 6
    assert not (running.store.folder / "else").exists()


def test_an_append_that_fails_leaves_nothing_behind(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert running.put("/run/log", b"one", 0) == 200

    def full(source: Any, target: Any, length: int) -> None:
        target.write(source.read(2))
        target.flush()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(collector.shutil, "copyfileobj", full)
    assert running.put("/run/log", b"twothree", 3) == 507
    assert running.left() == {"run/log": b"one"}
    assert running.store.used == 3


def test_a_body_that_ends_early_leaves_nothing_behind(running: Running) -> None:
    with socket.create_connection(running.server.server_address[:2], timeout=20) as connection:
        lines = "PUT /a/b/log HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\nContent-Length: 5000"
        connection.sendall(f"{lines}\r\nLostflops-Offset: 0\r\n\r\nfirst".encode())
        connection.shutdown(socket.SHUT_WR)
        assert b" 400 " in connection.recv(1000)
    for _ in range(100):
        if not running.store.used and not list(running.store.folder.rglob("*")):
            break
        time.sleep(0.05)
    assert running.left() == {}
    assert running.store.used == 0


def test_what_does_not_fit_is_refused_before_it_is_read(running: Running) -> None:
    assert running.put("/run/log", b"x" * (LIMIT - 10)) == 200
    assert running.put("/run/more", b"x" * 20) == 507
    assert running.store.used == LIMIT - 10


def test_a_collector_that_starts_again_has_the_room_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 100 bytes 60 are there, and the disk has 45 more: the limit is still 100. With 30 more it is 90."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log").write_bytes(b"x" * 60)
    (tmp_path / "run" / ".log.17").write_bytes(b"half")
    for free, more in ((45, 40), (30, 30)):
        monkeypatch.setattr(collector.shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        store = collector.opened(tmp_path, 100)
        assert store.used == 60
        assert store.take(more) and not store.take(1)
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["log"]


def test_of_two_that_send_the_same_file_the_first_to_end_is_kept(running: Running) -> None:
    with socket.create_connection(running.server.server_address[:2], timeout=20) as connection:
        lines = "PUT /run/trace HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\nContent-Length: 4"
        connection.sendall(f"{lines}\r\n\r\nla".encode())
        for _ in range(100):
            if running.store.used:
                break
            time.sleep(0.05)
        assert running.put("/run/trace", b"first") == 200
        connection.sendall(b"te")
        assert b" 409 " in connection.recv(1000)
    assert running.left() == {"run/trace": b"first"}
    assert running.store.used == 5
