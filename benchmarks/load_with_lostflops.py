"""Import the traces named on standard input, one a line, each into an empty store; answer with the times.

Start of the interpreter and imports of modules are not in a time. Inflating, decoding, matching, classifying
and writing the run are.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from importlib.metadata import version

from lostflops import LostflopsError
from lostflops.ingest import job

print(json.dumps({"versions": f"lostflops {version('lostflops')}, polars {version('polars')}"}), flush=True)
for line in sys.stdin:
    with tempfile.TemporaryDirectory() as store:
        os.environ["LOSTFLOPS_CACHE"] = store
        answer: dict[str, object]
        try:
            begin = time.perf_counter()
            trace = job.open(line.rstrip("\n"))
            answer = {"seconds": time.perf_counter() - begin, "events": trace.manifest.num_events}
        except LostflopsError as error:
            answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
