"""Who may ask, and what every answer says to the browser: the protection of the server, in one place.

The address in the terminal carries a token that works once. It is exchanged for a cookie that scripts
cannot read and that no other site's page can send. A request needs that cookie (or its value as a bearer
token), must name one of the server's own addresses as its host, so that no foreign name can be pointed at
this machine, and must not come from another site's page, one on another port of this machine included.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import threading
from html import escape
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .refusal import Refusal, answered, bad_request

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?\Z")
OWN_NAMES = ("localhost", "127.0.0.1", "[::1]")
OWN_PAGES = ("", "same-origin", "none")
HINT = "open the address that `lostflops view` printed; it works once, Enter in its terminal prints another."


class Keys:
    """The tokens that open a session, each once, and the session's secret."""

    def __init__(self, port: int) -> None:
        self.cookie = f"lostflops-{port}"
        self._session = secrets.token_urlsafe(32)
        self._tokens: set[str] = set()
        self._lock = threading.Lock()

    def token(self) -> str:
        """A token that opens one session."""
        token = secrets.token_urlsafe(24)
        with self._lock:
            self._tokens.add(token)
        return token

    def exchanged(self, token: str) -> str | None:
        """The session's secret for a token that was not used before."""
        with self._lock:
            match = next(
                (t for t in self._tokens if secrets.compare_digest(t.encode(), token.encode())), None
            )
            if match is None:
                return None
            self._tokens.remove(match)
        return self._session

    def knows(self, request: Request) -> bool:
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        given = request.cookies.get(self.cookie, "") or bearer
        return secrets.compare_digest(given.encode(), self._session.encode())


class Guard:
    """Stands before the application: refuses what may not be asked, and adds headers to every answer."""

    def __init__(self, app: ASGIApp, keys: Keys, names: frozenset[str], any_address: bool) -> None:
        self._app = app
        self._keys = keys
        self._names = names
        self._any_address = any_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refused = self._refused(Request(scope))
        await (self._app if refused is None else refused)(scope, receive, with_headers)

    def _refused(self, request: Request) -> Response | None:
        """What is answered in place of the application, if anything."""
        try:
            self._check_place(request)
            token = request.query_params.get("token")
            # Only what opens a page: what merely looks whether an address answers must not use it up.
            opens = request.method == "GET" and not request.url.path.startswith(("/api", "/data"))
            if token is not None and opens:
                return self._exchange(request, token)
            if not self._keys.knows(request):
                raise Refusal(401, "no-session", "This browser has no session here.", HINT)
        except Refusal as refusal:
            page = not request.url.path.startswith(("/api", "/data"))
            return _page(refusal) if page else answered(refusal)
        return None

    def _check_place(self, request: Request) -> None:
        named = request.headers.getlist("host")
        host = HOST.match(named[0]) if len(named) == 1 else None
        if host is None or not self._is_own(host[1]):
            raise bad_request(
                "This server does not answer under that name.",
                "use localhost, or start it with `--host NAME`.",
            )
        if request.method not in ("GET", "HEAD"):
            raise Refusal(405, "bad-request", "This server only reads.")
        navigates = request.headers.get("sec-fetch-mode") == "navigate"
        origin = request.headers.get("origin")
        foreign = request.headers.get("sec-fetch-site", "") not in OWN_PAGES
        if (foreign and not navigates) or (origin and origin.partition("://")[2] != request.headers["host"]):
            raise Refusal(403, "bad-request", "The page of another site may not ask here.")

    def _is_own(self, host: str) -> bool:
        if host.lower() in (*OWN_NAMES, *self._names):
            return True
        if not self._any_address:
            return False
        try:  # no foreign name is an address
            ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            return False
        return True

    def _exchange(self, request: Request, token: str) -> Response:
        left = [(k, v) for k, v in parse_qsl(request.url.query, keep_blank_values=True) if k != "token"]
        place = request.url.path + (f"?{urlencode(left)}" if left else "")
        place = "/" + place.lstrip("/\\")  # never another host
        if self._keys.knows(request):
            return RedirectResponse(place, 303)
        session = self._keys.exchanged(token)
        if session is None:
            raise Refusal(403, "no-session", "That address was used before, or is of another start.", HINT)
        # After a link from another site a browser leaves the cookie out of what it is redirected to.
        followed = request.headers.get("sec-fetch-site", "") in OWN_PAGES
        response = RedirectResponse(place, 303) if followed else _onward(place)
        response.set_cookie(self._keys.cookie, session, httponly=True, samesite="strict", path="/")
        response.headers["Cache-Control"] = "no-store"
        return response


def _onward(place: str) -> Response:
    to = escape(place, quote=True)
    return HTMLResponse(
        f'<!doctype html><meta http-equiv="refresh" content="0; url={to}"><title>lostflops</title>'
    )


def _page(refusal: Refusal) -> Response:
    text = f"<h1>{escape(refusal.message)}</h1><p>{escape(refusal.hint)}</p>"
    page = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>lostflops</title>{text}</html>'
    return HTMLResponse(page, refusal.status, {"Cache-Control": "no-store"})


def wants_compression(headers: Headers) -> bool:
    """Only where the page says that it is far away: on this machine it costs more than it saves."""
    return "x-compress" in headers and "gzip" in headers.get("accept-encoding", "")
