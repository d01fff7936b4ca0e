"""A run as `lostflops.open` gives it: its tables, and methods to ask it, which a notebook shows in place."""

from __future__ import annotations

from typing import Any

import polars as pl

from lostflops.report.in_notebook.shown import ShownAnswer
from lostflops.report.notebook import ShownPage
from lostflops.store.trace import Trace


class OpenedRun(Trace):
    """A run that can be asked: `run.why()`, `run.recipe("gpu_gaps")`, `run.sql("select ... from kernels")`.

    `run.table("kernels")` is a table as a lazy Polars frame, `run.select(steps=(3, 5))` the same run seen
    through some steps.
    """

    @classmethod
    def of(cls, trace: Trace) -> OpenedRun:
        """The run, with these methods."""
        opened = cls(trace.path, trace.manifest, trace.ranks, trace.steps)
        opened._share(trace)
        return opened

    def why(self) -> ShownPage:
        """The first page: where each step's time went, and the findings."""
        from lostflops.report import notebook
        from lostflops.report.first_page.page import page
        from lostflops.session import Session

        with self.reading():
            return notebook.shown(page(self, Session(self)))

    def recipe(self, name: str, **options: Any) -> ShownAnswer:
        """A recipe's answer: `.table` is a Polars frame with times in ns, `.chart` its plot for Vega-Lite.

        Raises NoSuchRecipe or BadOption for what does not exist, and CannotAnswer when the run lacks
        something that the recipe needs.
        """
        from lostflops.errors import CannotAnswer
        from lostflops.report.in_notebook.shown import shown_answer
        from lostflops.session import Session, Skipped

        with self.reading():
            said = Session(self).run(name, **options)
        if isinstance(said, Skipped):
            raise CannotAnswer(said.recipe, said.reason)
        return shown_answer(said)

    def sql(self, query: str) -> pl.DataFrame:
        """The answer to one SELECT on the run's tables, and on recipes, whose names are tables, too.

        Times are integer ns on the run's clock; `duration` is end - start. The query reads this run and
        nothing else, and changes nothing.

        Raises BadQuery for what cannot be answered, and MissingExtra without DuckDB.
        """
        from lostflops.report.sql.query import query as asked

        return asked(self, query)

    def __repr__(self) -> str:
        from lostflops.report.in_notebook.shown import overview

        return overview(self)[0]

    def _repr_html_(self) -> str:
        from lostflops.report.in_notebook.shown import overview

        return overview(self)[1]
