"""List the recipes, each with its question."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    pass


def run(given: Namespace) -> None:
    from lostflops.recipes import recipes

    width = max(map(len, recipes()), default=0)
    for name, known in recipes().items():
        print(f"{name:{width}}  {known.question}")
