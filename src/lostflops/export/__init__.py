"""Writes a run, or a part of it, in the formats of other tools: one file or package each in `formats`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from lostflops.errors import BadOption
from lostflops.finding import Finding
from lostflops.store.trace import Trace

from .asked import Exported as Exported
from .asked import ExportRequest as ExportRequest
from .formats import known
from .selection import selected


def export(
    trace: Trace,
    to: str,
    output: Path,
    *,
    steps: tuple[int, int] | None = None,
    ranks: frozenset[int] | None = None,
    window: tuple[int, int] | None = None,
    bare: bool = False,
    table: str | None = None,
    weight: str = "host",
    findings: Sequence[Finding] = (),
    progress: Callable[[str, float], None] | None = None,
) -> Exported:
    """Write a part of a run in the format `to`. `window` is in ns on the run's clock. A flame graph's
    `weight` is 'host', 'device' or 'exposed'.

    Raises BadOption, NoSuchStep, NothingExported or CannotWrite; then nothing was written.
    """
    form = known(to)
    if table is not None and not form.TABLE:
        raise BadOption(
            f"'{to}' holds a whole run, not one table.", "write the table as parquet, arrow or csv."
        )
    if weight != "host" and not form.STACKS:
        raise BadOption(
            f"'{to}' weights nothing by {weight} time.", "write the stacks as speedscope or folded."
        )
    asked = ExportRequest(
        selected(trace, steps=steps, ranks=ranks, window=window), bare, findings, table, weight
    )
    if progress:
        asked.tell = progress
    with trace.reading():
        return form.write(asked, output)
