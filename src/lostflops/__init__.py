"""lostflops finds where your GPU hours go, what to change, and proves that it helped.

import lostflops

trace = lostflops.open("my_traces/")          # files, folders, globs, or an imported run
page = lostflops.why(trace)                   # the first page: ledger and findings
print(page)                                   # as `lostflops why` prints it
for finding in page.findings:
    print(finding.claim, finding.next)
gaps = lostflops.ask(trace, "gpu_gaps")       # any recipe's table, as a Polars frame
trace.recipe("gpu_gaps").chart                # its plot, for a notebook
trace.sql("select name, sum(duration) as total from kernels group by name")  # the tables, by DuckDB
page = lostflops.why("my_traces/", dask="local")  # the same by the workers of a Dask cluster
lostflops.view(trace)                         # the timeline, in a notebook
print(lostflops.whatif(trace, "loader=0ms"))  # what a change would gain, by replay
print(lostflops.remedy("loader-workers", trace))  # what to type for it, in the job's framework
print(lostflops.diff("runs/base", "runs/new"))  # why one run is slower than another
print(lostflops.check(trace, "budget.toml"))  # whether a run holds its budget
print(lostflops.prove("runs/base", "runs/new"))  # what it did gain, and how sure that is
lostflops.write(trace, "run.pftrace")         # the same run for Perfetto, or for another tool

@lostflops.annotate                           # in training code: names for what stands in the trace
def tokenise(texts): ...

with lostflops.range("evaluate"): ...

lostflops.log(loss=loss, tokens=tokens.numel())  # in training code: what a step did, for the step log
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from lostflops.errors import LostflopsError
from lostflops.version import __version__

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from lostflops.capture.record.injected.lostflops_recorder.marks.mark import Range, annotate
    from lostflops.capture.record.injected.lostflops_recorder.steps.told import log
    from lostflops.cluster.places import Where
    from lostflops.experiment.budget.holding import Checked
    from lostflops.experiment.difference.compare import Difference
    from lostflops.experiment.proof.shown.printed import PrintedProof
    from lostflops.experiment.proof.values import Measure, Per
    from lostflops.export import Exported
    from lostflops.remedies import Remedy
    from lostflops.report.notebook import ShownPage
    from lostflops.report.opened import OpenedRun
    from lostflops.report.predicted.whatif import WhatIf
    from lostflops.report.remedy import RemedyForJob
    from lostflops.session import Session
    from lostflops.store.trace import Trace
    from lostflops.viewer.notebook import TimelineWidget

if TYPE_CHECKING:
    range = Range

    def remedies() -> Mapping[str, Remedy]:
        """Every remedy by its name, in the order of themes."""
        ...


# Not `open` and `range`: `from lostflops import *` would take Python's own away.
__all__ = [
    "LostflopsError",
    "__version__",
    "annotate",
    "ask",
    "check",
    "diff",
    "log",
    "prove",
    "remedies",
    "remedy",
    "whatif",
    "why",
    "write",
]


def __getattr__(name: str) -> Any:
    """Marks for training code: they need no PyTorch and cost nothing while nothing records."""
    if name in ("annotate", "range"):
        from lostflops.capture.record.injected.lostflops_recorder.marks import mark

        return mark.annotate if name == "annotate" else mark.Range
    if name == "remedies":  # the package itself, which answers when it is called
        from importlib import import_module

        return import_module("lostflops.remedies")
    if name == "log":
        from lostflops.capture.record.injected.lostflops_recorder.steps import told

        return told.log
    raise AttributeError(f"module 'lostflops' has no attribute '{name}'")


# Polars and the readers are imported when they are first needed, so that `import lostflops` costs nothing.
def open(
    paths: str | Path | Sequence[str | Path],
    *,
    salvage: bool = False,
    allow_missing_ranks: bool = False,
    dask: Where | None = None,
) -> OpenedRun:
    """The run whose traces lie at `paths`: its tables, and methods to ask it.

    `dask` names the cluster that reads them, as `--dask` does: 'local', 'slurm', 'mpi' or the address of a
    scheduler. Your own `distributed.Client` stays connected for the next call.

    Raises a LostflopsError that says what to do when they cannot be read.
    """
    from lostflops.ingest import job

    if dask is None:
        trace = job.open(paths, salvage=salvage, allow_missing_ranks=allow_missing_ranks)
    else:
        from functools import partial

        from lostflops.cluster import places, reading

        with places.connected(dask) as workers:
            trace = job.open(
                paths,
                salvage=salvage,
                allow_missing_ranks=allow_missing_ranks,
                read_with=partial(reading.read_all, workers),
            )
    from lostflops.report.opened import OpenedRun

    run = OpenedRun.of(trace)
    run.given = tuple(map(str, [paths] if isinstance(paths, (str, os.PathLike)) else paths))
    return run


def why(run: Trace | str | Path | Sequence[str | Path], *, dask: Where | None = None) -> ShownPage:
    """The first page of a run, opened or named by its paths: where each step's time went, and the findings.

    `print(lostflops.why(...))` prints it as `lostflops why` does, and a notebook shows it. `dask` is the
    cluster that reads and answers, as in `open`.
    """
    from lostflops.report import notebook
    from lostflops.report.first_page.page import page

    with _asking(run, dask) as session:
        return notebook.shown(page(session.trace, session))


@contextmanager
def _asking(run: Trace | str | Path | Sequence[str | Path], dask: Where | None) -> Generator[Session]:
    """A session on the run, with the workers of a cluster where one is named."""
    from lostflops.session import Session
    from lostflops.store.trace import Trace

    if dask is None:
        trace = run if isinstance(run, Trace) else open(run)
        with trace.reading():
            yield Session(trace)
        return
    from lostflops.cluster.places import connected
    from lostflops.cluster.session import ClusterSession

    with connected(dask) as workers:
        trace = run if isinstance(run, Trace) else open(run, dask=workers.client)
        with trace.reading():
            yield ClusterSession(trace, workers)


def ask(
    run: Trace | str | Path | Sequence[str | Path],
    recipe: str,
    *,
    dask: Where | None = None,
    **options: Any,
) -> pl.DataFrame:
    """One recipe's table, of a run that was opened or is named by its paths.

    Times are integer nanoseconds on the run's clock. `dask` is the cluster that reads and answers, as in
    `open`.

    Raises NoSuchRecipe or BadOption for what does not exist, and CannotAnswer when the trace lacks something
    the recipe needs.
    """
    from lostflops.errors import CannotAnswer
    from lostflops.session import Skipped

    with _asking(run, dask) as session:
        answer = session.run(recipe, **options)
    if isinstance(answer, Skipped):
        raise CannotAnswer(answer.recipe, answer.reason)
    return answer.table


def whatif(run: Trace | str | Path | Sequence[str | Path], *edits: str) -> WhatIf:
    """What a mean step would take with each edit made, such as 'loader=0ms', by replaying the run.

    Edits in one text with commas between them are made together. `print` shows it as `lostflops whatif`
    does; `.predictions` has the numbers, ns, and `.to_json()` all of it.

    Raises BadOption for an edit that does not exist.
    """
    from lostflops.replay.edits import together
    from lostflops.report.predicted.whatif import WhatIf
    from lostflops.session import Session
    from lostflops.store.trace import Trace

    for text in edits:
        together(text)  # a wrong one is told before a large run is read
    trace = run if isinstance(run, Trace) else open(run)
    return WhatIf.asked(Session(trace), edits)


def view(
    run: Trace | str | Path | Sequence[str | Path], *, height: int = 640, at: str = ""
) -> TimelineWidget:
    """The timeline of a run as a widget, `height` pixels high, for the last line of a notebook's cell.

    `at` is what stands behind the `#` of an address of `lostflops view`: 'finding=rank-arrives-last'. The
    kernel answers what the timeline asks, so it waits while a cell runs.

    Raises MissingExtra without the package `anywidget`.
    """
    from lostflops.errors import MissingExtra
    from lostflops.store.trace import Trace

    try:
        from lostflops.viewer.notebook import TimelineWidget
    except ModuleNotFoundError as error:
        if error.name not in ("anywidget", "traitlets", "starlette", "anyio"):
            raise
        raise MissingExtra("A timeline in a notebook", "notebook") from error
    return TimelineWidget(run if isinstance(run, Trace) else open(run), height, at)


def remedy(
    name: str,
    run: Trace | str | Path | Sequence[str | Path] | None = None,
    framework: str = "",
) -> RemedyForJob:
    """What a remedy changes, for the framework of a run, which was opened or is named by its paths.

    `framework`, such as 'hf' or 'nemo', takes the place of the run's own; without both, the change for every
    framework. `print` shows it as `lostflops remedy` does; `.remedy` has its declaration and
    `.to_json()` all of it. `lostflops.remedies()` has all declarations by name.

    Raises NoSuchRemedy with the names that are near, and BadOption for a framework that does not exist.
    """
    from lostflops.errors import BadOption, shown
    from lostflops.naming.framework_names import NAMES, called
    from lostflops.report.remedy import RemedyForJob
    from lostflops.report.words.safe import typed
    from lostflops.store.trace import Trace

    if framework and called(framework) not in NAMES:
        raise BadOption(
            f"There is no framework called '{shown(framework)}'.", f"choose from {', '.join(NAMES)}."
        )
    key = NAMES[called(framework)] if framework else ""
    if run is None:
        return RemedyForJob.asked(name, key)
    trace = run if isinstance(run, Trace) else open(run)
    with trace.reading():
        paths = typed(trace.given, trace.steps) if trace.given else "RUN"
        return RemedyForJob.asked(name, key, trace, paths)


def diff(
    before: Trace | str | Path | Sequence[str | Path], after: Trace | str | Path | Sequence[str | Path]
) -> Difference:
    """Why a step of one run takes longer than one of another, down from accounts to kernels.

    `print` shows it as `lostflops diff` does; `.verdict`, `.waterfall` and `.mismatches` have the answer,
    `.to_json()` all of it. Where the runs cannot be compared, `.obstacles` says why.
    """
    from lostflops.experiment.difference.compare import difference
    from lostflops.store.trace import Trace

    first, second = (run if isinstance(run, Trace) else open(run) for run in (before, after))
    return difference(first, second, (_called(first, "before"), _called(second, "after")))


def check(
    run: Trace | str | Path | Sequence[str | Path],
    budget: str | Path,
    *,
    baseline: Trace | str | Path | None = None,
) -> Checked:
    """Whether a run holds the limits in the file `budget`: `.held`, and `.outcomes` limit by limit.

    `baseline` is the run that regressions are told against; by default the one that the budget names.

    Raises BadBudget for a budget that is wrong, and NoBaseline where it lacks one.
    """
    from pathlib import Path

    from lostflops.errors import NoBaseline
    from lostflops.experiment.budget.holding import checked
    from lostflops.experiment.budget.limits import read
    from lostflops.store.trace import Trace

    limits = read(Path(budget))
    base = baseline or limits.baseline
    if limits.regressions and not base:
        raise NoBaseline(limits.path)
    trace = run if isinstance(run, Trace) else open(run)
    other = None
    if limits.regressions:
        other = base if isinstance(base, Trace) else open(base)
    return checked(trace, limits, other, _called(trace, "run"))


def _called(trace: Trace, otherwise: str) -> str:
    """What a page calls a run: the paths that somebody named."""
    return " ".join(trace.given) or otherwise


def prove(
    before: str | Path | Sequence[str | Path],
    after: str | Path | Sequence[str | Path] | None = None,
    *,
    noise: str | Path | Sequence[str | Path] = (),
    measure: Measure = "mean",
    per: Per | None = None,
) -> PrintedProof:
    """What the change between two recorded runs gained, and how sure that is, by their step logs.

    Each side is a run folder, a callback's output, or several: a list, or a glob. Alone, `before` is the
    folder of an experiment that `lostflops prove --before ... --after ...` has run. `print` shows what the
    command prints; `.verdict`, `.ratio`, `.low`, `.high`, `.pairs` and `.resolution` are the numbers, and
    `.to_json()` is all of it.

    Raises a LostflopsError where the two cannot be compared.
    """
    from lostflops.experiment.proof import recordings
    from lostflops.experiment.proof.shown.printed import printed

    return printed(recordings.prove(before, after, noise=noise, measure=measure, per=per))


def write(
    run: Trace | str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    to: str | None = None,
    steps: tuple[int, int] | None = None,
    ranks: Sequence[int] | None = None,
    window: tuple[int, int] | None = None,
    bare: bool = False,
    table: str | None = None,
    weight: Literal["host", "device", "exposed"] = "host",
) -> Exported:
    """Write a run, or part of it, for another tool, as `lostflops export` does.

    `to` is a format such as 'perfetto'; without it the ending of `output` says which. `steps` and `window`
    are first and last, the window in ns on the run's clock: what they cut is cut exactly. `bare` leaves out
    the ledger and the findings. Parquet, Arrow and CSV hold one `table` or one recipe's answer;
    flame graphs are weighted by the time on the host, by that of the work on the device, or by how much of
    that ran alone.

    Raises a LostflopsError where it cannot be done; then nothing was written.
    """
    from pathlib import Path

    from lostflops.errors import BadOption, shown
    from lostflops.export import export, formats
    from lostflops.export.writing import require_outside
    from lostflops.store.trace import Trace

    target = Path(output)
    form = to or formats.of_ending(target.name)
    if form is None:
        raise BadOption(
            f"The ending of '{shown(target)}' belongs to no format.",
            f"say `to=` one of {', '.join(formats.names())}.",
        )
    if not isinstance(run, Trace):
        require_outside(target, [run] if isinstance(run, (str, Path)) else run)
    trace = run if isinstance(run, Trace) else open(run)
    findings = () if bare or not formats.known(form).TIMELINE else why(trace).findings
    wanted = None if ranks is None else frozenset(ranks)
    return export(
        trace,
        form,
        target,
        steps=steps,
        ranks=wanted,
        window=window,
        bare=bare,
        table=table,
        weight=weight,
        findings=findings,
    )


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext lostflops` in a notebook: offers `%%lostflops`, which records a cell, and `%lostflops`."""
    from lostflops.cli import notebook

    notebook.load(shell)
