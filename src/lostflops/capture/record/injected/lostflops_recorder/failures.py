"""Which ranks failed and how, as PyTorch tells the process that started them when that ends."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from . import log, run_folder
from .rank import identity


def note() -> None:
    """Write down what the exception that ends this process says of its ranks."""
    try:
        lines = list(_failed(getattr(sys, "last_value", None)))
        if not lines:
            return
        with open(os.path.join(log.RUN, run_folder.failures(identity())), "w") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    except Exception as error:
        log.fault("noting which ranks failed", error)


def _failed(error: Any) -> Iterator[dict[str, Any]]:
    """Rank, process and exit status (negative for a signal) of each, by the attributes of torchrun's
    ChildFailedError and of the exceptions of `torch.multiprocessing.spawn`."""
    failures: Any = getattr(error, "failures", None)
    if hasattr(failures, "items"):
        for rank, failure in failures.items():
            yield {"kind": run_folder.FAILED, "rank": rank, "pid": failure.pid, "status": failure.exitcode,
                   "time": failure.timestamp}  # fmt: skip
    elif hasattr(error, "error_index") and hasattr(error, "error_pid"):
        status = getattr(error, "exit_code", 1)
        yield {"kind": run_folder.FAILED, "rank": error.error_index, "pid": error.error_pid, "status": status}
