"""The timeline inside a notebook: a widget whose questions this process answers, without a server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import anywidget
import traitlets
from starlette.types import ASGIApp

from lostflops.errors import shown
from lostflops.store.trace import Trace

from .server import app, runs

HEIGHT = 640  # pixels
LOWEST, HIGHEST = 200, 4000
LONGEST = 16_000  # characters of a question
PAGE = """<!doctype html>
<html lang="en" data-answers="parent">
<head>
<meta charset="utf-8">
<meta name="color-scheme" content="light dark">
<title>lostflops</title>
<style>{style}</style>
</head>
<body>
<div id="app" data-page="run" data-run="{run}" data-state="{state}"></div>
<script>{script}</script>
</body>
</html>
"""


class TimelineWidget(anywidget.AnyWidget):
    """The timeline of a run. What its page asks comes as messages; each is answered once, by its `id`."""

    _esm = (files("lostflops.viewer") / "assets" / "widget.js").read_text(encoding="utf-8")
    page = traitlets.Unicode().tag(sync=True)
    title = traitlets.Unicode().tag(sync=True)
    height = traitlets.Int(HEIGHT, min=LOWEST, max=HIGHEST).tag(sync=True)

    def __init__(self, trace: Trace, height: int = HEIGHT, at: str = "") -> None:
        title = shown(Path(trace.given[0] if trace.given else trace.path).resolve().name)
        run = runs.ServedRun(title, str(trace.path.absolute()), lambda tell: trace)
        assets = files("lostflops.viewer") / "assets"
        page = PAGE.format(
            style=(assets / "viewer.css").read_text(encoding="utf-8"),
            script=(assets / "viewer.js").read_text(encoding="utf-8"),
            run=run.id,
            state=escape(at, quote=True),
        )
        super().__init__(page=page, title=title, height=height)
        self._answering = Answering(app.unguarded(runs.ServedRuns([run])))
        widget: Any = self  # whose own methods have no types
        widget.on_msg(self._asked)

    def _asked(self, widget: Any, content: Any, buffers: Any) -> None:
        number, url = (content.get("id"), content.get("url")) if hasattr(content, "get") else (None, None)
        if not isinstance(number, str) or not isinstance(url, str) or len(url) > LONGEST:
            return

        def tell(status: int, kind: str, body: bytes) -> None:
            widget.send({"id": number, "status": status, "type": kind}, [body])

        self._answering.ask(url, tell)


Tell = Callable[[int, str, bytes], None]


class Answering:
    """Asks an application in a thread of its own, and tells its answers where the question came from."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def ask(self, url: str, tell: Tell) -> None:
        """Answer a question: at once where no loop runs here, else in that loop when the answer is there."""
        answer = asyncio.run_coroutine_threadsafe(self._answer(url), self._loop)
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            tell(*answer.result())
            return
        answer.add_done_callback(lambda done: here.call_soon_threadsafe(lambda: tell(*done.result())))

    async def _answer(self, url: str) -> tuple[int, str, bytes]:
        asked = urlsplit(url)
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET",
            "scheme": "http", "path": unquote(asked.path), "raw_path": asked.path.encode(),
            "query_string": asked.query.encode(), "root_path": "", "headers": [(b"host", b"localhost")],
            "client": None, "server": ("localhost", 80),
        }  # fmt: skip
        status, kind, body = 500, "", bytearray()

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            nonlocal status, kind
            if message["type"] == "http.response.start":
                status = message["status"]
                kind = dict(message["headers"]).get(b"content-type", b"").decode("latin-1")
            elif message["type"] == "http.response.body":
                body.extend(message.get("body", b""))

        try:
            await self._application(scope, receive, send)
        except Exception:  # the application has answered 500 before it raised
            status = 500
        return status, kind, bytes(body)
