"""An executed notebook as a file: cells that were run here, with the outputs that a kernel would give them.

The cells run in this process, one after the other, in a namespace of their own and in the notebook's folder,
so no Jupyter is needed to write one. What a cell prints and the value of its last expression are kept by
Jupyter's rules: `_repr_mimebundle_`, `_repr_html_` and `repr`.
"""

from __future__ import annotations

import ast
import io
import json
from collections.abc import Sequence
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lostflops.version import __version__

FORMAT, MINOR = 4, 5


@dataclass(frozen=True)
class Prose:
    """A cell of Markdown."""

    text: str


@dataclass(frozen=True)
class Code:
    """A cell of Python."""

    text: str


def executed(cells: Sequence[Prose | Code], folder: Path) -> bytes:
    """The notebook as it is after all cells were run in `folder`. What a cell raises is raised."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    made: list[dict[str, Any]] = []
    count = 0
    with chdir(folder):
        for number, cell in enumerate(cells, 1):
            one: dict[str, Any] = {"id": f"cell-{number}", "metadata": {}, "source": cell.text}
            if isinstance(cell, Prose):
                made.append({"cell_type": "markdown", **one})
                continue
            count += 1
            outputs = _run(cell.text, namespace, count)
            made.append({"cell_type": "code", "execution_count": count, **one, "outputs": outputs})
    content = {
        "cells": made,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
            "lostflops": {"version": __version__},
        },
        "nbformat": FORMAT,
        "nbformat_minor": MINOR,
    }
    text = json.dumps(content, indent=1, allow_nan=False)
    return f"{text}\n".encode()


def _run(code: str, namespace: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Run a cell; its outputs."""
    tree = ast.parse(code)
    end = tree.body[-1]
    last = ast.Expression(end.value) if isinstance(end, ast.Expr) else None
    if last is not None:
        tree.body.pop()
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(tree, "<cell>", "exec"), namespace)
        value = None if last is None else eval(compile(last, "<cell>", "eval"), namespace)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": printed.getvalue()})
    if value is not None:
        outputs.append(
            {"data": bundle(value), "execution_count": count, "metadata": {}, "output_type": "execute_result"}
        )
    return outputs


def bundle(value: Any) -> dict[str, Any]:
    """What a notebook shows of a value, by MIME type."""
    shown = {"text/plain": "\n".join(repr(value).splitlines())}  # as IPython lays it out
    if hasattr(value, "_repr_html_"):
        shown["text/html"] = value._repr_html_()
    if hasattr(value, "_repr_mimebundle_"):
        shown |= value._repr_mimebundle_(include=None, exclude=None)
    return shown
