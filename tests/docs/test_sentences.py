"""What a user reads holds none of the phrases that readers stumbled over."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "lostflops"
# Each of them stood on a page once; the words beside it say the same at first reading.
RIDDLES = {
    r"of a mean step\b": "per step",
    r"\bpass(es)? idle\b": "is idle",
    r"\bcannot be told\b|\bcould not be told\b|\bnot told\b": "is not known, is not reported",
    r"\bnext to last\b": "late per collective",
    r"\badded up over those\b": "late per collective",
    r"\bcannot mend\b": "does not help",
    r"\bhas a window less\b": "is missing one window",
    r"take the kernels' place": "are counted instead of kernels",
    r"no operator that computes": "nothing computes",
    r"rows here do not tell": "was not recorded",
    r"costs? no time\b": "overlaps compute",
    r"\bnobody (knows|says|can tell)\b": "is not known",
    r"\bit has itself\b": "its command runs",
    r"\bround in a circle\b": "form a loop",
    r"(?<!here )\bis no (number|time|port|size|address|list|range|file|folder|object|trace)\b": "is not a",
}
PAGES = sorted(
    page
    for place in (ROOT, ROOT / "docs", ROOT / "examples", ROOT / "deploy")
    for page in (place.glob("*.md") if place == ROOT else place.rglob("*.md"))
    if page.name != "CHANGELOG.md"
)


def stumbles(text: str) -> list[str]:
    """The phrases of `text` that are among the riddles, each with what to write instead."""
    plain = re.sub(r"\s+", " ", text)
    return [
        f"'{found[0]}': write '{better}'"
        for riddle, better in RIDDLES.items()
        for found in re.finditer(riddle, plain)
    ]


def said(source: str, docstrings: bool) -> Iterator[str]:
    """The texts of a program that it prints; where they become help or pages, its docstrings too.

    What stands between the braces of an f-string is one word there.
    """
    nodes = [*ast.walk(ast.parse(source))]
    passed = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    if not docstrings:
        passed |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in passed:
            yield node.value


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_hold_no_riddles(page: Path) -> None:
    assert not stumbles(page.read_text())


def test_the_program_prints_no_riddles() -> None:
    found = {
        f"{file.relative_to(SOURCE)}: {stumble}"
        for file in SOURCE.rglob("*.py")
        for text in said(file.read_text(), bool({"cli", "recipes"} & set(file.parts)))
        for stumble in stumbles(text)
    }
    assert not sorted(found)


def test_a_riddle_is_found_across_lines_and_inside_a_format() -> None:
    assert stumbles("47.6 ms of a mean\nstep pass idle") == [
        "'of a mean step': write 'per step'",
        "'pass idle': write 'is idle'",
    ]
    (text,) = said("f'{ms} of a mean ' f'step'", docstrings=True)
    assert stumbles(text) == ["'of a mean step': write 'per step'"]
