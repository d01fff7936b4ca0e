"""What a request asks for, read from its URL: numbers within limits, lanes by number, never a path."""

from __future__ import annotations

import re

import numpy as np
from starlette.requests import Request

from lostflops.errors import shown
from lostflops.intervals import Int

from .refusal import Refusal, bad_request

MOST_LANES = 4096
LONGEST_TEXT = 400
LARGEST = 1 << 53
SPAN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?\Z")
INTEGER = re.compile(r"-?\d{1,16}\Z")


def integer(
    request: Request, name: str, otherwise: int | None = None, least: int = -LARGEST, most: int = LARGEST
) -> int:
    """A whole number from the query or the path."""
    text = request.query_params.get(name, request.path_params.get(name))
    if text is None:
        if otherwise is None:
            raise bad_request(f"The parameter '{name}' is missing.")
        return otherwise
    if not INTEGER.match(text):
        raise bad_request(f"'{name}' is '{shown(text)}', which is no whole number.")
    value = int(text)
    if not least <= value <= most:
        raise bad_request(f"'{name}' is {value}; it must be from {least} to {most}.")
    return value


def text(request: Request, name: str) -> str:
    value = request.query_params.get(name, "")
    if not value or len(value) > LONGEST_TEXT:
        raise bad_request(f"'{name}' must hold 1 to {LONGEST_TEXT} characters.")
    return value


def numbers(request: Request, name: str, count: int, most: int = MOST_LANES) -> Int | None:
    """'0-63,70' as numbers below `count`, each once, in the order asked; None where nothing was named."""
    given = request.query_params.get(name)
    if given is None:
        return None
    found: dict[int, None] = {}
    for part in given.split(","):
        span = SPAN.match(part)
        if span is None:
            raise bad_request(f"'{name}' is '{shown(given)}', which does not name any.", "as in 0-63,70")
        first, last = int(span[1]), int(span[2] or span[1])
        if last < first or last >= count:
            raise bad_request(f"'{name}' names {shown(part)}; there are {count}, from 0 on.")
        if last - first >= most or len(found) + last - first >= most:
            raise bad_request(f"'{name}' names more than {most}.")
        found.update(dict.fromkeys(range(first, last + 1)))
    return np.array(list(found), np.int64)


def window(request: Request, zero: int, end: int) -> tuple[int, int]:
    """From when to when, cut at the run's own ends."""
    first, last = integer(request, "from", zero), integer(request, "to", end)
    if last < first:
        raise bad_request("'to' lies before 'from'.")
    return max(first, zero), min(max(last, zero), end)


def nothing(what: str) -> Refusal:
    return Refusal(404, "no-such-thing", what)
