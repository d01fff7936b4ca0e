"""The threads that run backward passes for others."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Id
from lostflops.recipe import Example, recipe
from lostflops.recipes.backward_threads import engines
from lostflops.tables import Operators, Ranges

NODE = "autograd::engine::evaluate_function: MmBackward0"


@recipe(
    question="Which threads run backward passes, and for whom?",
    scope="rank",
    page=False,
    whole=True,
    columns={
        "rank": Id("rank"),
        "caller": Id("thread that starts the backward passes and waits for them"),
        "engine": Id("thread that runs them"),
        "place": Id("its number in its rank, the one with most nodes first"),
    },
    examples=[
        Example(
            "thread 7 marks the steps, thread 9 runs two nodes of autograd and thread 8 one",
            given={
                "operators": [
                    {"start": 0, "end": 5, "thread": 7, "name": "aten::mm", "phase": "forward"},
                    {"start": 6, "end": 8, "thread": 8, "name": NODE, "phase": "backward"},
                    {"start": 6, "end": 8, "thread": 9, "name": NODE, "phase": "backward"},
                    {"start": 8, "end": 9, "thread": 9, "name": NODE, "phase": "backward"},
                ],
                "ranges": [{"start": 0, "end": 10, "thread": 7, "name": "ProfilerStep#3"}],
            },
            expect=[
                {"rank": 0, "caller": 7, "engine": 9, "place": 0},
                {"rank": 0, "caller": 7, "engine": 8, "place": 1},
            ],
        ),
        Example(
            "on a CPU the thread that calls runs backward itself",
            given={
                "operators": [
                    {"start": 0, "end": 5, "thread": 7, "name": "aten::mm", "phase": "forward"},
                    {"start": 6, "end": 8, "thread": 7, "name": NODE, "phase": "backward"},
                ],
            },
            expect=[],
        ),
    ],
)
def backward_engines(operators: Operators | None, ranges: Ranges | None) -> pl.LazyFrame:
    """List the threads on which autograd runs backward for the thread that called it.

    Such a thread runs nodes of autograd and hardly anything else.
    """
    return engines(operators, ranges).lazy()
