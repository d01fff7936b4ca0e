"""lostflops finds where your GPU hours go, what to change, and proves that it helped.

import lostflops

trace = lostflops.open("my_traces/")          # files, folders, globs, or an imported run
page = lostflops.why(trace)                   # the first page: ledger and findings
print(page)                                   # as `lostflops why` prints it
for finding in page.findings:
    print(finding.claim, finding.next)
gaps = lostflops.ask(trace, "gpu_gaps")       # any recipe's table, as a Polars frame
print(lostflops.whatif(trace, "loader=0ms"))  # what a change would gain, by replay

@lostflops.annotate                           # in training code: names for what stands in the trace
def tokenise(texts): ...

with lostflops.range("evaluate"): ...
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from lostflops.errors import LostflopsError
from lostflops.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import polars as pl

    from lostflops.capture.record.injected.lostflops_recorder.marks.mark import Range, annotate
    from lostflops.report.notebook import ShownPage
    from lostflops.report.whatif import WhatIf
    from lostflops.store.trace import Trace

if TYPE_CHECKING:
    range = Range

# Not `open` and `range`: `from lostflops import *` would take Python's own away.
__all__ = ["LostflopsError", "__version__", "annotate", "ask", "whatif", "why"]


def __getattr__(name: str) -> Any:
    """Marks for training code: they need no PyTorch and cost nothing while nothing records."""
    if name in ("annotate", "range"):
        from lostflops.capture.record.injected.lostflops_recorder.marks import mark

        return mark.annotate if name == "annotate" else mark.Range
    raise AttributeError(f"module 'lostflops' has no attribute '{name}'")


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
    from lostflops.ingest import job

    trace = job.open(paths, salvage=salvage, allow_missing_ranks=allow_missing_ranks)
    trace.given = tuple(map(str, [paths] if isinstance(paths, (str, os.PathLike)) else paths))
    return trace


def why(run: Trace | str | Path | Sequence[str | Path]) -> ShownPage:
    """The first page of a run, opened or named by its paths: where each step's time went, and the findings.

    `print(lostflops.why(...))` prints it as `lostflops why` does, and a notebook shows it.
    """
    from lostflops.report import notebook
    from lostflops.report.first_page.page import page
    from lostflops.session import Session
    from lostflops.store.trace import Trace

    trace = run if isinstance(run, Trace) else open(run)
    with trace.reading():
        return notebook.shown(page(trace, Session(trace)))


def ask(run: Trace | str | Path | Sequence[str | Path], recipe: str, **options: Any) -> pl.DataFrame:
    """One recipe's table, of a run that was opened or is named by its paths.

    Times are integer nanoseconds on the run's clock.

    Raises NoSuchRecipe or BadOption for what does not exist, and CannotAnswer when the trace lacks something
    the recipe needs.
    """
    from lostflops.errors import CannotAnswer
    from lostflops.session import Session, Skipped
    from lostflops.store.trace import Trace

    trace = run if isinstance(run, Trace) else open(run)
    with trace.reading():
        answer = Session(trace).run(recipe, **options)
    if isinstance(answer, Skipped):
        raise CannotAnswer(answer.recipe, answer.reason)
    return answer.table


def whatif(run: Trace | str | Path | Sequence[str | Path], *edits: str) -> WhatIf:
    """What a mean step would take with each edit made, such as 'loader=0ms', by replaying the run.

    Edits in one text with commas between them are made together. `print` shows it as `lostflops whatif`
    does; `.predictions` has the numbers, ns, and `.to_json()` all of it.

    Raises BadOption for an edit that does not exist.
    """
    from lostflops.report.whatif import WhatIf
    from lostflops.session import Session
    from lostflops.store.trace import Trace

    trace = run if isinstance(run, Trace) else open(run)
    return WhatIf.asked(Session(trace), edits)


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext lostflops` in a notebook: offers `%%lostflops`, which records a cell, and `%lostflops`."""
    from lostflops.cli import notebook

    notebook.load(shell)
