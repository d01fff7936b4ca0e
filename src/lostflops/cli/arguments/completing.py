"""Answers a shell that asks how a command line could go on; argcomplete speaks with it."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from importlib import import_module

from lostflops.errors import LostflopsError


def complete(parser: Callable[[Sequence[str]], ArgumentParser]) -> None:
    """Print what could be typed next and end the process; do nothing where argcomplete is not installed."""
    try:
        argcomplete = import_module("argcomplete")
    except ImportError:
        return
    line = os.environ.get("COMP_LINE", "")
    typed = line.split()[1:]
    if len(typed) == 1 and not line[-1:].isspace():  # the command's name may go on
        typed = []
    try:
        known = parser(typed)
    except LostflopsError:  # the name of a recipe is only half there
        known = parser(())
    argcomplete.autocomplete(known, always_complete_options="long")
