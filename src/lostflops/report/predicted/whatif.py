"""What a change would gain, as text and as JSON: predictions beside how far the replay may be trusted."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lostflops.errors import shown
from lostflops.finding import percent
from lostflops.replay import edits
from lostflops.replay.critical_path import CriticalPath
from lostflops.replay.trust import Trust, whole_percent
from lostflops.replay.whatif import PredictedStep
from lostflops.session import Session
from lostflops.units import milliseconds

from . import critical_path

WIDEST = 110
MOST_STEPS = 24  # lines of the table of steps
PARTS = {
    "host": "calls and operators of the host",
    "opaque": "host time between operators and calls",
    "device": "kernels and copies",
    "transfer": "communication after the last rank came",
    "residual": "device time that no rule explains",
    "unexplained": "waits of the host for nothing known",
}


@dataclass(frozen=True)
class WhatIf:
    """The answers to some questions about one run."""

    trust: Trust
    predictions: tuple[PredictedStep, ...]
    path: CriticalPath | None = None  # of the unchanged run, where nothing was asked

    @classmethod
    def asked(cls, session: Session, typed: Sequence[str]) -> WhatIf:
        """Each of the texts is one question; edits with commas between them are made together."""
        asked = [edits.together(text) for text in typed]

        def replayed() -> WhatIf:
            replay = session.replay()
            path = None if asked else replay.critical_path
            return cls(replay.trust, tuple(replay.predicted(each) for each in asked), path)

        return session.small(replayed)

    def to_json(self) -> dict[str, Any]:
        """All of it, times in ns of a mean step."""
        trust = self.trust
        return {
            "replay": {
                "error": trust.error,
                "measured_ns": trust.measured_ns,
                "replayed_ns": trust.replayed_ns,
                "trusted": trust.trusted,
                "reason": trust.reason,
                "doubts": list(trust.doubts),
                "critical_path": {name: getattr(trust.path, name) for name in PARTS},
                "steps": trust.steps.to_dicts(),
                **({} if self.path is None else {"path": critical_path.to_json(self.path)}),
            },
            "edits": [
                {
                    "edit": p.edit,
                    "says": p.says,
                    "predicted_ns": p.predicted_ns,
                    "low_ns": p.low_ns,
                    "high_ns": p.high_ns,
                    "bound_ns": p.bound_ns,
                    "refused": p.refused,
                    "doubts": list(p.doubts),
                }
                for p in self.predictions
            ],
        }

    def __str__(self) -> str:
        text = io.StringIO()
        self.show(Console(file=text, width=WIDEST))
        return text.getvalue()

    def show(self, console: Console) -> None:
        """Print the answers, or without a question how the replay compares with the recording."""
        for line in trust_lines(self.trust):
            _line(console, line)
        if self.predictions:
            _show_predictions(self, console)
        else:
            _show_steps(self.trust, console)
            if self.path is not None and self.path.length:
                _show_path(self.path, console)


def _line(console: Console, text: str = "") -> None:
    console.print(Text(text), highlight=False)


def trust_lines(trust: Trust) -> Iterator[str]:
    """Sentences on how far the replay may be trusted, and what its critical path is made of."""
    measured, replayed = milliseconds(trust.measured_ns), milliseconds(trust.replayed_ns)
    if trust.trusted:
        yield (
            f"The replay is {100 * trust.error:.2f} % off at most: a mean step takes {measured}, and "
            f"{replayed} when replayed without the delays that no rule explains."
        )
    else:
        yield f"Nothing is predicted: {shown(trust.reason)}."
        if trust.measured_ns:
            yield f"A mean step takes {measured}, and {replayed} in a replay of what is known."
    path = [
        f"{whole_percent(getattr(trust.path, name))} {text}"
        for name, text in PARTS.items()
        if getattr(trust.path, name) >= 0.005
    ]
    if path:
        yield f"The critical path is {', '.join(path)}."
    for doubt in trust.doubts:
        yield f"Less sure, for {shown(doubt)}."


def _show_predictions(found: WhatIf, console: Console) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("what if")
    for heading in ("mean step", "gain", "between", "at most"):
        table.add_column(heading, justify="right", no_wrap=True)
    measured = found.trust.measured_ns
    answered = [p for p in found.predictions if p.predicted_ns is not None]
    for p in answered:
        assert p.predicted_ns is not None and p.low_ns is not None
        assert p.high_ns is not None and p.bound_ns is not None
        table.add_row(
            Text(shown(p.edit)),
            milliseconds(p.predicted_ns),
            gained(measured - p.predicted_ns, measured),
            f"{gained(measured - p.high_ns, measured)} and {gained(measured - p.low_ns, measured)}",
            gained(measured - p.bound_ns, measured),
        )
    if answered:
        _line(console)
        console.print(table, highlight=False)
        _line(console)
        _line(console, "Predicted by replay. Gains do not add up: ask for several edits as one, 'A,B'.")
    for p in found.predictions:
        for doubt in p.doubts:
            _line(console, f"{shown(p.edit)}: {shown(doubt)}.")
        if p.refused:
            _line(console, f"{shown(p.edit)}: not predicted: {shown(p.refused)}.")


def _show_path(path: CriticalPath, console: Console) -> None:
    _line(console)
    _line(console, critical_path.lead(path))
    for by, rows in critical_path.tables(path):
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(by, no_wrap=True, max_width=WIDEST // 3)
        for heading in critical_path.HEADINGS:
            table.add_column(heading, justify="right", no_wrap=True)
        for name, *amounts in rows:
            table.add_row(Text(name, overflow="ellipsis"), *amounts)
        _line(console)
        console.print(table, highlight=False)


def gained(ns: int, measured: int) -> str:
    """A gain as a share of the measured step, in text."""
    return percent(ns, measured) if measured and 2000 * abs(ns) >= measured else "0 %"


def _show_steps(trust: Trust, console: Console) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("rank", "step", "measured", "replayed", "differs by"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in trust.steps.head(MOST_STEPS).iter_rows(named=True):
        measured, replayed = row["measured"], row["replayed"]
        table.add_row(
            str(row["rank"]), str(row["step"]), milliseconds(measured), milliseconds(replayed),
            f"{100 * (replayed - measured) / measured:+.2f} %" if measured else "",
        )  # fmt: skip
    if trust.steps.height:
        _line(console)
        console.print(table, highlight=False)
    if trust.steps.height > MOST_STEPS:
        _line(console, f"… and {trust.steps.height - MOST_STEPS} more: --json F has all of them.")
