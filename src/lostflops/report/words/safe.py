"""Makes text from outside safe to show, and machine names readable."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from lostflops.errors import as_argument


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


def typed(paths: Sequence[str], steps: tuple[int, int] | None, flags: Sequence[str] = ()) -> str:
    """What to type after a command's name to ask about the same steps of the same job, for a shell."""
    words = [as_argument(path) for path in paths]
    words += flags
    if steps:
        words += ["--steps", str(steps[0]) if steps[0] == steps[1] else f"{steps[0]}-{steps[1]}"]
    return " ".join(words)


def advice(text: str, paths: str, command: str = "") -> str:
    """Advice with the commands in it complete, so that they work when pasted.

    A command between backticks gets `paths` in the place of PATH, or at its end where it names none; and
    `command`, where it is known, in the place of COMMAND.
    """

    def complete(match: re.Match[str]) -> str:
        verb, rest = match.groups()
        if re.search(r"\bPATH\b", rest):
            rest = re.sub(r"\bPATH\b", lambda _: paths, rest)
        elif verb == "recipe":
            rest = f"{rest} {paths}"
        if command and "`" not in command and rest.endswith("-- COMMAND"):
            rest = rest.removesuffix("COMMAND") + command
        return f"`lostflops {verb} {rest}`"

    return re.sub(r"`lostflops (\w+) ([^`]*)`", complete, text)
