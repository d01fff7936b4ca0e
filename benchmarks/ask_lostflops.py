"""Ask lostflops about the ranks in the folder that is named; answer with times, as `ask_hta.py` does.

The first line tells versions, the time of importing into an empty store and the memory after it. Then each
line of standard input names a recipe and how: `first`, where nothing was answered before and each recipe
that it needs is computed, too; `again`, where it was; or `stored`, which opens the run that lies imported and
then asks as `first` does.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from importlib.metadata import version

from lostflops import LostflopsError
from lostflops.errors import CannotAnswer
from lostflops.ingest import job
from lostflops.session import Session, Skipped
from lostflops.store.answers import FOLDER


def main() -> None:
    files = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory() as store:
        os.environ["LOSTFLOPS_CACHE"] = store
        begin = time.perf_counter()
        given = list(files.values())
        trace = job.open(given, allow_missing_ranks=True)
        seconds = time.perf_counter() - begin
        versions = f"lostflops {version('lostflops')}, polars {version('polars')}"
        say({"versions": versions, "seconds": seconds, "peak": peak(), "events": trace.manifest.num_events})
        for line in sys.stdin:
            name, _, how = line.strip().partition(" ")
            if how != "again":
                shutil.rmtree(trace.path / FOLDER, ignore_errors=True)
            gc.collect()
            try:
                begin = time.perf_counter()
                asked = job.open(given, allow_missing_ranks=True) if how == "stored" else trace
                said = Session(asked).run(name)
                seconds = time.perf_counter() - begin
                if isinstance(said, Skipped):
                    raise CannotAnswer(said.recipe, said.reason)
                say({"seconds": seconds, "peak": peak()})
            except LostflopsError as error:
                say({"error": str(error), "peak": peak()})


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def say(answer: dict[str, object]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
