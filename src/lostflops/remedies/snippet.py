"""What to type: some lines of code, flags or JSON, and the versions of a package that take them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Version = tuple[int, ...]
Language = Literal["python", "json", "shell"]


@dataclass(frozen=True)
class Snippet:
    """Lines to type. In Python a line that begins with '-' goes and one with '+' comes, as in a diff.

    `since` and `until` are the versions between which it is written so: from one, and before the other.
    """

    language: Language
    text: str
    since: str = ""  # 'torch 2.9'
    until: str = ""
    title: str = ""  # what tells it from others beside it: 'or', 'with DDP'

    @property
    def is_diff(self) -> bool:
        return self.language == "python" and any(line[:1] in "+-" for line in self.text.splitlines() if line)

    @property
    def heading(self) -> str:
        """What stands above it: 'from torch 2.9', 'or'; empty where it is alone and all versions take it."""
        said = (
            self.title,
            f"from {self.since}" if self.since else "",
            f"before {self.until}" if self.until else "",
        )
        return ", ".join(filter(None, said))

    def taken_by(self, versions: Mapping[str, Version]) -> bool:
        """Whether what is installed takes it, as far as that is known."""
        for limit, is_first in ((self.since, True), (self.until, False)):
            package, _, number = limit.partition(" ")
            known = versions.get(package)
            if known is not None and (known >= version(number)) != is_first:
                return False
        return True


def python(*lines: str, since: str = "", until: str = "", title: str = "") -> Snippet:
    return Snippet("python", "\n".join(lines), since, until, title)


def config(*lines: str, since: str = "", until: str = "", title: str = "") -> Snippet:
    """Keys of a JSON file."""
    return Snippet("json", "\n".join(lines), since, until, title)


def shell(*lines: str, since: str = "", until: str = "", title: str = "") -> Snippet:
    """Flags of a command line, environment variables, or a command."""
    return Snippet("shell", "\n".join(lines), since, until, title)


def version(text: str) -> Version:
    return tuple(map(int, text.split(".")))
