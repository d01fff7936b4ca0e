"""Offers the latest readings to Prometheus: as OpenMetrics over HTTP, or as a file of text."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import groupby
from pathlib import Path
from typing import Any

from lostflops.machine.monitor.metrics import METRICS, Metric, MetricValue
from lostflops.version import __version__

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
LOOPBACK = "127.0.0.1"
AT_ONCE, PATIENCE = 64, 10.0  # connections, and seconds for each
# Prometheus wants base units, written out. Unit: its name there, and what to multiply with.
UNITS: dict[str | None, tuple[str, float]] = {
    None: ("", 1),
    "%": ("ratio", 0.01),
    "B": ("bytes", 1),
    "B/s": ("bytes_per_second", 1),
    "W": ("watts", 1),
    "J": ("joules", 1),
    "s": ("seconds", 1),
    "MHz": ("hertz", 1e6),
    "°C": ("celsius", 1),
    "Gb/s": ("bits_per_second", 1e9),
}


def exposition(readings: Iterable[MetricValue], *, textfile: bool = False) -> str:
    """The readings as OpenMetrics, or as the older text format that textfile collectors read."""
    lines: list[str] = []
    order = {name: place for place, name in enumerate(METRICS)}
    by_metric = sorted(readings, key=lambda r: (order[r.metric], r.device or 0, r.instance or ""))
    for name, group in groupby(by_metric, key=lambda reading: reading.metric):
        lines += _family(METRICS[name], group, textfile)
    lines.append("# TYPE lostflops_monitor_info gauge" if textfile else "# TYPE lostflops_monitor info")
    lines.append(f'lostflops_monitor_info{{version="{escaped(__version__)}"}} 1')
    return "\n".join([*lines, *([] if textfile else ["# EOF"]), ""])


def _family(metric: Metric, readings: Iterable[MetricValue], textfile: bool) -> Iterator[str]:
    unit, factor = UNITS[metric.unit]
    family = f"lostflops_{metric.name}" + (f"_{unit}" if unit else "")
    total = "_total" if metric.counts else ""
    # The older format gives a counter's type under the name of its sample.
    named = family + (total if textfile else "")
    yield f"# TYPE {named} {'counter' if metric.counts else 'gauge'}"
    if unit and not textfile:
        yield f"# UNIT {family} {unit}"
    yield f"# HELP {named} {escaped(metric.meaning)}"
    for reading in readings:
        labels = [f'gpu="{reading.device}"'] if reading.device is not None else []
        if reading.instance is not None:
            labels.append(f'{metric.label}="{escaped(reading.instance)}"')
        value = reading.value / metric.per if metric.per != 1 else reading.value
        if factor != 1:
            value *= factor
        if math.isfinite(value):
            yield f"{family}{total}{{{','.join(labels)}}} {value!r}"


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class _Server(ThreadingHTTPServer):
    """Stands beside a job, of which no client may take threads: a few at once, each with a deadline.

    Where all are taken, the oldest makes room: a scraper's question is answered long before that.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._since: dict[Any, float] = {}  # connections, the oldest first
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._since) >= AT_ONCE:
                self._end(next(iter(self._since)))
            self._since[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        with self._lock:
            for request, since in list(self._since.items()):
                if time.monotonic() - since > PATIENCE:
                    self._end(request)

    def _end(self, request: Any) -> None:
        """Have its thread's reading and writing fail."""
        del self._since[request]
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._since.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is nothing that the job's terminal has to show."""


def serve(address: str, port: int, text: Callable[[], str]) -> int:
    """Answer with a text at that address in the background, and say at which port. Raises OSError."""

    class Answer(BaseHTTPRequestHandler):
        timeout = PATIENCE

        def do_GET(self) -> None:
            if self.path.partition("?")[0] not in ("/", "/metrics"):
                self.send_error(404)
                return
            body = text().encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

        def version_string(self) -> str:
            return "lostflops"

    server = _Server((address, port), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def url(address: str, port: int) -> str:
    return f"http://{f'[{address}]' if ':' in address else address}:{port}/metrics"


def replace(textfile: Path, text: str) -> None:
    """Write what a textfile collector reads, which must never see half of it. Raises OSError."""
    beside = textfile.with_name(f".{textfile.name}.tmp")
    beside.write_text(text, "utf-8")
    beside.replace(textfile)
