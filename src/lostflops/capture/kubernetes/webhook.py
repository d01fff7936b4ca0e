"""Answers the API server, over TLS, for every pod that is to be recorded.

Standard library only: it runs in a pod without lostflops installed. It asks the API server nothing and keeps
nothing, so a dry run is like any other question.
"""

from __future__ import annotations

import json
import re
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lostflops.capture.kubernetes.admission import review
from lostflops.capture.kubernetes.pod import PATTERN, SIZE, Wish
from lostflops.capture.kubernetes.tls import Handler, Server
from lostflops.errors import LostflopsError

LARGEST = 8 << 20  # what the API server takes is 3 MB
PAYLOAD = "payload.json"


def answering(wish: Wish, own_namespace: str) -> type[Handler]:
    """Answers questions of the API server."""

    class Answering(Handler):
        def do_POST(self) -> None:  # noqa: N802
            if self.path.partition("?")[0] != "/mutate":
                self.answer(404)
                return
            if self.headers.get("Content-Type", "").partition(";")[0].strip() != "application/json":
                self.answer(415, b"application/json is needed\n")
                return
            length = self.length(LARGEST)
            if length is None:
                return
            body = self.rfile.read(length)
            if len(body) != length:
                self.close_connection = True
                return
            self.server.has(self.client_address)
            try:
                document: Any = json.loads(body)
                answer = review(document, wish, own_namespace, length)
            except (ValueError, RecursionError, LostflopsError) as error:
                self.answer(400, f"{error}\n".encode(errors="replace"))
                return
            self.answer(200, json.dumps(answer).encode(), "application/json")

    return Answering


def main(words: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(prog="webhook")
    parser.add_argument("--certificate", type=Path, required=True)
    parser.add_argument("--payload", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8443)
    parser.add_argument("--pattern", default=PATTERN)
    parser.add_argument("--limit", type=int, default=SIZE)
    parser.add_argument("--namespace", default="")
    given = parser.parse_args(words)
    wish = Wish(json.loads(given.payload.read_text()), given.pattern, size=given.limit)
    re.compile(wish.pattern)
    serve(wish, given.certificate, given.host, given.port, given.namespace)


def serve(wish: Wish, certificate: Path, host: str, port: int, own_namespace: str = "") -> None:
    """Answer until this process is ended."""
    with Server((host, port), answering(wish, own_namespace), certificate) as server:
        print(
            f"answering on {server.server_address[0]}:{server.server_address[1]}", file=sys.stderr, flush=True
        )
        server.serve_forever()


if __name__ == "__main__":
    main()
