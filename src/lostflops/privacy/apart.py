"""Tables in Parquet and Arrow, cleaned in a process of their own: `python -m lostflops.privacy.apart`.

Polars aborts on some damaged ones, and takes along the process that reads them.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

from lostflops.errors import LostflopsError, NotATrace, revived
from lostflops.ingest.private import Settings
from lostflops.privacy.cleaner import Cleaner

Task = Literal["learn", "clean", "clean_export"]


class Apart:
    """The process, from the first task on; it is started again after one that ended it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._process = None

    def ask(self, task: Task, path: Path, target: Path | None, settings: Settings, cleaner: Cleaner) -> None:
        """Do a task of `columns` with this cleaner. Raises what it raises, and NotATrace where it ended."""
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        try:
            pickle.dump((task, path, target, settings, cleaner), process.stdin)
            process.stdin.flush()
            # What our own program answers: nothing from the recording is unpickled.
            answer: tuple[tuple[str, str, str] | None, Cleaner] = pickle.load(process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as end:
            self.__exit__()
            raise NotATrace(
                path,
                "reading it ended the process that did: a table is damaged, or memory ran out.",
                "make it again from what it was made of.",
            ) from end
        error, worked = answer
        if error is not None:
            raise revived(*error)
        vars(cleaner).update(vars(worked))

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lostflops.privacy.apart"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if os.environ.get("LOSTFLOPS_DEBUG") else subprocess.DEVNULL,
            )
        return self._process


def main() -> None:
    from lostflops.privacy import columns

    asked, answered = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            task, path, target, settings, cleaner = pickle.load(asked)
        except EOFError:
            return
        answer: tuple[Any, Any] = (None, cleaner)
        try:
            if task == "learn":
                columns.learn(path, settings, cleaner)
            elif task == "clean":
                columns.clean(path, target, settings, cleaner)
            else:
                columns.clean_export(path, target, settings, cleaner)
        except LostflopsError as error:
            answer = ((type(error).__name__, error.message, error.hint), None)
        pickle.dump(answer, answered)
        answered.flush()


if __name__ == "__main__":
    main()
