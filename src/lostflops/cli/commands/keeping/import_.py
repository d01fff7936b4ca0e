"""Import traces into a run folder to keep.

`why` and `recipe` import by themselves and keep the result in a cache. `import` writes the run, a folder of
Parquet tables, where you want it.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from lostflops.cli.arguments import traces
from lostflops.cli.output.waiting import waiting


def arguments(parser: ArgumentParser, words: Sequence[str]) -> None:
    traces.add_paths(parser)
    traces.add_dask(parser)
    parser.add_argument(
        "--output",
        metavar="RUN",
        required=True,
        help="the folder to make, or the run to replace; also an address such as s3://bucket/run",
    )


def run(given: Namespace) -> None:
    from lostflops.errors import shown
    from lostflops.ingest import job
    from lostflops.store import object_store

    away = object_store.is_url(given.output) and not given.output.startswith("file://")
    place = job.place_of(given.output) if away else Path(given.output.removeprefix("file://"))
    with waiting() as tell, traces.workers(given, tell) as workers:
        trace = traces.opened(given, tell, place, workers)
        if away:
            object_store.put(trace.path, given.output, tell)
    ranks = trace.table("ranks")
    num_ranks = 0 if ranks is None else ranks.collect()["rank"].n_unique()
    stored = sum(file.stat().st_size for file in trace.path.rglob("*.parquet"))
    print(
        f"imported {trace.manifest.num_events:,} events of {num_ranks} rank{'s' * (num_ranks != 1)} "
        f"-> {shown(given.output)}  ({stored / 1e6:.1f} MB)"
    )
