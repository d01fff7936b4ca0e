"""Every library call, in the order of time."""

from __future__ import annotations

from typing import Annotated

import polars as pl

from lostflops.columns import Bytes, Id, Instant, Name, Time
from lostflops.recipe import Example, Points, recipe
from lostflops.tables import LibraryCalls


@recipe(
    question="Which calls of MPI and other libraries did the host make, call by call?",
    scope="rank",
    plot=Points(x="start", y="time", log=True),
    columns={
        "rank": Id("rank"),
        "start": Instant("start"),
        "end": Instant("end"),
        "time": Time("its duration"),
        "thread": Id("host thread"),
        "library": Name("library"),
        "name": Name("name of the call"),
        "peer": Id("rank of the other side in its communicator; of a collective the root"),
        "communicator": Id("communicator"),
        "sent": Bytes("bytes given"),
        "received": Bytes("bytes taken"),
    },
    examples=[
        Example(
            "a send, and a broadcast",
            given={
                "library_calls": [
                    {"start": 20, "end": 33, "thread": 5, "library": "MPI", "name": "MPI_Bcast", "peer": 0}
                    | {"communicator": 91, "received": 16},
                    {"start": 1, "end": 9, "thread": 5, "library": "MPI", "name": "MPI_Send", "peer": 3}
                    | {"communicator": 90, "sent": 64},
                ]
            },
            expect=[
                {
                    "rank": 0,
                    "start": 1,
                    "end": 9,
                    "time": 8,
                    "thread": 5,
                    "library": "MPI",
                    "name": "MPI_Send",
                }
                | {"peer": 3, "communicator": 90, "sent": 64, "received": None},
                {
                    "rank": 0,
                    "start": 20,
                    "end": 33,
                    "time": 13,
                    "thread": 5,
                    "library": "MPI",
                    "name": "MPI_Bcast",
                }
                | {"peer": 0, "communicator": 91, "sent": None, "received": 16},
            ],
        ),
    ],
)
def library_call_trace(
    library_calls: LibraryCalls, *, library: Annotated[str, "only this library; all without it"] = ""
) -> pl.LazyFrame:
    """List every call of each rank, in the order of their starts.

    How to read it: filter the CSV by `peer` for the traffic between two ranks.

    Limits: an `MPI_Sendrecv` has two peers and is listed as the source lists it.

    What to try: `library-call-summary` for the same added up.
    """
    return (
        library_calls.with_columns(pl.col("library", "name").cast(pl.String))
        .filter((pl.col("library") == library) | pl.lit(not library))
        .with_columns(time=pl.col("end") - pl.col("start"))
        .select(*library_call_trace.columns)
        .sort("rank", "start", "end", "thread", "name")
    )
