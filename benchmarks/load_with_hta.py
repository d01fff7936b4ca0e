"""Load the traces named on standard input, one a line, with Holistic Trace Analysis; answer with the times.

Start of the interpreter and imports of modules are not in a time. `TraceAnalysis(trace_files={0: file})` is:
it inflates, decodes, makes a symbol table, correlates calls and kernels and selects iterations, into a pandas
frame in memory. Run it in an environment that has `traceinsight`, under which name the project is on PyPI.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import time
import warnings
from importlib.metadata import version

answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what the library prints must not look like an answer
warnings.simplefilter("ignore")

from hta.trace_analysis import TraceAnalysis  # noqa: E402

logging.disable(logging.CRITICAL)
versions = f"traceinsight {version('traceinsight')}, pandas {version('pandas')}"
print(json.dumps({"versions": versions}), file=answers, flush=True)
for line in sys.stdin:
    loaded = None
    gc.collect()
    answer: dict[str, object]
    try:
        begin = time.perf_counter()
        loaded = TraceAnalysis(trace_files={0: line.rstrip("\n")}, trace_dir="/")
        answer = {"seconds": time.perf_counter() - begin}
    except Exception as error:  # whatever it raises is a result
        answer = {"error": f"{type(error).__name__}: {error}"[:200]}
    print(json.dumps(answer), file=answers, flush=True)
