"""List what in a recording identifies people or machines.

Reads a trace, an export, or a folder of them. Counts tokens, passwords, environment values, names of
machines and people, folders and addresses, file by file. `--show` prints them.
`lostflops scrub` removes them.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

MOST = 20  # values of a kind that --show prints


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("paths", metavar="PATH", nargs="+", type=Path, help="a trace, an export, or a folder")
    parser.add_argument(
        "--show", action="store_true", help="also print what was found; of secrets, only how they begin"
    )


def run(given: Namespace) -> None:
    from lostflops.errors import as_argument, shown
    from lostflops.privacy.cleaner import ENVIRONMENT, OUTPUT, SECRETS, Cleaner
    from lostflops.privacy.recording import inspected

    clean = True
    for path in given.paths:
        for looked in inspected(path, Cleaner()):
            if not looked.found and not looked.why_not:
                continue
            clean = False
            print(shown(looked.name))
            if looked.why_not:
                print(f"  not read  {looked.why_not}")
            for kind, (times, different) in looked.found.items():
                many = f"{times:,} times" if times != 1 else "once"
                print(f"  {kind:<15}  {many}" + (f", {different:,} different" if times > 1 else ""))
                if given.show:
                    hidden = kind in (SECRETS, ENVIRONMENT, OUTPUT)
                    for value in looked.values[kind][:MOST]:
                        print(f"    {shown(value[:4]) + '…' if hidden else shown(value)}")
                    if different > MOST:
                        print(f"    and {different - MOST:,} more")
    which = as_argument(given.paths[0]) if len(given.paths) == 1 else "PATH"
    print("found nothing private" if clean else f"next: lostflops scrub {which} CLEAN")
