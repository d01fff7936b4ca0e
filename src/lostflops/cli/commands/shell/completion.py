"""Let the shell complete commands, options and names of recipes.

Prints the lines that teach it to your shell. Put them where it reads them when it starts:

    bash   lostflops completion bash >> ~/.bashrc
    zsh    lostflops completion zsh >> ~/.zshrc          (after compinit)
    fish   lostflops completion fish > ~/.config/fish/completions/lostflops.fish
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from importlib import import_module

SHELLS = ("bash", "zsh", "fish")


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or fish")


def run(given: Namespace) -> None:
    from lostflops.errors import LostflopsError

    try:
        argcomplete = import_module("argcomplete")
    except ImportError as error:
        raise LostflopsError(
            "Completion needs the package argcomplete, which is not installed.", "`pip install argcomplete`."
        ) from error
    print(argcomplete.shellcode(["lostflops"], shell=given.shell))
