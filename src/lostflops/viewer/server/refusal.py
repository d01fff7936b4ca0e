"""A request that is not answered, and why: what the browser gets instead."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from lostflops.errors import LostflopsError


class Refusal(Exception):
    """`kind` is for programs; `docs/viewer-protocol.md` lists them."""

    def __init__(self, status: int, kind: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.hint = hint


def answered(refusal: Refusal) -> Response:
    error = {"kind": refusal.kind, "message": refusal.message, "hint": refusal.hint}
    return JSONResponse({"error": error}, refusal.status, {"Cache-Control": "no-store"})


def bad_request(message: str, hint: str = "") -> Refusal:
    return Refusal(400, "bad-request", message, hint)


def unreadable(error: LostflopsError) -> Refusal:
    return Refusal(422, "cannot-read", error.message, error.hint)
