"""A process that reads some of a job's files: `python -m lostflops.ingest.worker`.

It takes one JSON line per file on standard input and answers each with lines of progress and one of result,
so that a job's ranks are read on all cores from any program, a notebook included, without importing that
program again.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from lostflops.errors import LostflopsError
from lostflops.ingest import formats, freed_memory
from lostflops.ingest.part import Part
from lostflops.store.at_once import at_once
from lostflops.store.trace import storing


class Task(msgspec.Struct):
    path: str
    folder: str
    salvage: bool
    form: str  # the name of its format


class Reply(msgspec.Struct, omit_defaults=True):
    """Progress while `parts` and `error` are both absent; then one of them."""

    progress: float = 0.0
    parts: list[Part] | None = None
    error: tuple[str, str, str] | None = None  # its class, message and hint


def main() -> None:
    freed_memory.process_is_ours()
    encoder = msgspec.json.Encoder()

    def say(reply: Reply) -> None:
        sys.stdout.buffer.write(encoder.encode(reply) + b"\n")
        sys.stdout.buffer.flush()

    for line in sys.stdin.buffer:
        task = msgspec.json.decode(line, type=Task)
        told = 0.0

        def progress(share: float) -> None:
            nonlocal told
            if share - told >= 0.05:
                told = share
                say(Reply(progress=share))

        try:
            folder = Path(task.folder)
            with storing(folder, folder):
                asked = formats.Reading(Path(task.path), folder, task.salvage, progress=progress)
                read = formats.named(task.form).read
                # Reading a rank takes hundreds of small queries, of which none waits for another thread.
                parts = at_once(lambda read=read, asked=asked: read(asked))
        except LostflopsError as error:
            say(Reply(error=(type(error).__name__, error.message, error.hint)))
        else:
            say(Reply(parts=parts))


if __name__ == "__main__":
    main()
