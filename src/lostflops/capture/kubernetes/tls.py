"""An HTTPS server that no client can hold up: each connection has its own thread, each request a deadline.

Whoever has all connections open and sends a byte now and then still has to make room: when all are taken, the
one whose request has been awaited longest is closed for the next. Standard library only: it runs in pods
without lostflops installed.
"""

from __future__ import annotations

import socket
import ssl
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PATIENCE = 10.0  # seconds for the handshake and a request's head, and for each write
SLOWEST = 256 << 10  # bytes per second: whoever sends a body more slowly is not waited for
AT_ONCE = 512
# So long a request is awaited even when there is no room: a busy API server's are there by then.
GRACE = 1.0


@dataclass
class Connection:
    """An open connection: whether its request is still awaited, since when, and until when."""

    connection: socket.socket
    since: float
    until: float
    awaited: bool = True

    def end(self) -> None:
        """Have its thread's reading and writing fail. The base class's: TLS' own is not for other threads."""
        with suppress(OSError):
            socket.socket.shutdown(self.connection, socket.SHUT_RDWR)


class Server(ThreadingHTTPServer):
    """Serves `handler`; with a folder that holds tls.crt and tls.key, over TLS."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], certificate: Path | None
    ) -> None:
        self._certificate = certificate
        self._loaded = 0
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._clients: dict[Any, Connection] = {}  # by address
        self._lock = threading.Lock()
        self._load()
        super().__init__(address, handler)

    def _load(self) -> None:
        """Take a certificate that was renewed."""
        if self._certificate is None:
            return
        changed = (self._certificate / "tls.crt").stat().st_mtime_ns
        if changed != self._loaded:
            self._context.load_cert_chain(self._certificate / "tls.crt", self._certificate / "tls.key")
            self._loaded = changed

    def process_request(self, request: Any, client_address: Any) -> None:
        now = time.monotonic()
        with self._lock:
            full = len(self._clients) >= AT_ONCE
            slow = [
                client for client in self._clients.values() if client.awaited and now - client.since > GRACE
            ]
            if full and slow:
                min(slow, key=lambda client: client.since).end()
            if full and not slow:
                self.shutdown_request(request)
                return
            self._clients[client_address] = Connection(request, now, now + PATIENCE)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._clients.pop(client_address, None)

    def service_actions(self) -> None:
        """End what is overdue; the server's loop calls this twice a second."""
        now = time.monotonic()
        with self._lock:
            for client in self._clients.values():
                if client.awaited and now > client.until:
                    client.end()

    def awaits(self, client_address: Any, seconds: float) -> None:
        """Have a client's next words be there in so many seconds from now."""
        now = time.monotonic()
        with self._lock:
            if (client := self._clients.get(client_address)) is not None:
                client.since, client.until, client.awaited = now, now + seconds, True

    def has(self, client_address: Any) -> None:
        """Note that a client's request is here: from now on it is we who take time."""
        with self._lock:
            if (client := self._clients.get(client_address)) is not None:
                client.awaited = False

    def finish_request(self, request: Any, client_address: Any) -> None:
        """The handshake is here, on the connection's thread: in `accept` one silent client would stop all."""
        request.settimeout(PATIENCE)
        if self._certificate is None:
            super().finish_request(request, client_address)
            return
        with suppress(OSError, ssl.SSLError):
            self._load()
        with self._context.wrap_socket(request, server_side=True, do_handshake_on_connect=False) as secured:
            with self._lock:
                if (client := self._clients.get(client_address)) is not None:
                    client.connection = secured
            secured.do_handshake()
            super().finish_request(secured, client_address)
            with suppress(OSError):
                secured.unwrap()

    def handle_error(self, request: socket.socket | tuple[bytes, socket.socket], client_address: Any) -> None:
        error = sys.exc_info()[1]
        sys.stderr.write(f"{client_address[0]}: {type(error).__name__}: {error}\n")


class Handler(BaseHTTPRequestHandler):
    """What the webhook and the collector have in common."""

    protocol_version = "HTTP/1.1"
    server_version = "lostflops"
    sys_version = ""
    timeout = PATIENCE
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def handle_one_request(self) -> None:
        self.server.awaits(self.client_address, PATIENCE)
        super().handle_one_request()

    def parse_request(self) -> bool:
        parsed = super().parse_request() and self._framed()
        given = self.headers.get("Content-Length", "") if parsed else ""
        if given.isascii() and given.isdigit() and 0 < len(given) <= 15 and int(given):
            self.server.awaits(self.client_address, PATIENCE + int(given) / SLOWEST)
        else:
            self.server.has(self.client_address)
        return parsed

    def _framed(self) -> bool:
        """Whether it is plain where the request ends: what follows must be nothing but the next one."""
        lengths = self.headers.get_all("Content-Length", [])
        if "Transfer-Encoding" in self.headers or len(lengths) > 1:
            self.answer(411, b"one Content-Length is needed\n")
            return False
        if self.command not in ("POST", "PUT") and lengths not in ([], ["0"]):
            self.close_connection = True  # nobody reads the body
        return True

    def answer(self, status: int, body: bytes = b"", kind: str = "text/plain", **headers: str) -> None:
        self.server.has(self.client_address)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if status >= 400:
            # What is left of the body is not read.
            self.close_connection = True
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def length(self, limit: int) -> int | None:
        """The length of the body; None when it cannot be used, which was answered then."""
        given = self.headers.get("Content-Length", "")
        if not (given.isascii() and given.isdigit()):
            self.answer(411, b"a Content-Length is needed\n")
        elif len(given) > 15 or int(given) > limit:
            self.answer(413, b"too large\n")
        else:
            return int(given)
        return None

    def do_GET(self) -> None:
        if self.path == "/healthz":
            self.answer(200, b"ok\n")
        else:
            self.answer(404)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        # Of a request line that is too long there is no path.
        if getattr(self, "path", "") != "/healthz":
            super().log_request(code, size)
