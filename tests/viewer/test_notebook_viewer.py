"""The timeline in a notebook: its page in a frame, and a kernel that answers what the page asks."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import lostflops
from lostflops.cli import main
from lostflops.errors import MissingExtra
from lostflops.store.trace import Trace
from viewed import HOSTILE, planes, stored

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return stored(tmp_path_factory.mktemp("notebook") / "base")


@pytest.fixture
def widget(trace: Trace) -> Any:
    pytest.importorskip("anywidget")
    return lostflops.view(trace, height=500)


def asked(widget: Any, *urls: str) -> list[tuple[dict[str, Any], bytes]]:
    """What the widget sends when its page asks these, one after the other."""
    sent: list[tuple[dict[str, Any], bytes]] = []
    widget.send = lambda content, buffers: sent.append((content, bytes(buffers[0])))
    for number, url in enumerate(urls):
        widget._handle_custom_msg({"id": f"n{number}", "url": url}, [])
    return sent


def known(widget: Any) -> dict[str, Any]:
    run = widget.page.partition('data-run="')[2].partition('"')[0]
    while True:
        ((said, body),) = asked(widget, f"/api/run/{run}")
        if said["status"] != 202:
            assert said["status"] == 200
            return json.loads(body)
        time.sleep(0.01)


def test_a_question_is_answered_with_the_bytes_that_the_server_would_give(widget: Any) -> None:
    run = known(widget)
    data = f"/data/{run['id']}/{run['hash']}"
    (tile, found), (missing, body), (refused, _) = asked(
        widget, f"{data}/tile/0/0?lanes=0-1", "/nowhere", f"{data}/tile/0/0"
    )
    assert (tile["id"], tile["status"], tile["type"]) == ("n0", 200, "application/octet-stream")
    assert {lane for lane, _ in planes(found)} == {0, 1}
    assert missing["status"] == 404 and json.loads(body)["error"]["kind"] == "no-such-thing"
    assert refused["status"] == 400


def test_what_is_no_question_is_left_without_an_answer(widget: Any) -> None:
    sent: list[Any] = []
    widget.send = lambda *said: sent.append(said)
    for content in (None, "x", {}, {"id": 7, "url": "/"}, {"id": "a"}, {"id": "a", "url": "/" * 20_000}):
        widget._handle_custom_msg(content, [])
    assert sent == []


def test_in_a_kernel_the_answer_is_sent_by_the_thread_that_heard_the_question(widget: Any) -> None:
    heard: list[int] = []

    async def kernel() -> None:
        widget.send = lambda content, buffers: heard.append(threading.get_ident())
        widget._handle_custom_msg({"id": "a", "url": "/api/runs"}, [])
        assert heard == [], "other work of the loop goes on meanwhile"
        for _ in range(500):
            if heard:
                break
            await asyncio.sleep(0.01)

    asyncio.run(kernel())
    assert heard == [threading.get_ident()]


def test_the_page_of_a_run_with_hostile_names_holds_them_as_text(tmp_path: Path) -> None:
    pytest.importorskip("anywidget")
    shown = lostflops.view(stored(tmp_path / "<b>run"), at='"><script>alert(1)</script>')
    assert "<script>alert" not in shown.page and "<b>run" not in shown.page
    assert shown.page.count("<script>") == 1


class Bridge:
    """The widget's side of a notebook that has nothing else: its module in a page, and its messages."""

    def __init__(self, widget: Any) -> None:
        module, page = widget._esm, widget.page

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body, kind = {
                    "/": (HOLDER, "text/html; charset=utf-8"),
                    "/widget.js": (str(module), "text/javascript"),
                    "/page": (page, "text/plain; charset=utf-8"),
                }.get(self.path, ("", "text/plain"))
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *said: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.at = f"http://127.0.0.1:{self.server.server_port}/"


HOLDER = """<!doctype html><html lang="en"><title>notebook</title><body><div id="out"></div>
<script type="module">
import widget from "/widget.js";
const page = await (await fetch("/page")).text();
const heard = new Set();
window.stop = widget.render({ el: document.getElementById("out"), model: {
  get: (name) => ({ page, title: "base", height: 500 })[name],
  on: (_, one) => heard.add(one),
  off: (_, one) => heard.delete(one),
  async send({ id, url }) {
    const { said, body } = await window.kernel(id, url);
    const bytes = Uint8Array.from(atob(body), (letter) => letter.charCodeAt(0));
    for (const one of heard) one(said, [new DataView(bytes.buffer)]);
  },
} });
</script></body></html>"""


def test_the_frame_draws_the_run_from_what_the_kernel_answers(widget: Any) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    import base64

    urls: list[str] = []
    said: list[str] = []

    def kernel(number: str, url: str) -> dict[str, Any]:
        urls.append(url)
        # Playwright's loop stands still while this runs, so the answer cannot come over it.
        status, kind, body = asyncio.run_coroutine_threadsafe(
            widget._answering._answer(url), widget._answering._loop
        ).result(10)
        head = {"id": number, "status": status, "type": kind}
        return {"said": head, "body": base64.b64encode(body).decode()}

    bridge = Bridge(widget)
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = opened.new_page(viewport={"width": 1200, "height": 600})
        tab.set_default_timeout(60_000)
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on(
            "console", lambda line: line.type == "error" and "404" not in line.text and said.append(line.text)
        )
        tab.expose_function("kernel", kernel)
        tab.goto(bridge.at)
        frame = tab.frame_locator("iframe")
        frame.locator(".verdict").wait_for()
        frame.locator(".timeline canvas[data-complete=true]").wait_for()
        frame.locator(".timeline canvas").press("w")
        frame.locator("body[data-settled=true]").wait_for(state="attached")
        frame.locator(".search input").fill("img")
        frame.locator(".search .count", has_text="4").wait_for()
        assert frame.locator("img").count() == 0
        frame.get_by_role("tab", name="Search").click()
        assert HOSTILE[:8] in frame.locator(".hits").inner_text()
        assert tab.get_by_title("Timeline of base").get_attribute("sandbox") == "allow-scripts"
        tab.evaluate("window.stop()")
        opened.close()
    bridge.server.shutdown()
    assert said == []
    assert any("/tile/" in url for url in urls) and any("/findings" in url for url in urls)


def test_without_the_package_it_says_what_to_install(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "lostflops.viewer.notebook", raising=False)
    with pytest.raises(MissingExtra, match=r"lostflops\[notebook\]"):
        lostflops.view(trace)


def test_the_command_writes_a_notebook_and_never_over_another(
    trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["view", str(trace.path), "--notebook"]) == 0
    assert "jupyter lab view.ipynb" in capsys.readouterr().out
    book = json.loads((tmp_path / "view.ipynb").read_text())
    assert (book["nbformat"], book["metadata"]["kernelspec"]["name"]) == (4, "python3")
    # What the format wants of each cell, by its schema.
    wanted = {"id", "cell_type", "metadata", "source", "outputs", "execution_count"}
    assert all(set(cell) == wanted and cell["cell_type"] == "code" for cell in book["cells"])
    sources = [cell["source"] for cell in book["cells"]]
    assert sources[1] == f"run = lostflops.open({str(trace.path)!r})\nlostflops.view(run)"
    for source in sources:
        compile(source, "cell", "exec")
    assert main(["view", str(trace.path), "--notebook"]) != 0
    assert "view.ipynb" in capsys.readouterr().err
