"""lostflops finds where your GPU hours go, what to change, and proves that it helped.

import lostflops

trace = lostflops.open("my_traces/")          # files, folders, globs, or an imported run
page = lostflops.why(trace)                   # the first page: ledger, findings, what was skipped
for finding in page.findings:
    print(finding.claim, finding.next)
gaps = lostflops.ask(trace, "gpu_gaps")       # any recipe's table, as a Polars frame
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lostflops.errors import LostflopsError
from lostflops.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import polars as pl

    from lostflops.report.page import Page
    from lostflops.trace import Trace

__all__ = ["LostflopsError", "__version__", "ask", "open", "why"]


# Polars and the readers are imported when they are first needed, so that `import lostflops` costs nothing.
def open(
    paths: str | Path | Sequence[str | Path],
    *,
    salvage: bool = False,
    allow_missing_ranks: bool = False,
) -> Trace:
    """The tables of the job whose traces lie at `paths`.

    Raises a LostflopsError that says what to do when they cannot be read.
    """
    from lostflops import job

    return job.open(paths, salvage=salvage, allow_missing_ranks=allow_missing_ranks)


def why(trace: Trace) -> Page:
    """The first page of a run: where each step's time went, findings by size, and what could not be told."""
    from lostflops.recipe import Session
    from lostflops.report.page import page

    return page(trace, Session(trace))


def ask(trace: Trace, recipe: str, **options: Any) -> pl.DataFrame:
    """One recipe's table. Times are integer nanoseconds on the run's clock.

    Raises NoSuchRecipe or BadOption for what does not exist, and CannotAnswer when the trace lacks something
    the recipe needs.
    """
    from lostflops.errors import CannotAnswer
    from lostflops.recipe import Session, Skipped

    answer = Session(trace).run(recipe, **options)
    if isinstance(answer, Skipped):
        raise CannotAnswer(answer.recipe, answer.reason)
    return answer.table
