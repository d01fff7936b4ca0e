"""Builds the documentation as a site: `make site`. The Markdown is what lies in the repository, unchanged.

Pages link to files all over the repository, so a copy of all that they link to is what MkDocs gets, in the
same folders. MkDocs checks every link and anchor, and fails on one that leads nowhere.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
STAGED, SITE = ROOT / "build" / "site-pages", ROOT / "build" / "site"
START = (
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md", "examples/README.md",
)  # fmt: skip
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
SOURCE = re.compile(r"<(?:img|source)[^>]+src(?:set)?=\"(?!https?:)([^\"]+)\"")


def pages() -> list[Path]:
    """Every page, from the root of the repository."""
    docs = sorted(page.relative_to(ROOT) for page in (ROOT / "docs").rglob("*.md"))
    return [*map(Path, START), *docs]


def linked(page: Path) -> Iterator[Path]:
    """The files of the repository that a page links to, or whose pictures it shows."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    for target in (*LINK.findall(text), *SOURCE.findall(text)):
        there = (ROOT / page.parent / target).resolve()
        if there.is_relative_to(ROOT) and there.is_file():
            yield there.relative_to(ROOT)


def to_stage() -> list[Path]:
    """The pages and what they link to."""
    known = pages()
    return sorted({*known, *(target for page in known for target in linked(page))})


def staged() -> list[Path]:
    """Copy them, and say what was copied."""
    shutil.rmtree(STAGED, ignore_errors=True)
    files = to_stage()
    for file in files:
        target = STAGED / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, target)
    return files


def main() -> int:
    print(f"{len(staged())} files")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(ROOT / "mkdocs.yml")]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
