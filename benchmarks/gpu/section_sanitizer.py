"""Each technique under PyTorch's CUDA stream sanitizer, which reports accesses that no event orders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from page import table
from setting import Setting

TITLE = "Races between streams"
TECHNIQUES = ("offload", "checkpoint and offload", "stream_frozen")


def rows(setting: Setting) -> list[dict[str, Any]]:
    if setting.threads:  # a process on a CPU has no streams to look at; the tests simulate them
        return [{"technique": name, "races": None, "failed": "needs a GPU"} for name in TECHNIQUES]
    found: list[dict[str, Any]] = []
    for name in TECHNIQUES:
        found.append(_watched(name))
        setting.save(found)
    return found


def _watched(technique: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, __file__, technique],
        env={**os.environ, "TORCH_CUDA_SANITIZER": "1", "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    races = done.stderr.count("CSAN detected a possible data race")
    last = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}, without a word"])[-1]
    failed = None if done.returncode == 0 or races else last[:300]
    return {"technique": technique, "races": races, "failed": failed}


def _steps(technique: str) -> None:
    from contextlib import ExitStack

    from setting import trained

    from lostflops import optimize

    setting = Setting("tiny", (256,), 10, False)
    model = setting.model()
    with ExitStack() as undo:
        if technique == "checkpoint and offload":
            undo.enter_context(optimize.checkpoint(model, keep=()))
        if technique == "stream_frozen":
            model.model.requires_grad_(False)
            undo.enter_context(optimize.stream_frozen(model))
        else:
            undo.enter_context(optimize.offload(model, plan="everything", threshold=256))
        step = trained(model, setting.batch(256, model.config.vocab_size))
        for _ in range(4):
            step()
        setting.synchronize()


def page(rows: list[dict[str, Any]]) -> str:
    return table(("", "races", "failed"), [(r["technique"], r["races"], r["failed"] or "") for r in rows])


if __name__ == "__main__":
    _steps(sys.argv[1])
