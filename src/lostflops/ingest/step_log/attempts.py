"""Which files of a recorded job are of its last attempt: a restarted job writes each rank's windows again."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from lostflops import run_folder

WINDOW = re.compile(run_folder.A_WINDOW)


def last(sources: Sequence[Path], given: Collection[Path]) -> tuple[list[Path], list[str]]:
    """The sources without those of earlier attempts of the same run, and what to say of that.

    Steps of two attempts are no sequence, and nothing of the one waits for the other. What was named by
    itself stays.
    """
    attempts = {source: int(found["attempt"]) for source in sources if (found := WINDOW.search(source.name))}
    latest: dict[Path, int] = {}
    for source, attempt in attempts.items():
        run = source.parents[1]  # RUN/node-0000/window-…
        latest[run] = max(attempt, latest.get(run, 0))
    earlier = {s for s, attempt in attempts.items() if attempt < latest[s.parents[1]] and s not in given}
    kept = [source for source in sources if source not in earlier]
    if not earlier:
        return kept, []
    many = f"{len(earlier)} file{'s' * (len(earlier) != 1)}"
    return kept, [f"the job was started again: {many} of earlier attempts left out, unless they are named"]
