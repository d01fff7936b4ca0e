"""The server as those see it who should get nothing: over a socket, with bytes that no browser would send."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lostflops.errors import CannotServe
from lostflops.store.trace import Trace
from lostflops.viewer.server import app, runs
from lostflops.viewer.server.guard import Keys
from viewed import at_work, browsing, stored

KEYS = Keys(8000)
TITLE = "llama-of-mine"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs") / TITLE
    stored(place)
    return place


@pytest.fixture(scope="module")
def port(folder: Path) -> Iterator[int]:
    with at_work(KEYS, folder) as number:
        yield number


def said(port: int, *lines: str, session: bool = True) -> tuple[int, str]:
    """The status and all else of the answer to these lines, sent as they are."""
    cookie = (f"Cookie: {KEYS.cookie}={KEYS._session}",) if session else ()
    text = "\r\n".join((*lines, *cookie, "Connection: close", "", ""))
    with socket.create_connection(("127.0.0.1", port), timeout=10) as talking:
        talking.sendall(text.encode("latin-1"))
        answer = b""
        while part := talking.recv(1 << 16):
            answer += part
    head = answer.decode("latin-1")
    return int(head.split(" ", 2)[1]), head


HOST = "Host: localhost:8000"


def test_what_a_browser_sends_is_answered(port: int) -> None:
    assert said(port, "GET /api/runs HTTP/1.1", HOST)[0] == 200, "or the tests below prove nothing"


@pytest.mark.parametrize(
    "path",
    ["/../../../../etc/passwd", "/assets/../../../../../etc/passwd", "/assets/..%2f..%2f..%2fetc%2fpasswd",
     "/assets/%2e%2e/%2e%2e/etc/passwd", "/assets/..%252f..%252fetc%252fpasswd", "/assets/..\\..\\guard.py",
     "/assets/%c0%ae%c0%ae/guard.py", "/assets/viewer.js/../../server/guard.py", "//etc/passwd",
     "/run/../../../etc/passwd", "/data/x/../../../etc/passwd", "/api/run/%00", "/assets/viewer.js;x",
     "/assets/", "/assets"],
)  # fmt: skip
def test_no_path_as_it_is_sent_reaches_the_disk(port: int, path: str) -> None:
    status, answer = said(port, f"GET {path} HTTP/1.1", HOST)
    assert status in (303, 307, 400, 404), answer
    assert "root:" not in answer and "secrets" not in answer and "Traceback" not in answer


@pytest.mark.parametrize("table", ["..%2frun.json", "ranks%2f..%2f..%2frun", "%2e%2e%2frun", "RANKS", "run"])
def test_no_name_of_a_table_reaches_the_disk(port: int, folder: Path, table: str) -> None:
    known = browsing(folder)[1]
    known_here = f"/data/{known['id']}/{known['hash']}/table"
    while said(port, f"GET /api/run/{known['id']} HTTP/1.1", HOST)[0] == 202:
        pass
    assert said(port, f"GET {known_here}/ranks.arrow HTTP/1.1", HOST)[0] == 200
    assert said(port, f"GET {known_here}/{table}.arrow HTTP/1.1", HOST)[0] == 404


@pytest.mark.parametrize(
    "lines",
    [("Host: evil.example",), (HOST, "Host: evil.example"), ("Host: evil.example", HOST), (),
     ("Host: localhost@evil.example",), ("Host: localhost:8000, evil.example",), ("Host: localhost.",),
     ("Host: 2130706433",), ("Host: 0.0.0.0:8000",), ("X-Forwarded-Host: localhost", "Host: evil.example")],
)  # fmt: skip
def test_a_foreign_name_a_second_one_or_none_is_refused(port: int, lines: tuple[str, ...]) -> None:
    for version in ("1.1", "1.0"):
        status, answer = said(port, f"GET /api/runs HTTP/{version}", *lines)
        assert status == 400 and TITLE not in answer, answer
    absolute = said(port, "GET http://evil.example/api/runs HTTP/1.1", HOST)
    assert absolute[0] != 200


def test_another_user_of_this_machine_reaches_the_port_and_learns_nothing(port: int) -> None:
    for path in ("/", "/run/0", "/api/runs", "/assets/viewer.js", "/assets/none", "/nowhere"):
        status, answer = said(port, f"GET {path} HTTP/1.1", HOST, session=False)
        assert status == 401 and TITLE not in answer, "not even what there is"
    for cookie in ("", "x", "x; " * 500, KEYS._session[:-1], '"', f"{KEYS._session}\xff"):
        lines = (HOST, f"Cookie: {KEYS.cookie}={cookie}")
        assert said(port, "GET /api/runs HTTP/1.1", *lines, session=False)[0] == 401


def test_a_token_that_was_used_or_guessed_opens_nothing_also_not_of_two_at_once(port: int) -> None:
    token = KEYS.token()
    opened: list[int] = []

    def open_it() -> None:
        opened.append(said(port, f"GET /?token={token} HTTP/1.1", HOST, session=False)[0])

    both = [threading.Thread(target=open_it) for _ in range(4)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert sorted(opened) == [303, 403, 403, 403]
    for guess in ("", token[:-1], f"{token}%00", "%ff%fe", f"{token}&token={token}", "a" * 5000):
        status, answer = said(port, f"GET /?token={guess} HTTP/1.1", HOST, session=False)
        assert status == 403 and "set-cookie" not in answer.lower()


def test_looking_whether_an_address_answers_does_not_use_its_token_up(port: int) -> None:
    token = KEYS.token()
    assert said(port, f"HEAD /?token={token} HTTP/1.1", HOST, session=False)[0] == 401
    assert said(port, f"GET /api/runs?token={token} HTTP/1.1", HOST, session=False)[0] == 401
    assert said(port, f"GET /?token={token} HTTP/1.1", HOST, session=False)[0] == 303


def test_the_cookie_is_for_this_server_alone_and_out_of_reach_of_scripts(port: int) -> None:
    _, answer = said(port, f"GET /run/1?token={KEYS.token()} HTTP/1.1", HOST, session=False)
    cookie = next(line for line in answer.split("\r\n") if line.lower().startswith("set-cookie"))
    flags = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert flags == {"httponly", "path=/", "samesite=strict"}, "no Domain, and it ends with the browser"
    assert len(KEYS._session) >= 43 and "no-store" in answer
    assert Keys(8000)._session != KEYS._session, "each server has its own"


def test_bytes_that_are_no_request_are_answered_without_a_trace(port: int) -> None:
    for lines in (["\x16\x03\x01"], ["GET"], ["GET / HTTP/1.1", HOST, "a" * 70_000 + ": b"]):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as talking:
            talking.sendall("\r\n".join((*lines, "", "")).encode("latin-1"))
            talking.shutdown(socket.SHUT_WR)
            assert b"Traceback" not in talking.recv(1 << 16)
    assert said(port, "GET /api/runs HTTP/1.1", HOST)[0] == 200, "it still serves"


# What becomes of a run meanwhile.


def test_a_run_that_changes_while_it_is_asked_gives_no_answer_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(tmp_path / "run")
    browser, known = browsing(tmp_path / "run")
    data, ask = f"/data/{known['id']}/{known['hash']}", f"/api/run/{known['id']}"
    manifest = tmp_path / "run" / "run.json"
    question = app.overview.findings

    def slow(timeline: Any) -> Any:
        found = question(timeline)
        manifest.write_bytes(manifest.read_bytes() + b" ")
        return found

    monkeypatch.setattr(app.overview, "findings", slow)
    answer = browser.get(f"{ask}/findings")
    assert (answer.status_code, answer.json()["error"]["kind"]) == (409, "run-changed")
    assert browser.get(f"{data}/table/kernels.arrow").status_code == 409


def test_the_list_of_runs_says_which_one_is_gone(tmp_path: Path) -> None:
    for name in ("a", "b"):
        stored(tmp_path / name)
    browser, known = browsing(tmp_path)
    assert [run["error"] for run in browser.get("/api/runs").json()["runs"]] == [None, None]
    shutil.rmtree(tmp_path / known["title"])
    gone, other = browser.get("/api/runs").json()["runs"]
    assert gone["title"] == known["title"] and "is gone" in gone["error"] and other["error"] is None
    assert browser.get(f"/api/run/{known['id']}").status_code == 410


@pytest.mark.parametrize(
    "error",
    [PermissionError(13, "Permission denied"), CannotServe("This run is empty."), ValueError("of ours")],
)
def test_a_run_that_fails_to_open_says_why_and_the_server_goes_on(tmp_path: Path, error: Exception) -> None:
    def fails(paths: Any, tell: Any) -> Trace:
        raise error

    stored(tmp_path / "run")
    found = runs.found([str(tmp_path / "run")], fails)
    run = found.only
    assert run is not None
    with pytest.raises(runs.Refusal) as refused:
        run.build(patience=10)
    assert refused.value.kind == "cannot-read" and "This run" in refused.value.message
    assert "of ours" not in refused.value.message
    assert found.listed()["runs"][0]["error"] == refused.value.message
