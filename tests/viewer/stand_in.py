"""A server that says what `docs/viewer-protocol.md` promises, of a run that is a formula."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np

ASSETS = Path(__file__).parents[2] / "src" / "lostflops" / "viewer" / "assets"
ID = "0123abcd"
STEP, NUM_STEPS = 100_000_000, 100
ZERO = 5_000_000_000
LENGTH = STEP * NUM_STEPS
KERNEL = 1_000_000
HOSTILE = '<img src=x onerror="alert(1)"></script><script>alert(2)</script>'
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>lostflops</title>
<link rel="stylesheet" href="/assets/viewer.css"></head>
<body><div id="app" data-page="run" data-run="%s"></div>
<script type="module" src="/assets/viewer.js"></script>
</body></html>"""
CATEGORIES = [
    ("account:compute", "compute"),
    ("account:communication.wait", "waiting for other ranks"),
    ("account:idle.launch_bound", "launch-bound"),
    ("family:gemm", "gemm"),
    ("host:operator", "operator"),
]
Answer = tuple[int, str, bytes]


class StandIn:
    """Each rank computes, waits and idles in every step; rank r computes r / R of a fifth of the step longer.

    The last lanes are one stream of rank 0 with `KERNEL` ns long kernels end to end, and one thread with two.
    """

    def __init__(self, ranks: int, title: str = "base", hostile: bool = False) -> None:
        self.ranks, self.title, self.hostile = ranks, title, hostile
        self.asked: list[str] = []
        self.most_events = 20_000

    # The run

    def borders(self, lanes: Sequence[int]) -> Any:
        """Where in a step each lane's compute and its waiting end, as [lane, 2] ns."""
        late = np.asarray(lanes, dtype=np.int64) * (STEP // 5) // self.ranks
        return np.stack([STEP * 6 // 10 + late, np.full(len(lanes), STEP * 95 // 100)], axis=1)

    def busy(self, lanes: Sequence[int], times: Any) -> Any:
        """Time of each account before each instant after the run's start, as [lane, 3, time] ns."""
        whole, within = np.divmod(np.clip(times, 0, LENGTH), STEP)
        edges = self.borders(lanes)
        upto = np.minimum(within[None, :], edges[:, :1]), np.minimum(within[None, :], edges[:, 1:])
        compute = whole * edges[:, :1] + upto[0]
        wait = whole * (edges[:, 1:] - edges[:, :1]) + upto[1] - upto[0]
        idle = np.clip(times, 0, LENGTH)[None, :] - compute - wait
        return np.stack([compute, wait, idle], axis=1)

    @property
    def events(self) -> list[tuple[int, int, int, int, str, int]]:
        """Lane, row, start and end after zero, name, category."""
        made = [
            (self.ranks, row, row * KERNEL, (row + 1) * KERNEL, HOSTILE if row % 2 else f"gemm_{row}", 3)
            for row in range(LENGTH // KERNEL // 10)
        ]
        made.append((self.ranks + 1, 0, 0, LENGTH // 2, HOSTILE, 4))
        made.append((self.ranks + 1, 1, LENGTH // 2, LENGTH, "forward", 4))
        return made

    def run(self) -> dict[str, Any]:
        ranks = list(range(self.ranks))
        lanes = self.ranks + 2
        totals = self.busy(ranks, np.array([LENGTH]))[:, :, 0].tolist()
        own = [sum(e[3] - e[2] for e in self.events if e[0] == lane) for lane in (self.ranks, self.ranks + 1)]
        nodes = [rank // 8 for rank in ranks]
        return {
            "id": ID,
            "title": self.title,
            "hash": "beef",
            "zero": ZERO,
            "end": ZERO + LENGTH,
            "num_events": 20_000_000,
            "busy_ns": 1,
            "warnings": [f"`{HOSTILE}` is not drawn"],
            "levels": {
                "finest": -10,
                "base": 0,
                "coarsest": 4,
                "base_width": 2**21,
                "factor": 4,
                "buckets": 256,
            },
            "categories": [{"key": key, "name": name, "meaning": ""} for key, name in CATEGORIES],
            "ranks": {
                "rank": ranks,
                "host": nodes,
                "device": [rank % 8 for rank in ranks],
                "gpu": [None] * self.ranks,
                "stage": [None] * self.ranks,
                "start": [ZERO] * self.ranks,
                "end": [ZERO + LENGTH] * self.ranks,
                "clock_error_ns": [None] * self.ranks,
            },
            "groupings": [
                {
                    "key": "host",
                    "title": "node",
                    "of": nodes,
                    "names": [f"node {n}" for n in sorted(set(nodes))],
                }
            ],
            "tracks": {
                "rank": [*ranks, 0, 0],
                "kind": ["state"] * self.ranks + ["stream", "thread"],
                "title": ["GPU time by account"] * self.ranks + ["stream 7", HOSTILE],
                "first_lane": list(range(lanes)),
                "num_lanes": [1] * lanes,
                "group": [None] * lanes,
            },
            "lanes": {
                "track": list(range(lanes)),
                "num_events": [300] * self.ranks + [len(self.events) - 2, 2],
                "busy_ns": [LENGTH] * self.ranks + own,
                "categories": [[0, 1, 2]] * self.ranks + [[3], [4]],
                "totals_ns": [*totals, [own[0]], [own[1]]],
            },
            "steps": {
                "rank": [0] * NUM_STEPS,
                "step": list(range(NUM_STEPS)),
                "counts": [True] * NUM_STEPS,
                "start": [ZERO + i * STEP for i in range(NUM_STEPS)],
                "end": [ZERO + (i + 1) * STEP for i in range(NUM_STEPS)],
            },
            "counters": {
                "rank": [0],
                "title": ["SM active"],
                "metric": ["sm"],
                "unit": ["%"],
                "min": [0.0],
                "max": [90.0],
                "num_samples": [400],
            },
            "sortings": [{"key": "late", "title": "step ledger: time", "unit": "ns"}],
        }

    # Answers

    def tile(self, level: int, index: int, lanes: Sequence[int]) -> bytes:
        width = int(2**21 * 4.0**level)
        times = (index * 256 + np.arange(257, dtype=np.int64)) * width
        head: list[tuple[int, int, int]] = []
        parts: list[bytes] = []
        state = [lane for lane in lanes if lane < self.ranks]
        if state:
            shares = _quantised(np.diff(self.busy(state, times), axis=2), width)
            parts.append(shares.tobytes())
            head += [(lane, category, 0) for lane in state for category in range(3)]
        for lane, category in ((self.ranks, 3), (self.ranks + 1, 4)):
            if lane in lanes:
                end = LENGTH // 10 if category == 3 else LENGTH
                parts.append(_quantised(np.diff(np.clip(times, 0, end)), width).tobytes())
                head.append((lane, category, 0))
        return (
            b"LFT1"
            + struct.pack("<IIiI12x", len(head), 256, level, index)
            + b"".join(struct.pack("<IHH", *one) for one in head)
            + b"".join(parts)
        )

    def single(self, lanes: Sequence[int], start: int, end: int, limit: int) -> bytes:
        inside = [e for e in self.events if e[0] in lanes and e[3] > start - ZERO and e[2] < end - ZERO]
        kept = sorted(sorted(inside, key=lambda e: e[2] - e[3])[: min(limit, self.most_events)])
        names = {name: i for i, name in enumerate(sorted({e[4] for e in kept}))}
        by_lane = []
        for lane in sorted({e[0] for e in kept}):
            at = [i for i, e in enumerate(kept) if e[0] == lane]
            of = sum(e[0] == lane for e in inside)
            by_lane.append({"lane": lane, "first": at[0], "shown": len(at), "total": of})
        said = json.dumps(
            {
                "count": len(kept),
                "shown": len(kept),
                "total": len(inside),
                "lanes": by_lane,
                "names": {str(i): name for name, i in names.items()},
            }
        ).encode()
        said += b" " * (-len(said) % 8)
        return b"".join(
            (
                b"LFE1" + struct.pack("<I", len(said)) + said,
                np.array([e[2] for e in kept], "<f8").tobytes(),
                np.array([e[3] - e[2] for e in kept], "<f8").tobytes(),
                np.array([e[1] for e in kept], "<u4").tobytes(),
                np.array([names[e[4]] for e in kept], "<u4").tobytes(),
                np.array([e[5] for e in kept], "<u2").tobytes(),
            )
        )

    def event(self, lane: int, row: int) -> dict[str, Any] | None:
        own = [e for e in self.events if e[0] == lane]
        if not 0 <= row < len(own):
            return None
        _, _, start, end, name, category = own[row]
        return {
            "lane": lane,
            "row": row,
            "rank": 0,
            "track": lane,
            "title": "stream 7",
            "name": name,
            "start": ZERO + start,
            "end": ZERO + end,
            "category": category,
            "fields": [{"name": "shapes", "value": f"[[4, {HOSTILE}]]", "meaning": "input shapes"}],
            "around": [{"lane": self.ranks + 1, "row": 0, "name": HOSTILE}],
            "previous": row - 1 if row else None,
            "next": row + 1 if row + 1 < len(own) else None,
            "explain": [{"recipe": "kernel_summary", "question": "Which kernels take the time?"}],
            "account": "compute",
        }

    def range(self, start: int, end: int, lanes: Sequence[int]) -> dict[str, Any]:
        state = [lane for lane in lanes if lane < self.ranks]
        spent = np.diff(self.busy(state, np.array([start - ZERO, end - ZERO])), axis=2)[:, :, 0]
        return {
            "from": start,
            "to": end,
            "lanes": [
                {
                    "lane": lane,
                    "busy_ns": int(row.sum()),
                    "num_events": 3,
                    "categories": [[i, int(ns)] for i, ns in enumerate(row)],
                }
                for lane, row in zip(state, spent, strict=True)
            ],
            "ledger": {
                "ranks": len(state),
                "ns": (end - start) * len(state),
                "accounts": [
                    {"key": CATEGORIES[i][0], "name": CATEGORIES[i][1], "ns": int(ns)}
                    for i, ns in enumerate(spent.sum(axis=0))
                ],
            },
            "names": [{"name": HOSTILE, "category": 3, "num_events": 7, "ns": 11}],
            "names_shown": 1,
            "names_total": 812,
        }

    def search(self, text: str, after: int) -> dict[str, Any]:
        found = [e for e in self.events if text.lower() in e[4].lower()]
        listed = [e for e in found if e[2] + ZERO >= after][:5]
        later = [e for e in found if e[2] + ZERO > (listed[-1][2] + ZERO if listed else 0)]
        return {
            "total": len(found),
            "names_total": len({e[4] for e in found}),
            "shown": len(listed),
            "hits": [
                {"lane": e[0], "row": e[1], "start": e[2] + ZERO, "end": e[3] + ZERO, "name": e[4], "rank": 0}
                for e in listed
            ],
            "next": later[0][2] + ZERO if later else None,
        }

    @property
    def findings(self) -> dict[str, Any]:
        last = self.ranks - 1
        at = ZERO + 40 * STEP
        return {
            "verdict": f"Waiting for {HOSTILE}.",
            "findings": [
                {
                    "name": "rank-arrives-last",
                    "claim": f"Rank {last} is late {HOSTILE}.",
                    "cost_ns": 7,
                    "gain": "at most",
                    "gain_ns": 9_000_000,
                    "evidence": [HOSTILE, "it is `late`"],
                    "next": "Look at it.",
                    "doubt": "",
                    "rank": last,
                    "recipe": "communication_imbalance",
                    "accounts": ["communication.wait"],
                    "windows": [
                        {"rank": last, "start": at, "end": at + STEP, "lane": last, "text": "it computes"}
                    ],
                },
                {
                    "name": "small-kernels",
                    "claim": "Kernels are small.",
                    "cost_ns": 5,
                    "gain": "unknown",
                    "gain_ns": 0,
                    "evidence": [],
                    "next": "Fuse them.",
                    "doubt": "",
                    "rank": None,
                    "recipe": "",
                    "accounts": [],
                    "windows": [],
                },
            ],
        }

    def answer(self, path: str, query: Mapping[str, str]) -> Answer:
        match path.strip("/").split("/"):
            case ["run", _]:
                return 200, "text/html; charset=utf-8", (PAGE % ID).encode()
            case ["assets", name] if (ASSETS / name).is_file():
                kind = "text/css" if name.endswith(".css") else "text/javascript"
                return 200, kind, (ASSETS / name).read_bytes()
            case ["favicon.ico"]:
                return 204, "image/x-icon", b""
            case ["api", "runs"]:
                line = {"id": ID, "title": self.title, "ranks": self.ranks, "steps": NUM_STEPS}
                line |= {"duration_ns": LENGTH, "num_events": 7, "error": None}
                return _json(
                    {"version": "0", "runs": [line, line | {"title": "worse", "error": "is damaged"}]}
                )
            case [""]:
                page = (PAGE % ID).replace('data-page="run"', 'data-page="index"')
                return 200, "text/html; charset=utf-8", page.encode()
            case ["api", "run", _]:
                return _json(self.run())
            case ["data", _, _, "tile", level, index]:
                return 200, BINARY, self.tile(int(level), int(index), _lanes(query["lanes"]))
            case ["data", _, _, "events"]:
                edges = int(query["from"]), int(query["to"])
                return 200, BINARY, self.single(_lanes(query["lanes"]), *edges, int(query["limit"]))
            case ["data", _, _, "counter", level, index]:
                head = (
                    b"LFC1" + struct.pack("<IIiI12x", 1, 256, int(level), int(index)) + struct.pack("<I", 0)
                )
                return 200, BINARY, head + np.repeat(np.array([10, 50, 90], "<f4"), 256).tobytes()
            case ["api", "run", _, "event", lane, row]:
                return _found(self.event(int(lane), int(row)))
            case ["api", "run", _, "at"]:
                when = int(query["time"]) - ZERO
                at = (e for e in self.events if e[0] == int(query["lane"]) and e[2] <= when < e[3])
                found = next(at, None)
                return _found(self.event(found[0], found[1]) if found else None)
            case ["api", "run", _, "arrows", *_]:
                here, there = ({"lane": self.ranks + i, "row": 0, "time": ZERO + i * KERNEL} for i in (1, 0))
                return _json(
                    {"arrows": [{"kind": "launch", "from": here, "to": there}], "shown": 1, "total": 1}
                )
            case ["api", "run", _, "range"]:
                lanes = _lanes(query["lanes"]) if "lanes" in query else range(self.ranks + 2)
                return _json(self.range(int(query["from"]), int(query["to"]), lanes))
            case ["api", "run", _, "search"]:
                return _json(self.search(query["q"], int(query.get("after", 0))))
            case ["api", "run", _, "sort"]:
                return _json({"values": list(range(self.ranks))})
            case ["api", "run", _, "findings"]:
                return _json(self.findings)
            case ["api", "run", _, "collectives"]:
                return _json({"total": 0, "shown": 0, "collectives": []})
            case _:
                return _found(None)

    def serve(self) -> ThreadingHTTPServer:
        """Answers on a free port of this machine until it is shut down."""
        said = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                url = urlsplit(self.path)
                said.asked.append(self.path)
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                status, kind, body = said.answer(url.path, query)
                if said.hostile and kind == "application/json":
                    body = json.dumps(poisoned(json.loads(body))).encode()
                self.send_response(status)
                for name, value in (
                    ("Content-Type", kind),
                    ("Content-Length", str(len(body))),
                    ("Content-Security-Policy", POLICY),
                ):
                    self.send_header(name, value)
                # The page gives up requests that it no longer needs.
                with suppress(ConnectionError):
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *said: object) -> None:
                pass

        server = Quiet(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server


class Quiet(ThreadingHTTPServer):
    """Says nothing about connections that the page has closed."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass


BINARY = "application/octet-stream"


# Where a text of a run may stand in an answer.
TEXTS = {
    "title", "name", "names", "meaning", "gpu", "metric", "unit", "warnings", "verdict", "claim", "evidence",
    "next", "doubt", "text", "value", "question", "recipe", "group", "account", "why_not", "notes",
    "error", "what",
}  # fmt: skip


def poisoned(said: Any, key: str = "") -> Any:
    """The same answer, in which every text that comes from a run would be markup if it could."""
    if isinstance(said, dict):
        return {name: poisoned(value, name) for name, value in said.items()}
    if isinstance(said, list):
        return [poisoned(value, key) for value in said]
    return said + HOSTILE if isinstance(said, str) and key in TEXTS else said


def _quantised(busy: Any, width: int) -> Any:
    return np.where(busy > 0, np.maximum(1, np.rint(255 * busy / width)), 0).astype(np.uint8)


def _lanes(text: str) -> list[int]:
    made: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        made += range(int(first), int(last or first) + 1)
    return made


def _json(what: object) -> Answer:
    return 200, "application/json", json.dumps(what).encode()


def _found(what: object) -> Answer:
    if what is None:
        error = {"error": {"kind": "no-such-thing", "message": "There is no such thing.", "hint": ""}}
        return 404, "application/json", json.dumps(error).encode()
    return _json(what)
