"""Copy a recording without names, folders, addresses and secrets.

Cleans a PyTorch profiler trace, an Nsight Systems export (.sqlite, parquetdir, arrowdir) or a folder of
recordings. Times, sizes and counts stay as they are, so `lostflops why` says the same of the copy. The
recording itself is not changed.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    parser.add_argument("path", metavar="PATH", type=Path, help="a trace, an export, or a folder")
    parser.add_argument("clean", metavar="CLEAN", type=Path, nargs="?", help="the file or folder to make")
    parser.add_argument("--output", metavar="CLEAN", type=Path, help="the same, as a flag")
    parser.add_argument(
        "--keep",
        metavar="LIST",
        default="",
        help="kinds to leave in, as in hosts,paths; `lostflops inspect` lists the kinds",
    )
    parser.add_argument(
        "--also",
        metavar="WORD",
        action="append",
        default=[],
        help="a word to remove everywhere, such as the name of a project (may be repeated)",
    )


def run(given: Namespace) -> None:
    from lostflops.errors import BadOption, shown
    from lostflops.privacy.cleaner import Cleaner
    from lostflops.privacy.recording import kinds, scrubbed

    if (given.clean is None) == (given.output is None):
        raise BadOption(
            "`scrub` makes one clean copy.", "write `lostflops scrub RUN CLEAN`; CLEAN must not exist yet."
        )
    output = given.clean or given.output
    cleaner = Cleaner(keep=kinds(given.keep), also=[word for word in given.also if word])
    left_out = scrubbed(given.path, output, cleaner)
    counted = [f"{kind} {counter.total():,}" for kind, counter in cleaner.found.items() if counter]
    print(f"clean copy -> {shown(output)}  (removed: {', '.join(counted) or 'nothing'})")
    for looked in left_out:
        if not looked.form.ours:
            print(f"left out {shown(looked.name)}: {looked.why_not}")
