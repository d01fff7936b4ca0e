"""Clients of the metrics' address: none takes the job's threads, and what they do is not its terminal's."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from lostflops.machine.monitor import openmetrics

TEXT = "x 1\n# EOF\n"


def answer(address: str, port: int, request: bytes = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n") -> bytes:
    with socket.create_connection((address, port), 10) as client:
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


def test_an_address_is_shown_as_a_browser_takes_it() -> None:
    assert openmetrics.url("::1", 9400) == "http://[::1]:9400/metrics"
    assert openmetrics.url("127.0.0.1", 9400) == "http://127.0.0.1:9400/metrics"


def test_an_address_of_version_6_answers() -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    assert answer("::1", openmetrics.serve("::1", 0, lambda: TEXT)).endswith(TEXT.encode())


def test_clients_that_send_a_byte_now_and_then_take_few_threads_and_no_scraper_waits() -> None:
    port = openmetrics.serve("127.0.0.1", 0, lambda: TEXT)
    before = threading.active_count()
    slow = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(300)]
    for client in slow:
        client.sendall(b"GET /m")
    asked = time.monotonic()
    assert answer("127.0.0.1", port).endswith(TEXT.encode())
    assert time.monotonic() - asked < 5
    until = time.monotonic() + 10
    while threading.active_count() - before > openmetrics.AT_ONCE and time.monotonic() < until:
        time.sleep(0.05)
    assert threading.active_count() - before <= openmetrics.AT_ONCE
    for client in slow:
        client.close()


def test_each_connection_has_a_deadline_however_it_drips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmetrics, "PATIENCE", 1.0)
    port = openmetrics.serve("127.0.0.1", 0, lambda: TEXT)
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        client.settimeout(0.1)
        began = time.monotonic()
        ended = False
        while not ended and time.monotonic() - began < 10:
            try:
                client.sendall(b"G")
                ended = client.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                ended = True
        assert ended


def test_what_clients_do_is_not_shown_in_the_jobs_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    port = openmetrics.serve("127.0.0.1", 0, lambda: TEXT * 100_000)
    for request in (b"\xff\xfe\r\n\r\n", b"GET " + b"a" * 100_000, b"GET /metrics HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port), 10) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.sendall(request)
    assert answer("127.0.0.1", port).endswith(TEXT.encode())
    time.sleep(0.5)
    assert capfd.readouterr() == ("", "")
