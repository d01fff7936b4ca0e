"""Ask Holistic Trace Analysis about the ranks in the folder that is named; answer with times and results.

The first line of standard output tells versions, the time of loading and the memory after it. Then each line
of standard input names an analysis, which is answered with its time and the most memory so far; with
`--results`, also with what it says, as far as `results` compares it. Charts are not drawn.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import resource
import sys
import tempfile
import time
import warnings
from importlib.metadata import version

answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what the library prints must not look like an answer
warnings.simplefilter("ignore")

from hta.trace_analysis import TraceAnalysis  # noqa: E402

logging.disable(logging.CRITICAL)
OPERATOR = "aten::linear"


def main() -> None:
    files = json.loads(sys.argv[1])
    with_results = "--results" in sys.argv
    begin = time.perf_counter()
    loaded = TraceAnalysis(trace_files={int(rank): file for rank, file in files.items()}, trace_dir="/")
    seconds = time.perf_counter() - begin
    versions = f"traceinsight {version('traceinsight')}, pandas {version('pandas')}"
    say({"versions": versions, "seconds": seconds, "peak": peak()})
    ranks = sorted(map(int, files))
    asked = analyses(loaded, ranks)
    for line in sys.stdin:
        gc.collect()
        answer: dict[str, object]
        try:
            begin = time.perf_counter()
            found = asked[line.strip()]()
            answer = {"seconds": time.perf_counter() - begin, "peak": peak(), "empty": is_empty(found)}
            if with_results:
                answer["result"] = told(found)
        except Exception as error:  # whatever it raises is a result
            answer = {"error": f"{type(error).__name__}: {error}"[:200], "peak": peak()}
        say(answer)


def analyses(loaded, ranks):
    def full_queue():
        return loaded.get_time_spent_blocked_on_full_queue(loaded.get_queue_length_time_series(ranks=ranks))

    def sequences():
        with tempfile.TemporaryDirectory() as folder:
            return [
                loaded.get_frequent_cuda_kernel_sequences(
                    OPERATOR, output_dir=folder, rank=rank, visualize=False
                )
                for rank in ranks
            ]

    return {
        "get_temporal_breakdown": lambda: loaded.get_temporal_breakdown(visualize=False),
        "get_idle_time_breakdown": lambda: loaded.get_idle_time_breakdown(ranks=ranks, visualize=False),
        "get_comm_comp_overlap": lambda: loaded.get_comm_comp_overlap(visualize=False),
        "get_gpu_kernel_breakdown": lambda: loaded.get_gpu_kernel_breakdown(visualize=False),
        "get_gpu_kernels_with_user_annotations": lambda: [
            loaded.get_gpu_kernels_with_user_annotations(rank) for rank in ranks
        ],
        "get_gpu_user_annotation_breakdown": lambda: loaded.get_gpu_user_annotation_breakdown(
            use_gpu_annotation=False, visualize=False
        ),
        "get_cuda_kernel_launch_stats": lambda: loaded.get_cuda_kernel_launch_stats(
            ranks=ranks, visualize=False
        ),
        "get_aten_op_kernels_and_delay": lambda: loaded.get_aten_op_kernels_and_delay(ranks=ranks),
        "get_queue_length_summary": lambda: loaded.get_queue_length_summary(ranks=ranks),
        "get_time_spent_blocked_on_full_queue": full_queue,
        "get_memory_bw_summary": lambda: loaded.get_memory_bw_summary(ranks=ranks),
        "get_frequent_cuda_kernel_sequences": sequences,
        "get_potential_stragglers": loaded.get_potential_stragglers,
        "get_profiler_steps": loaded.get_profiler_steps,
    }


def is_empty(found):
    """Whether it says nothing: of no rank."""
    if isinstance(found, dict):
        found = list(found.values())
    if isinstance(found, list | tuple):
        return all(map(is_empty, found))
    return found is None or bool(getattr(found, "empty", False))


def told(found):
    """Frames as lists of rows, and the like of lists, dicts and tuples of them."""
    if hasattr(found, "to_json"):
        frame = found.reset_index() if hasattr(found, "reset_index") else found
        return json.loads(frame.to_json(orient="records"))
    if isinstance(found, dict):
        return {str(key): told(value) for key, value in found.items()}
    if isinstance(found, list | tuple):
        return [told(one) for one in found]
    return found


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def say(answer) -> None:
    print(json.dumps(answer, default=str), file=answers, flush=True)


if __name__ == "__main__":
    main()
