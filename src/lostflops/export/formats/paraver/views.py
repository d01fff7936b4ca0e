"""Views for Paraver of our own: all rows, the whole time, no zoom that was saved."""

from __future__ import annotations

from collections.abc import Sequence

from lostflops.accounts import ACCOUNTS as LEDGER

from . import values as v

HEAD = "#ParaverCFG\nConfigFile.Version: 3.4\nConfigFile.NumWindows: {windows}\n"
LAST, SIGN, STACKED, IN_TRANSIT = "Last Evt Val", "Sign", "Stacked Val", "Send Messages in Transit"


def views(stem: str) -> dict[str, str]:
    """Each view by the ending that it has behind the name of the trace."""
    gpu = (v.COPY, v.KERNEL, v.COMMUNICATION, v.GRAPH)
    found = {
        "accounts": _timeline("Account", (v.ACCOUNT,)),
        "accounts-per-rank": _table("Account time", (v.ACCOUNT,), len(LEDGER) + 1),
        "gpu-activity": _timeline("GPU is active", gpu, compose=SIGN, level="task", task="Adding"),
        "gpu-useful": _timeline("Kernels that compute", (v.KERNEL,), compose=SIGN, level="task",
                                task="Adding"),
        "gpu-gaps": _timeline("Active or not", gpu, compose=SIGN, level="task", task="Maximum"),
        "streams": _timeline("Work of streams", gpu),
        "kernel-families": _timeline("Kernel family", (v.FAMILY,)),
        "kernel-families-per-rank": _table("Time by kernel family", (v.FAMILY,), 16),
        "kernel-precision": _timeline("Kernel precision", (v.PRECISION,)),
        "collectives": _timeline("Collective", (v.COLLECTIVE,)),
        "collectives-per-rank": _table("Time by collective", (v.COLLECTIVE,), 16),
        "collective-bytes": _timeline("Bytes of collective", (v.BYTES,)),
        "wait-and-transfer": _timeline("Waits or transfers", (v.PROGRESS,)),
        "wait-per-rank": _table("Time of waiting and transfer", (v.PROGRESS,), 2),
        "process-groups": _timeline("Process group", (v.GROUP,)),
        "communication": _timeline("Communication kernels", (v.COMMUNICATION,), compose=SIGN, level="task",
                                   task="Adding"),
        "api-calls": _timeline("API call", (v.API,)),
        "nvtx-ranges": _timeline("NVTX range", (v.RANGE,), compose=STACKED),
        "launch-queue": _timeline("Launched and not begun", (), thread=IN_TRANSIT),
        "steps": _timeline("Step", (v.STEP,)),
        "useful-per-rank": _table("Share of time in each account", (v.ACCOUNT,), len(LEDGER) + 1,
                                  statistic="% Window Time"),
    }  # fmt: skip
    return {f"-{name}.cfg": text for name, text in found.items()}


def _window(
    name: str, types: Sequence[int], *, thread: str, compose: str, level: str, task: str, shown: bool = True
) -> str:
    kept = ""
    if types:
        kept = f"window_filter_module evt_type {len(types)} {' '.join(map(str, types))}\n"
    return f"""
< NEW DISPLAYING WINDOW {name} >
window_name {name}
window_type single
window_id 1
window_units Nanoseconds
window_level {level}
window_object appl {{ 1, {{ All }} }}
window_begin_time_relative 0.000000000000
window_end_time_relative 1.000000000000
window_open {"true" if shown else "false"}
window_selected_functions {{ 3, {{ {{task, {task}}}, {{thread, {thread}}}, {{evt_type, =}} }} }}
window_compose_functions {{ 1, {{ {{compose_thread, {compose}}} }} }}
{kept}"""


def _timeline(
    name: str,
    types: Sequence[int],
    *,
    thread: str = LAST,
    compose: str = "As Is",
    level: str = "thread",
    task: str = "Maximum",
) -> str:
    window = _window(name, types, thread=thread, compose=compose, level=level, task=task)
    return HEAD.format(windows=1) + window


def _table(name: str, types: Sequence[int], most: int, statistic: str = "Time") -> str:
    """How long each rank has each value."""
    window = _window(name, types, thread=LAST, compose="As Is", level="task", task="Maximum", shown=False)
    return (
        HEAD.format(windows=1)
        + window
        + f"""
< NEW ANALYZER2D >
Analyzer2D.Name: {name}
Analyzer2D.ControlWindow: 1
Analyzer2D.DataWindow: 1
Analyzer2D.Statistic: {statistic}
Analyzer2D.CalculateAll: True
Analyzer2D.HorizVert: Horizontal
Analyzer2D.AnalysisLimits: Alltrace
Analyzer2D.ComputeYScale: True
Analyzer2D.Minimum: 1.000000000000
Analyzer2D.Maximum: {most:.12f}
Analyzer2D.Delta: 1.000000000000
Analyzer2D.UseFixedDelta: True
Analyzer2D.ComputeGradient: True
Analyzer2D.Objects: All
"""
    )
