"""From what is to be recorded to the switches of the user's nsys, in the words of its version.

Whatever that version does not know, or this machine does not allow, is left out, and it is said why.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lostflops.capture.nsys.tool import Nsys
from lostflops.errors import BadOption, shown

WHAT = {
    "cuda": "kernels, copies and CUDA calls; collectives of NCCL",
    "nvtx": "ranges",
    "shapes": "PyTorch's operators with their input shapes, as ranges",
    "os": "calls of the operating system that take longer than 10 µs",
    "python": "samples of Python's call stacks",
    "memory": "allocations of GPU memory",
    "metrics": "GPU counters, by local rank 0 of each node",
    "nic": "network counters, by local rank 0 of each node",
}
DEFAULT_WHAT = ("cuda", "nvtx")
LONG = 30  # seconds after which CUDA's buffers should be flushed while recording
SUPPORTED = 300  # seconds that NVIDIA supports collecting for
OS_THRESHOLD = 10_000  # ns; nsys's own default gives ten times as much data on host-bound jobs
PARAMETERS = Path("/proc/driver/nvidia/params")


@dataclass
class Switches:
    """What nsys is started with. `lean` for every rank, `node` in addition for local rank 0 of a node."""

    tool: Nsys
    lean: list[str] = field(default_factory=list[str])
    node: list[str] = field(default_factory=list[str])
    left_out: list[str] = field(default_factory=list[str])
    warnings: list[str] = field(default_factory=list[str])

    def add(self, switch: str, value: str) -> bool:
        """Use a switch if this nsys has it."""
        if not self.tool.knows(switch, value):
            return False
        self.lean.append(f"--{switch}={value}")
        return True

    def leave_out(self, what: str, why: str) -> None:
        self.left_out.append(f"{what} is not recorded: {why}")


def switches(
    tool: Nsys,
    what: Sequence[str],
    environment: Mapping[str, str],
    *,
    duration: float | None = None,
    parameters: Path = PARAMETERS,
    administrator: bool | None = None,
) -> Switches:
    """What `nsys profile` is started with to record `what`, for `duration` seconds if that is known."""
    made = Switches(tool)
    made.lean.append(f"--trace={','.join(_traces(made, what, environment)) or 'none'}")
    if "cuda" in what or "memory" in what:
        made.add("cuda-graph-trace", "node")  # else the kernels inside a graph are one box
        made.add("cuda-event-trace", "false")
        if (duration or 0) > LONG:
            made.add("cuda-flush-interval", "10000")
    if "shapes" in what and not made.add("pytorch", "autograd-shapes-nvtx"):
        made.leave_out("shapes", f"nsys {tool.version} cannot make ranges of PyTorch's operators")
    if "os" in what:
        made.add("osrt-threshold", str(OS_THRESHOLD))
    if "python" in what and not made.add("python-sampling", "true"):
        made.leave_out("python", f"nsys {tool.version} cannot sample Python")
    if "memory" in what and not made.add("cuda-memory-usage", "true"):
        made.leave_out("memory", f"nsys {tool.version} cannot record allocations")
    made.add("sample", "none")
    made.add("cpuctxsw", "none")  # on by itself, also without sampling
    made.add("resolve-symbols", "false")
    made.add("show-source-info", "false")
    # Otherwise nsys ends the job when it has what it wants, and waits for what the job left running.
    made.lean += ["--kill=none", "--wait=primary"]
    if not made.add("discard-environment", "true"):
        made.warnings.append(
            f"nsys {tool.version} writes the job's whole environment, tokens included, into its reports: "
            "do not share them; export them and clean the export with `lostflops scrub`"
        )
    if "metrics" in what:
        _metrics(made, parameters, os.geteuid() == 0 if administrator is None else administrator)
    if "nic" in what:
        _nic(made)
    if (duration or 0) > SUPPORTED:
        made.warnings.append("NVIDIA supports recordings of up to 5 minutes; --duration asks for more")
    return made


def range_switches(windows: int | None, delay: float | None, duration: float | None) -> dict[str, list[str]]:
    """How recording begins and ends, by method; a rank takes the first that works where it runs.

    `windows` is how many there will be, None where nobody knows. With both times, nsys needs no steps.
    """
    if delay is not None and duration is not None:
        return {"time": [f"--delay={delay:g}", f"--duration={duration:g}"]}
    end = "stop" if windows == 1 else "repeat" if windows is None else f"repeat:{windows}"
    return {
        "cuda": ["--capture-range=cudaProfilerApi", f"--capture-range-end={end}"],
        # Without CUDA nothing in the job can open a range: the rank starts and stops a session instead.
        "session": ["--start-later=true", "--session-new={session}"],
    }


def what(text: str) -> tuple[str, ...]:
    """The kinds of events of 'cuda,nvtx'."""
    asked = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    for word in asked:
        if word not in WHAT:
            raise BadOption(
                f"'{shown(word)}' is not something that nsys can be asked to record.",
                f"choose from {', '.join(WHAT)}.",
            )
    return asked or DEFAULT_WHAT


def _traces(made: Switches, what: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    traces: list[str] = []
    if "cuda" in what or "memory" in what:
        # The hardware's own trace, newer releases' choice, does not work where a GPU is shared.
        shared = environment.get("CUDA_MPS_PIPE_DIRECTORY") or environment.get(
            "CUDA_VISIBLE_DEVICES", ""
        ).startswith("MIG-")
        software = shared and "cuda-sw" in made.tool.switches["trace"]
        traces.append("cuda-sw" if software else "cuda")
    if "nvtx" in what or "cuda" in what:
        traces.append("nvtx")  # where older releases see NCCL
    if "cuda" in what and "nccl" in made.tool.switches["trace"]:
        traces.append("nccl")
    if "os" in what:
        traces.append("osrt")
    for trace in list(traces):
        if not made.tool.knows("trace", trace):
            traces.remove(trace)
            made.leave_out(trace, f"nsys {made.tool.version} does not trace it")
    return traces


def _metrics(made: Switches, parameters: Path, administrator: bool) -> None:
    try:
        reserved = "RmProfilingAdminOnly: 1" in parameters.read_text()
    except OSError:
        reserved = False  # no driver here: the job's nodes have one
    if reserved and not administrator:
        made.leave_out(
            "metrics", "the driver lets only administrators read GPU counters (RmProfilingAdminOnly: 1)"
        )
        return
    for switch in ("gpu-metrics-devices", "gpu-metrics-device"):
        if made.tool.knows(switch):
            made.node.append(f"--{switch}=all")
            return
    made.leave_out("metrics", f"nsys {made.tool.version} cannot read GPU counters")


def _nic(made: Switches) -> None:
    values = made.tool.switches.get("nic-metrics")
    if values is None:
        made.leave_out("nic", f"nsys {made.tool.version} cannot read network counters")
        return
    made.node.append(f"--nic-metrics={'lf' if 'lf' in values else 'true'}")
