"""The page as it was printed, kept beside the run's tables: asked again, it is printed without computing it.

What was kept is printed only where computing would print the same: the same run and slice of it, by the same
lostflops and Rich, asked in the same words, for a terminal that shows as much. Where other packages add
recipes nothing is kept: what those compute may change without our noticing.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from argparse import Namespace
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

from lostflops import run_folder
from lostflops.cli.output import pages
from lostflops.store.answers import Answers
from lostflops.store.installation import entry_points

if TYPE_CHECKING:
    from lostflops.store.trace import Trace

PAGE = "first_page"
# From these Rich takes how wide a terminal is and which colours it has.
OF_THE_TERMINAL = (
    "COLUMNS", "LINES", "TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE",
    "JUPYTER_COLUMNS", "JUPYTER_LINES",
)  # fmt: skip
COLOUR = re.compile(r"\x1b\[[\d;]*m")


class PrintedPage:
    """The page of a run as these words, in this terminal, have it printed."""

    def __init__(self, trace: Trace, given: Namespace) -> None:
        # A notebook draws what a console prints in its own way.
        apart = entry_points("lostflops.recipes") or "IPython" in sys.modules
        self._answers = None if apart else Answers(trace)
        words = {name: word for name, word in vars(given).items() if name not in pages.names()}
        self._asked = {
            "words": repr(sorted(words.items())),  # but what is written beside, which changes nothing here
            "started by": [_content(Path(path, run_folder.RECORDING)) for path in given.paths],
            "rich": _written("rich"),
            "terminal": _terminal(),
        }

    def read(self) -> str | None:
        """What was printed, or None where that was not kept."""
        text = None if self._answers is None else self._answers.read_text(PAGE, self._asked)
        return text if text is not None and _is_harmless(text) else None

    @contextmanager
    def keeping(self) -> Generator[TextIO]:
        """Standard output. What is printed to it is kept, if the block ends without an error."""
        stream = _Overheard(sys.stdout)
        yield cast("TextIO", stream)
        text = "".join(stream.heard)
        if self._answers is not None and _is_harmless(text):
            self._answers.keep_text(PAGE, self._asked, text)


class _Overheard:
    """A stream, and what was written to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.heard: list[str] = []

    def write(self, text: str) -> int:
        written = self._stream.write(text)
        self.heard.append(text)
        return written

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def _is_harmless(text: str) -> bool:
    """Whether a terminal is only told colours and lines: a run may come from somebody else."""
    return COLOUR.sub("", text).replace("\n", "").isprintable()


def _written(package: str) -> str:
    """Where a package lies, and when it was installed. Its version would take longer to find out."""
    found = find_spec(package)
    file = "" if found is None else found.origin or ""
    with suppress(OSError):
        return f"{file}|{Path(file).stat().st_mtime_ns}"
    return file


def _content(file: Path) -> str:
    """A digest of a file that may be there."""
    with suppress(OSError):
        return hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
    return ""


def _terminal() -> list[object]:
    said: list[object] = [sys.stdout.isatty(), sys.stdout.encoding, *map(os.environ.get, OF_THE_TERMINAL)]
    for stream in range(3):
        with suppress(OSError, ValueError):
            return [*said, os.get_terminal_size(stream).columns]
    return said
