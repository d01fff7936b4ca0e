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
from lostflops.capture.kubernetes.collector import ResultsFolder, reading, writing
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


def asked(server: Server, request: bytes) -> bytes:
    """All that a server answers before it closes."""
    with socket.create_connection(server.server_address[:2], timeout=3) as connection:
        connection.sendall(request)
        said = b""
        try:
            while more := connection.recv(1 << 16):
                said += more
        except TimeoutError:
            pass
        return said


HEAD = b" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\n"
HIDDEN = b"PUT /run/hidden" + HEAD + b"Content-Length: 1\r\n\r\nx"


@pytest.mark.parametrize(
    "first",
    [
        b"PUT /run/log" + HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"PUT /run/log" + HEAD + b"Content-Length: 1\r\nContent-Length: %d\r\n\r\nx" % (len(HIDDEN) + 1),
        b"GET /healthz" + HEAD + b"Content-Length: %d\r\n\r\n" % len(HIDDEN),
        b"HEAD /run/log" + HEAD + b"Content-Length: %d\r\n\r\n" % len(HIDDEN),
        b"DELETE /run/log" + HEAD + b"Content-Length: %d\r\n\r\n" % len(HIDDEN),
    ],
    ids=["chunked, too", "two lengths", "GET", "HEAD", "another method"],
)
def test_no_request_hides_in_the_body_of_another(running: Running, first: bytes) -> None:
    asked(running.server, first + HIDDEN)
    assert "run/hidden" not in running.left()


def test_requests_may_follow_each_other_on_a_connection(running: Running) -> None:
    one = b"PUT /run/%d" + HEAD + b"Content-Length: 1\r\n%s\r\nx"
    said = asked(running.server, one % (1, b"") + one % (2, b"Connection: close\r\n"))
    assert said.count(b" 200 ") == 2
    assert running.left() == {"run/1": b"x", "run/2": b"x"}


def test_a_request_line_that_is_too_long_is_answered(running: Running) -> None:
    assert b" 414 " in asked(running.server, b"PUT /" + b"a" * 70_000 + HEAD + b"\r\n")


def test_a_file_is_no_folder_and_a_folder_no_file(running: Running) -> None:
    assert running.put("/run/log", b"x") == 200
    assert running.put("/run/log/more", b"x") == 400
    assert running.put("/run", b"x", 0) == 400
    assert running.left() == {"run/log": b"x"}
    assert running.store.used == 1


def test_no_link_leads_out_of_the_folder(running: Running, tmp_path: Path) -> None:
    folder = running.store.folder
    folder.mkdir(exist_ok=True)
    (folder / "link").symlink_to(tmp_path / "token")
    (folder / "out").symlink_to(tmp_path)
    reader = Server(("127.0.0.1", 0), reading(running.store), None)
    threading.Thread(target=reader.serve_forever, args=(0.05,), daemon=True).start()
    for path in (b"/link", b"/out/token"):
        assert b" 404 " in asked(reader, b"GET " + path + b" HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert running.put("/out/new", b"x") == 400
    assert not (tmp_path / "new").exists()
    assert running.store.listing() == []
    reader.shutdown()
    reader.server_close()
