"""One training under a framework's callback: its remedies, its steps, and the report of both."""

from __future__ import annotations

import json
import logging
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from lostflops.capture.record.injected.lostflops_recorder.rank import identify
from lostflops.integrations.remedies import Remedies
from lostflops.integrations.steps import Steps


class TrainingRun:
    """From `begin` to `end`, once. `end` is always safe to call, and does nothing the second time."""

    def __init__(self, framework: str, output: str | Path | None, given: Mapping[str, Any]) -> None:
        self.remedies = Remedies(given)
        self.framework = framework
        self.output = None if output is None else Path(output)
        self.steps: Steps | None = None
        self.loader: dict[str, Any] | None = None  # what tune_loader found
        self.report: dict[str, Any] | None = None

    def begin(self, model: Any) -> Steps:
        """Turn the remedies on; Refused leaves the model as it was."""
        self.remedies.enter(model)
        try:
            self.steps = Steps(self.output)
        except BaseException:
            self.remedies.leave()
            raise
        return self.steps

    def end(self, error: BaseException | None = None) -> dict[str, Any] | None:
        """Turn them off and write the report, which is returned the first time only."""
        if self.steps is None:
            return None
        steps, self.steps = self.steps, None
        try:
            taken = steps.stop()
        finally:
            reports = self.remedies.leave()
        self.report = {
            "framework": self.framework,
            "framework_version": version(self.framework),
            "rank": identify().rank,
            "python": platform.python_version(),
            "failed": None if error is None else f"{type(error).__name__}: {error}",
            "steps": taken,
            "remedies": {
                name: {"arguments": {key: _readable(value) for key, value in arguments.items()},
                       "report": reports.get(name, self.loader if name == "tune_loader" else None)}
                for name, arguments in self.remedies.on.items()
            },
        }  # fmt: skip
        self._write(self.report)
        return self.report

    def numbers(self) -> dict[str, float]:
        """What a framework's metrics can hold."""
        taken: dict[str, Any] = self.report["steps"] if self.report else {}
        return {
            f"lostflops/{name}": value for name, value in taken.items() if isinstance(value, (int, float))
        }

    def _write(self, report: dict[str, Any]) -> None:
        if self.output is None:
            return
        # Not .json: that is what traces are found by.
        path = self.output / "lostflops" / f"report-{report['rank']:05d}.jsonl"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(json.dumps(report, default=str) + "\n")
        except OSError as error:  # a full disk is no reason to lose the training
            logging.getLogger("lostflops").warning("the report could not be written: %s", error)


def said(report: Mapping[str, Any]) -> str:
    """A report in a line, for a framework's log."""
    taken = report["steps"]
    text = f"lostflops: {taken['steps']} steps"
    if "median_step_seconds" in taken:
        text += f", median {1000 * taken['median_step_seconds']:.1f} ms"
        text += f", {taken['data_wait_share']:.0%} waiting for data"
    if "tokens_per_second" in taken:
        text += f", {taken['tokens_per_second']:,.0f} tokens/s"
    return text + (f"; remedies: {', '.join(report['remedies'])}" if report["remedies"] else "")


def version(package: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def missing(module: str, package: str, error: ImportError) -> ImportError:
    """For a framework that is not installed."""
    return ImportError(
        f"{module} needs {package}, which is not installed ({error})\nHint: pip install {package}"
    )


def replaced(owner: Any, name: str, ours: Any) -> Callable[[], None]:
    """Give one object a method of ours; what takes it away again."""
    held: dict[str, Any] = owner.__dict__
    before = held.get(name)
    setattr(owner, name, ours)

    def undo() -> None:
        if held.get(name) is not ours:
            return  # somebody wrapped ours, and it only calls on
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)

    return undo


def _readable(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, type(None))) else repr(value)
