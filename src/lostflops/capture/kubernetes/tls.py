"""An HTTPS server that no client can hold up: each connection has a thread of its own and a time limit.

Standard library only: it runs in pods without lostflops installed.
"""

from __future__ import annotations

import ssl
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import socket
from typing import Any

PATIENCE = 10.0  # seconds for the handshake, and for each read
AT_ONCE = 512


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
        self._room = threading.BoundedSemaphore(AT_ONCE)
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
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """The handshake is here, on the connection's thread: in `accept` one silent client would stop all."""
        request.settimeout(PATIENCE)
        if self._certificate is None:
            super().finish_request(request, client_address)
            return
        with suppress(OSError, ssl.SSLError):
            self._load()
        with self._context.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)
            with suppress(OSError):
                secured.unwrap()

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        error = sys.exc_info()[1]
        sys.stderr.write(f"{client_address[0]}: {type(error).__name__}: {error}\n")


class Handler(BaseHTTPRequestHandler):
    """What the webhook and the collector have in common."""

    protocol_version = "HTTP/1.1"
    server_version = "lostflops"
    sys_version = ""
    timeout = PATIENCE

    def answer(self, status: int, body: bytes = b"", kind: str = "text/plain", **headers: str) -> None:
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
        if self.path != "/healthz":
            super().log_request(code, size)
