"""JSON from a trace that a terminal does not act upon."""

from __future__ import annotations

import re


def printable_json(text: bytes) -> bytes:
    """JSON in which what a terminal could act upon is escaped; what it says is the same."""
    return re.sub(
        r"[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]",
        lambda found: f"\\u{ord(found[0]):04x}",
        text.decode(),
    ).encode()
