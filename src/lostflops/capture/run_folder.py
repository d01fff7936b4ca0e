"""The folder of a recording, as it is before the job starts.

    RUN/
      recording.jsonl                     what was asked, and how the command ended
      boot/                               what goes into the job, on PYTHONPATH
      node-0000/                          one per node
        steps-00000-a0.jsonl              rank 0, attempt 0: its identity, steps and windows
        window-00000-a0-w000.pt.trace.json.gz
      lostflops.log                       lostflops' own messages

Each file has one writer. What grows is only appended to; the rest appears under another name and is renamed.
Nothing of lostflops' own ends in `.json`, because that is what traces are found by.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from lostflops.capture.plan import KEEP_FREE, Plan
from lostflops.errors import BadOption, CannotWrite, OutputExists
from lostflops.version import __version__

PAYLOAD = Path(__file__).parent / "boot"
RECORDING = "recording.jsonl"
REMOVED = "<removed>"
SECRET_NAME = re.compile(r"(?i)(token|key|secret|passw(or)?d|credential|auth)")
SECRET_VALUE = re.compile(
    r"\b(hf_|sk-|ghp_|github_pat_|AKIA|xox[abp]-)[\w-]{8,}|(?<=://)[^/@\s]+:[^/@\s]+(?=@)"
)


def write(plan: Plan) -> None:
    """Make the folder. Raises OutputExists or CannotWrite."""
    run = plan.run
    if os.pathsep in str(run):
        raise BadOption(
            f"'{run}' cannot be on PYTHONPATH: it holds a '{os.pathsep}'.", "choose another --output."
        )
    if run.exists() and (not run.is_dir() or any(run.iterdir())):
        raise OutputExists(run)
    first, last = plan.steps
    settings = {
        "first": first,
        "last": last,
        "ranks": plan.ranks,
        **{kind: kind in plan.what for kind in ("cuda", "shapes", "python", "memory")},
        "grow": 0,
        "keep_free": KEEP_FREE,
    }
    try:
        run.mkdir(parents=True, exist_ok=True)
        shutil.copytree(PAYLOAD, plan.boot, ignore=shutil.ignore_patterns("__pycache__"))
        (plan.boot / "settings.jsonl").write_text(json.dumps(settings) + "\n")
        note(
            plan, kind="start", lostflops=__version__, command=without_secrets(plan.command), steps=plan.steps
        )
    except OSError as error:
        raise CannotWrite(run, error) from error


def note(plan: Plan, **fields: object) -> None:
    """Append a line to the recording's own notes."""
    with (plan.run / RECORDING).open("a") as file:
        file.write(json.dumps({**fields, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}) + "\n")


def without_secrets(command: Sequence[str]) -> list[str]:
    """The command line with what looks like a secret taken out."""
    kept: list[str] = []
    hide = False
    for word in command:
        name, equals, value = word.partition("=")
        if hide and not word.startswith("-"):
            kept.append(REMOVED)
        elif equals and value and SECRET_NAME.search(name):
            kept.append(f"{name}={REMOVED}")
        else:
            kept.append(SECRET_VALUE.sub(REMOVED, word))
        hide = word.startswith("-") and not equals and bool(SECRET_NAME.search(word))
    return kept
