"""Makes text from outside safe to show, and machine names readable."""

from __future__ import annotations

import re
import unicodedata


def one_line(text: str, at_most: int = 0) -> str:
    """`text` with every character that could move the cursor, colour the screen or reorder the line escaped.

    Longer text than `at_most` loses its middle, since names differ at both ends.
    """
    if at_most and len(text) > 2 * at_most:
        text = text[:at_most] + text[-at_most:]
    safe = "".join(c if c.isprintable() else _escaped(c) for c in text)
    if at_most and len(safe) > at_most:
        head = (at_most - 1) * 2 // 3
        safe = f"{safe[:head]}…{safe[len(safe) - (at_most - 1 - head) :]}"
    return safe


def _escaped(character: str) -> str:
    # Unicode's spaces are not printable to Python; a plain one says the same.
    return " " if unicodedata.category(character) == "Zs" else ascii(character)[1:-1]


def as_command(recipe: str) -> str:
    """A recipe's name as the command line spells it."""
    return recipe.replace("_", "-")


def to_record(text: str, command: str) -> list[str]:
    """The `lostflops record` lines in a text, with the job's own command, where that is known."""
    if not command:
        return []
    found = re.findall(r"`(lostflops record [^`]*-- )COMMAND`", text)
    return [one_line(f"{start}{command}") for start in found]
