"""The application: which URL is answered by what. `docs/viewer-protocol.md` describes them."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

import anyio.to_thread
import msgspec
import numpy as np
import polars as pl
from polars.exceptions import PolarsError
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lostflops.errors import LostflopsError
from lostflops.intervals import Int
from lostflops.tables import TABLES

from .. import critical, details, overview, statistics, steps, tiles
from ..timeline import RunTimeline
from . import asked
from .guard import Guard, Keys, wants_compression
from .refusal import Refusal, answered, bad_request, told
from .runs import ServedRun, ServedRuns

THREADS = 4  # that compute at once, each with at most some hundred MB
FOREVER = {"Cache-Control": "private, immutable, max-age=31536000"}
MOST_EVENTS, MOST_HITS, MOST_COUNTERS, MOST_COLLECTIVES, MOST_ROWS = 200_000, 2000, 256, 1000, 10_000_000
MOST_STRETCHES = 100_000
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>lostflops</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/assets/viewer.css">
</head>
<body>
<div id="app" data-page="{page}"{run}></div>
<noscript>This page draws with JavaScript, which is switched off here.</noscript>
<script src="/assets/viewer.js" defer></script>
</body>
</html>
"""
KINDS = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
}


def application(runs: ServedRuns, keys: Keys, names: frozenset[str], any_address: bool) -> ASGIApp:
    """The whole of it, guarded. `names` are those of this machine under which it answers."""
    return Guard(_Compressed(unguarded(runs)), keys, names, any_address)


def unguarded(runs: ServedRuns) -> Starlette:
    """What answers, for whoever needs no session: a notebook asks its own process."""
    server = _Server(runs)
    run, data = "/api/run/{run}", "/data/{run}/{content}"
    routes = {
        "/": server.index,
        "/run/{run}": server.page,
        "/assets/{name}": server.asset,
        "/api/runs": server.listed,
        "/api/compare": server.compared,
        run: server.described,
        f"{run}/findings": server.findings,
        f"{run}/sort": server.sorting,
        f"{run}/range": server.statistics,
        f"{run}/search": server.search,
        f"{run}/collectives": server.collectives,
        f"{run}/critical": server.critical,
        f"{run}/at": server.at,
        f"{run}/event/{{lane}}/{{row}}": server.event,
        f"{run}/arrows/{{lane}}/{{row}}": server.arrows,
        f"{data}/tile/{{level}}/{{index}}": server.tile,
        f"{data}/density/{{level}}/{{index}}": server.density,
        f"{data}/counter/{{level}}/{{index}}": server.counter,
        f"{data}/events": server.events,
        f"{data}/table/{{table}}.arrow": server.table,
    }
    return Starlette(
        routes=[Route(path, endpoint) for path, endpoint in routes.items()],
        exception_handlers={
            Refusal: _refused,
            LostflopsError: _failed,
            PolarsError: _failed,
            OSError: _failed,
            HTTPException: _unknown,
            Exception: _failed,
        },
        lifespan=_few_threads,
    )


@asynccontextmanager
async def _few_threads(app: Starlette) -> AsyncGenerator[None]:
    anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
    yield


class _Compressed:
    """Compresses where the request asks for it."""

    def __init__(self, app: ASGIApp) -> None:
        self._plain = app
        self._packed = GZipMiddleware(app, compresslevel=1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asks = scope["type"] == "http" and wants_compression(Headers(scope=scope))
        await (self._packed if asks else self._plain)(scope, receive, send)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return answered(error)


def _failed(request: Request, error: Exception) -> Response:
    return answered(told(error))


def _unknown(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return answered(Refusal(error.status_code, "no-such-thing", "There is nothing at that address."))


def _json(content: Any) -> Response:
    return Response(
        msgspec.json.encode(content), media_type="application/json", headers={"Cache-Control": "no-store"}
    )


def _bytes(content: bytes) -> Response:
    return Response(content, media_type="application/octet-stream", headers=FOREVER)


class _Server:
    """The endpoints. Those that compute are plain functions: they run in a few threads."""

    def __init__(self, runs: ServedRuns) -> None:
        self._runs = runs
        # What a URL may name of our own files is settled here: no part of a URL becomes a path.
        folder = files("lostflops.viewer") / "assets"
        self._assets = {
            file.name: (file.read_bytes(), KINDS[ending])
            for file in folder.iterdir()
            for ending in [file.name[file.name.rfind(".") :]]
            if ending in KINDS
        }

    def _run(self, request: Request) -> ServedRun:
        return self._runs.named(request.path_params["run"])

    def _timeline(self, request: Request) -> RunTimeline:
        return self._run(request).current(request.path_params.get("content")).timeline

    def index(self, request: Request) -> Response:
        only = self._runs.only
        if only is None:
            return HTMLResponse(PAGE.format(page="index", run=""), headers={"Cache-Control": "no-store"})
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"/run/{only.id}{query}", 303)

    def page(self, request: Request) -> Response:
        run = self._run(request)
        text = PAGE.format(page="run", run=f' data-run="{run.id}"')
        return HTMLResponse(text, headers={"Cache-Control": "no-store"})

    def asset(self, request: Request) -> Response:
        known = self._assets.get(request.path_params["name"])
        if known is None:
            raise asked.nothing("There is no such file.")
        return Response(known[0], media_type=known[1], headers={"Cache-Control": "no-cache"})

    def listed(self, request: Request) -> Response:
        return _json(self._runs.listed())

    def described(self, request: Request) -> Response:
        run = self._run(request)
        doing = run.build()
        if doing is not None:
            answer = _json({"building": {"what": doing[0], "done": doing[1]}})
            answer.status_code = 202
            return answer
        return _json(run.current().described)

    def findings(self, request: Request) -> Response:
        return _json(self._run(request).ask("findings", overview.findings))

    def sorting(self, request: Request) -> Response:
        key = asked.text(request, "by")
        found = self._run(request).ask(f"sort {key}", lambda timeline: overview.sorting(timeline, key))
        if found is None:
            raise bad_request("No recipe has a column of that name that adds up by rank.")
        return _json(found)

    def statistics(self, request: Request) -> Response:
        timeline = self._timeline(request)
        begin, end = asked.window(request, timeline.kept.zero, timeline.kept.end)
        lanes = asked.numbers(request, "lanes", timeline.num_lanes, timeline.num_lanes)
        each = np.arange(timeline.num_lanes) if lanes is None else lanes
        return _json(statistics.in_range(timeline, each, begin, end, lanes is not None))

    def search(self, request: Request) -> Response:
        known = self._run(request).current()
        timeline = known.timeline
        lanes = asked.numbers(request, "lanes", timeline.num_lanes, timeline.num_lanes)
        after = asked.integer(request, "after", timeline.kept.zero)
        skip = asked.integer(request, "skip", 0, 0, 1 << 20)
        limit = asked.integer(request, "limit", 200, 1, MOST_HITS)
        return _json(known.search.hits(asked.text(request, "q"), lanes, after, skip, limit))

    def collectives(self, request: Request) -> Response:
        timeline = self._timeline(request)
        begin, end = asked.window(request, timeline.kept.zero, timeline.kept.end)
        limit = asked.integer(request, "limit", 50, 1, MOST_COLLECTIVES)
        return _json(self._run(request).turn(lambda of: details.collectives(of, begin, end, limit)))

    def critical(self, request: Request) -> Response:
        timeline = self._timeline(request)
        begin, end = asked.window(request, timeline.kept.zero, timeline.kept.end)
        limit = asked.integer(request, "limit", MOST_STRETCHES, 0, MOST_STRETCHES)
        path = self._run(request).ask("critical", critical.critical_path)
        return _json(critical.in_window(timeline, path, begin, end, limit))

    def at(self, request: Request) -> Response:
        timeline = self._timeline(request)
        lane, time = asked.integer(request, "lane", None, 0), asked.integer(request, "time")
        found = details.at_time(timeline, lane, time)
        if found is None:
            raise asked.nothing("Nothing runs there.")
        return self._of_one(request, timeline, details.details(timeline, found))

    def _of_one(self, request: Request, timeline: RunTimeline, content: Any) -> Response:
        """An answer that was read from the run's tables, unless those became another run's meanwhile."""
        self._run(request).current(timeline.hash)
        return _json(content)

    def _event(self, request: Request) -> tuple[RunTimeline, details.DrawnEvent]:
        timeline = self._timeline(request)
        found = details.event(timeline, *(asked.integer(request, name, None, 0) for name in ("lane", "row")))
        if found is None:
            raise asked.nothing("This run has no such event.")
        return timeline, found

    def event(self, request: Request) -> Response:
        timeline, found = self._event(request)
        return self._of_one(request, timeline, details.details(timeline, found))

    def arrows(self, request: Request) -> Response:
        _, found = self._event(request)
        return _json(self._run(request).turn(lambda timeline: details.arrows(timeline, found)))

    def _place(self, request: Request) -> tuple[RunTimeline, int, int]:
        """The run and the tile that a URL names."""
        timeline = self._timeline(request)
        levels = timeline.pyramid
        level = asked.integer(request, "level", None, levels.finest, levels.coarsest)
        width = tiles.BUCKETS << levels.bits(level)
        most = (timeline.kept.end - timeline.kept.zero - 1) // width
        return timeline, level, asked.integer(request, "index", None, 0, most)

    def _lanes(self, request: Request, timeline: RunTimeline) -> Int:
        lanes = asked.numbers(request, "lanes", timeline.num_lanes)
        if lanes is None:
            raise bad_request("The parameter 'lanes' is missing.", "as in lanes=0-63,70")
        return lanes

    def tile(self, request: Request) -> Response:
        timeline, level, index = self._place(request)
        lanes = self._lanes(request, timeline)
        if tiles.num_planes(timeline, lanes) > tiles.MOST_PLANES:
            raise bad_request("These lanes have too many categories for one request.", "ask for fewer lanes.")
        draw = tiles.top_tile if request.query_params.get("top") == "1" else tiles.tile
        return _bytes(draw(timeline, lanes, level, index))

    def density(self, request: Request) -> Response:
        timeline, level, index = self._place(request)
        wanted = self._run(request).current().search.names(asked.text(request, "q"))
        return _bytes(tiles.hits_tile(timeline, wanted, level, index))

    def counter(self, request: Request) -> Response:
        timeline, level, index = self._place(request)
        numbers = asked.numbers(request, "counters", len(timeline.kept.counters), MOST_COUNTERS)
        if numbers is None:
            raise bad_request("The parameter 'counters' is missing.", "as in counters=0-7")
        return _bytes(tiles.counter_tile(timeline, numbers.tolist(), level, index))

    def events(self, request: Request) -> Response:
        timeline = self._timeline(request)
        lanes = self._lanes(request, timeline)
        begin, end = asked.window(request, timeline.kept.zero, timeline.kept.end)
        limit = asked.integer(request, "limit", 20_000, 0, MOST_EVENTS)
        return _bytes(tiles.events(timeline, tiles.shown(timeline, lanes, begin, end, limit)))

    def table(self, request: Request) -> Response:
        timeline = self._timeline(request)
        name = request.path_params["table"]
        frame = timeline.trace.whole.table(name) if name in TABLES else None
        if frame is None:
            raise asked.nothing("This run has no such table.")
        columns = frame.collect_schema().names()
        if {"start", "end"} <= set(columns) and (
            "from" in request.query_params or "to" in request.query_params
        ):
            begin, end = asked.window(request, timeline.kept.zero, timeline.kept.end)
            reaches = (pl.col("end") > begin) | (pl.col("start") >= begin)
            frame = frame.filter((pl.col("start") < end) & reaches)
        ranks = asked.numbers(request, "ranks", 1 << 30, 1 << 20)
        if ranks is not None and "rank" in columns:
            frame = frame.filter(pl.col("rank").is_in(ranks.tolist()))
        limit = asked.integer(request, "limit", MOST_ROWS, 0, MOST_ROWS)
        with timeline.trace.reading():
            total = int(frame.select(pl.len()).collect().item())
            rows = frame.head(limit).collect()
        self._timeline(request)  # is kept for ever under this hash: not if the run changed meanwhile
        content = io.BytesIO()
        rows.write_ipc_stream(content, compat_level=pl.CompatLevel.oldest())
        headers = {**FOREVER, "X-Rows": f"{rows.height}/{total}"}
        return Response(content.getvalue(), media_type="application/vnd.apache.arrow.stream", headers=headers)

    def compared(self, request: Request) -> Response:
        opened: Callable[[str], RunTimeline] = lambda name: self._opened(asked.text(request, name))  # noqa: E731
        return _json(steps.aligned(opened("a"), opened("b")))

    def _opened(self, number: str) -> RunTimeline:
        run = self._runs.named(number)
        if run.build(patience=60.0) is not None:
            raise Refusal(409, "run-changed", f"'{run.title}' is being read.", "ask again in a moment.")
        return run.current().timeline
