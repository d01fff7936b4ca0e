"""A table of a run, or a recipe's answer, as it is exported: its rows inside what was asked for."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from lostflops.errors import BadOption, CannotAnswer, shown, suggestion
from lostflops.recipes import recipes
from lostflops.session import Skipped
from lostflops.tables import TABLES

from .asked import Exported, ExportRequest
from .timeline import Drawn


def chosen(asked: ExportRequest) -> pl.DataFrame:
    """The rows of the table or recipe that was asked for, in the order of rank and time.

    Raises BadOption where none was named or none is called so, and CannotAnswer where the run lacks it.
    """
    name = (asked.table or "").replace("-", "_")
    if not name:
        raise BadOption(
            "A table format holds one table.",
            "name a table or a recipe: `--table kernels`, `--table step_ledger`; `lostflops recipes` lists "
            "the recipes.",
        )
    if name in TABLES:
        frame = asked.selection.table(name)
        if frame is None:
            raise CannotAnswer(name, asked.selection.trace.absence(name))
        return _plain(_bounded(asked, name, asked.selection.counted(frame.collect(), name)))
    if name not in recipes():
        known = [*TABLES, *recipes()]
        raise BadOption(
            f"There is no table and no recipe '{shown(asked.table or '')}'.{suggestion(name, known)}",
            f"tables are {', '.join(TABLES)}; `lostflops recipes` lists the recipes.",
        )
    said = asked.selection.session.run(name)
    if isinstance(said, Skipped):
        raise CannotAnswer(said.recipe, said.reason)
    return _plain(_bounded(asked, name, asked.selection.inside(said.table, name)))


def _bounded(asked: ExportRequest, name: str, rows: pl.DataFrame) -> pl.DataFrame:
    """The rows. Raises BadOption where a window was asked for and they have no times that it could bound."""
    if asked.selection.windowed and not {"rank", "start", "end"} <= set(rows.columns):
        raise BadOption(
            f"The rows of '{shown(name)}' have no times: `--window` does not bound them.",
            "choose `--steps` or `--ranks` instead.",
        )
    return rows


def told(asked: ExportRequest, rows: pl.DataFrame, output: Path) -> Exported:
    drawn = Drawn()
    drawn.rows = rows.height
    return asked.exported(output, drawn)


def _plain(rows: pl.DataFrame) -> pl.DataFrame:
    """Dictionaries of this process as text: other programs number texts otherwise."""
    texts = [c for c, t in rows.schema.items() if isinstance(t, (pl.Categorical, pl.Enum))]
    order = [c for c in ("rank", "start", "end") if c in rows.columns]
    rows = rows.with_columns(pl.col(texts).cast(pl.String))
    return rows.sort(order, maintain_order=True) if order else rows
