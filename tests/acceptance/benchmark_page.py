"""The page of the benchmarks, into which commands write their tables."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "benchmarks" / "README.md"


def put(section: str, lines: Iterable[str]) -> None:
    """Put the lines between the marks of a section, in place of what stands there."""
    begin, end = f"<!-- generated: {section} -->", "<!-- end -->"
    before, mark, rest = README.read_text().partition(begin)
    assert mark, f"{README.name} has no mark for {section}"
    text = "\n".join(lines)
    README.write_text(f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}")
