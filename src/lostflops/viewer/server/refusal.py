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


def told(error: Exception) -> Refusal:
    """What a browser gets where a run could not be read."""
    if isinstance(error, LostflopsError):
        return Refusal(422, "cannot-read", error.message, error.hint)
    if isinstance(error, OSError):
        why = error.strerror or type(error).__name__
        return Refusal(
            422, "cannot-read", f"This run cannot be read: {why}.", "Check its folder and its disk."
        )
    return Refusal(
        500, "cannot-read", f"This run cannot be shown: {type(error).__name__}.",
        "Start `lostflops view` again; if that does not help, please report it.",
    )  # fmt: skip
