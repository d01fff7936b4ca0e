"""Runs the user's command when a job got slower, hangs, or its loss is not a number."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from lostflops.errors import shown
from lostflops.watch.job import Happened

AGAIN_AFTER = 600.0  # s; one slow rank must not start one command after another
KINDS = ("rank", "job", "stall", "loss")


@dataclass
class Alarm:
    """One command at a time, and none for `AGAIN_AFTER` seconds after the last was started."""

    command: str
    run: Path
    process: subprocess.Popen[bytes] | None = None
    output: IO[bytes] | None = None
    started: float = float("-inf")

    def tell(self, news: Sequence[Happened], now: float | None = None) -> str | None:
        """Start the command if some of the news is bad; what there is to say of that."""
        now = time.monotonic() if now is None else now
        bad = [one for one in news if one.bad and one.kind in KINDS]
        if not bad or self.process is not None or now - self.started < AGAIN_AFTER:
            return None
        self.started = now
        # A rank says more than the job, which its slowness made slower.
        first = min(bad, key=lambda one: KINDS.index(one.kind))
        told = {
            "RUN": str(self.run),
            "WHAT": first.kind,
            "RANK": "" if first.rank is None else str(first.rank),
            "NODE": first.node,
            "STEP": "" if first.step is None else str(first.step),
            "CHANGE": f"{first.ratio:.4f}",
            "TEXT": first.text,
        }
        self.output = tempfile.TemporaryFile()  # noqa: SIM115  it is read when the command has ended
        try:
            self.process = subprocess.Popen(
                self.command, shell=True, stdin=subprocess.DEVNULL, stdout=self.output,
                stderr=subprocess.STDOUT, start_new_session=True,
                env=os.environ | {f"LOSTFLOPS_{name}": value for name, value in told.items()},
            )  # fmt: skip
        except OSError as error:
            return f"`{shown(self.command)}` could not be started: {error.strerror}"
        return f"started `{shown(self.command)}`"

    def ended(self, wait: bool = False) -> str | None:
        """What to say of a command that has ended since; `wait` for one that runs."""
        if self.process is None:
            return None
        if wait:
            self.process.wait()
        status = self.process.poll()
        if status is None:
            return None
        last = ""
        if self.output is not None:
            self.output.seek(0)
            lines = self.output.read()[-4096:].decode(errors="replace").strip().splitlines()
            last = f": {shown(lines[-1])}" if lines else ""
            self.output.close()
        self.process = None
        return f"`{shown(self.command)}` ended with status {status}{last}"

    def stop(self) -> None:
        """End a command that still runs, with all that it started."""
        if self.process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGTERM)
