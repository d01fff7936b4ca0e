"""Where a workload writes what is true of its run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def parser(text: str | None) -> argparse.ArgumentParser:
    """A parser with the option `--truth`, a file to which a line is appended."""
    made = argparse.ArgumentParser(description=(text or "").partition("\n")[0])
    made.add_argument("--truth", type=Path)
    return made


def say(given: argparse.Namespace, truth: Mapping[str, Any]) -> None:
    """Append what is true, or print it where no file was given."""
    options = {name: str(value) for name, value in vars(given).items() if name != "truth"}
    line = json.dumps({"options": options, "python": sys.version.split()[0], **truth})
    if given.truth is None:
        print(line)
        return
    with given.truth.open("a") as file:
        file.write(line + "\n")
