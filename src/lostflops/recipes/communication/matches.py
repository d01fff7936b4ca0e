"""Which collectives of different ranks belong together, and when the last participant came."""

from __future__ import annotations

import polars as pl

from lostflops.columns import Bytes, Count, Flag, Id, Instant, Name, Text, Time, Typical
from lostflops.intervals.matching import matches
from lostflops.recipe import Example, recipe
from lostflops.tables import Collectives, Ranks


@recipe(
    question="Which collectives of different ranks belong together, and when did the last of them arrive?",
    scope="job",
    columns={
        "rank": Id("rank"),
        "start": Instant("start of the operation on this rank"),
        "end": Instant("end of the operation on this rank"),
        "arrival": Instant("when this rank was ready"),
        "kind": Name("operation"),
        "library": Name("library that ran it"),
        "group": Name("process group"),
        "group_size": Count("ranks in the group"),
        "peer": Id("other side of a send or receive"),
        "bytes_in": Bytes("bytes of this rank's input"),
        "bytes_out": Bytes("bytes of this rank's output"),
        "dtype": Name("element type"),
        "sequence": Id("sequence number in the group, when the source gives one"),
        "evidence": Id("1 metadata, 2 annotation, 3 operator, 4 kernel name, 5 stream"),
        "stream": Id("stream or thread that carried it"),
        "correlation": Id("id of the launch"),
        "name": Name("kernel, copy or annotation that carried it"),
        "reason": Text("why it could not be matched, else empty"),
        "instance": Id("number of the operation, shared by the ranks that took part; null when not matched"),
        "members": Count("ranks matched"),
        "last_arrival": Instant("when the last of them arrived"),
        "last_rank": Id("who that was; null when the lead is within the clock error"),
        "lead": Time("how much later it came than the second to last"),
        "latency": Typical("shortest stay of any member: needs no common clock"),
        "wait": Time("from this rank's arrival to the last arrival"),
        "transfer": Time("from the last arrival to this rank's end"),
        "clock_error": Typical("largest error of the members' clocks"),
        "assumed": Flag("nothing tells how many ranks take part: those here were taken for all"),
    },
    page=False,
    whole=True,
    examples=[
        Example(
            "rank 1 comes 30 ns late: rank 0 waits that long",
            given={
                "collectives": [
                    {"rank": 0, "start": 10, "end": 52, "kind": "all-reduce", "bytes_in": 8, "name": "nccl"},
                    {"rank": 1, "start": 40, "end": 51, "kind": "all-reduce", "bytes_in": 8, "name": "nccl"},
                ],
                "ranks": [
                    {"rank": 0, "world_size": 2, "clock_error": 3},
                    {"rank": 1, "world_size": 2, "clock_error": 4},
                ],
            },
            expect=[
                {
                    "rank": rank,
                    "instance": 0,
                    "last_rank": 1,
                    "lead": 30,
                    "latency": 11,
                    "wait": wait,
                    "transfer": transfer,
                    "clock_error": 4,
                    "assumed": False,
                }
                for rank, wait, transfer in ((0, 30, 12), (1, 0, 11))
            ],
        ),
        Example(
            "with one rank of two, nothing is claimed",
            given={
                "collectives": [{"rank": 0, "start": 10, "end": 52, "kind": "all-reduce", "name": "nccl"}],
                "ranks": [{"rank": 0, "world_size": 2}],
            },
            expect=[
                {
                    "rank": 0,
                    "instance": None,
                    "wait": None,
                    "reason": "only one rank was recorded: its waiting and its transfer look alike",
                }
            ],
        ),
    ],
)
def communication_matches(collectives: Collectives, ranks: Ranks) -> pl.LazyFrame:
    """Match every collective over the ranks that took part in it.

    Instances are told by group and order, never by time. An operation that cannot be matched keeps its row,
    with the reason.
    """
    return matches(collectives, ranks).lazy()
