"""What the pages on checkpointing, LoRA, optimizers and precision show is what their code prints."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs/optimize"
PAGES = ("checkpointing", "lora", "optimizer", "precision")
_BLOCK = re.compile(r"```(python|text)\n(.*?)```", re.DOTALL)
_NUMBER = re.compile(r"\d[\d,]*\.\d+")


def printed(page: str) -> list[tuple[str, str]]:
    """Of each python block that prints: what the page shows and what comes out now."""
    scope: dict[str, object] = {}
    blocks = _BLOCK.findall(page)
    found: list[tuple[str, str]] = []
    out = ""
    for number, (kind, text) in enumerate(blocks):
        if kind == "text":
            found.append((text, out))
            continue
        with contextlib.redirect_stdout(io.StringIO()) as stream, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(text, scope)
        out = stream.getvalue()
        assert not out or blocks[number + 1][0] == "text", "what is printed is shown"
    return found


def assert_alike(now: str, shown: str) -> None:
    """The same words and whole numbers; others may differ a little between processors."""
    assert _NUMBER.sub("#", now).split() == _NUMBER.sub("#", shown).split()
    for one, other in zip(_NUMBER.findall(now), _NUMBER.findall(shown), strict=True):
        here, there = float(one.replace(",", "")), float(other.replace(",", ""))
        assert abs(here - there) <= 0.02 * abs(there) + 0.25


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_what_its_code_prints(name: str) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for shown, now in printed((DOCS / f"{name}.md").read_text()):
            assert_alike(now, shown)
    finally:
        torch.set_num_threads(threads)
