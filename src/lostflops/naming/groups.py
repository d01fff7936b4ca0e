"""What the name of a process group means: what it is called, and the ranks in it."""

from __future__ import annotations

import re

_LISTED = re.compile(r" ?(\[[0-9, .]*\])$")


def group_apart(group: str | None) -> tuple[str, str]:
    """What a group is called, and its ranks as they are listed behind that; empty what is not there.

    >>> group_apart("tp 0 [0, 1]"), group_apart("7"), group_apart(None)
    (('tp 0', '[0, 1]'), ('7', ''), ('', ''))
    """
    text = group or ""
    found = _LISTED.search(text)
    return (text, "") if found is None else (text[: found.start()], found[1])
