"""Starts the server, says where it is, and serves until it is told to stop."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from contextlib import closing, suppress
from types import FrameType

import uvicorn

from lostflops.errors import CannotServe

from .. import timeline
from .app import application
from .guard import Keys
from .runs import ServedRuns

LOOPBACK = "127.0.0.1"


def serve(
    runs: ServedRuns,
    *,
    host: str = LOOPBACK,
    port: int = 0,
    browser: bool = True,
    begins: str = "/",
    say: Callable[[str], None] = print,
) -> None:
    """Serve until Ctrl-C. The first line that is said is the address with its token, of the page that
    `begins`. Raises CannotServe."""
    with closing(_listening(host, port)) as listening:
        number = int(listening.getsockname()[1])
        keys = Keys(number)
        shown = f"[{host}]" if ":" in host else host
        page, mark, state = begins.partition("#")

        def address() -> str:
            return f"http://{shown}:{number}{page}?token={keys.token()}{mark}{state}"

        config = uvicorn.Config(
            application(runs, keys, _names(host), not _is_loopback(host)),
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            timeout_graceful_shutdown=1,
        )
        say(address())
        _explain(host, number, say)
        if browser:
            webbrowser.open(address())
        if sys.stdin is not None and sys.stdin.isatty():
            again = threading.Thread(target=_print_again, args=(address, say), daemon=True)
            again.start()
        server = _Server(config)
        try:
            with suppress(KeyboardInterrupt):
                server.run(sockets=[listening])
        finally:
            timeline.forget()
        if server.told and _computes():
            # Nobody waits for the answer any more, but Python would: for minutes, with many ranks' findings.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)


class _Server(uvicorn.Server):
    """Gives up what it still computes when it is told to stop, and says nothing of it."""

    told = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.told = True
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)
        super().handle_exit(sig, frame)


def _computes() -> bool:
    return any(not one.daemon and one is not threading.main_thread() for one in threading.enumerate())


def _listening(host: str, port: int) -> socket.socket:
    """A socket that waits for connections. Raises CannotServe."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Said to be TCP, or asyncio leaves small answers waiting for an acknowledgement: 40 ms each.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        where = f"port {port} of {host}" if port else host
        hint = "leave --port out for a free one." if port else "leave --host out for this machine alone."
        raise CannotServe(f"The server cannot listen at {where}: {error.strerror or error}.", hint) from error
    return listening


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _names(host: str) -> frozenset[str]:
    """Names under which the server answers besides localhost: its own, where others may reach it."""
    if _is_loopback(host):
        return frozenset({f"[{host}]" if ":" in host else host})
    return frozenset(name.lower() for name in (host, socket.gethostname(), socket.getfqdn()))


def _explain(host: str, port: int, say: Callable[[str], None]) -> None:
    if _is_loopback(host):
        tunnel = f"ssh -L {port}:localhost:{port} {socket.gethostname()}"
        say(f"from another machine: {tunnel}, then open that address")
    else:
        say("whoever reaches this address and has the token reads the run; nothing is encrypted on the way")
    say("Ctrl-C ends it")


def _print_again(address: Callable[[], str], say: Callable[[str], None]) -> None:
    """A token works once: Enter prints another."""
    for _ in sys.stdin:
        say(address())
