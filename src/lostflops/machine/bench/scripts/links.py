"""Times copies between host memory and GPUs: `python links.py SETTINGS RESULT`.

Runs in the interpreter of the job, with the standard library and torch alone. SETTINGS is a JSON object,
RESULT a file to which a JSON line per measurement is appended. Not verified on a GPU yet.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import platform
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

torch: Any = import_module("torch")  # whose types differ between the versions this may meet
atexit.register(gc.freeze)  # what torch holds is not looked through as Python ends, for half a second

Copy = Callable[[], object]
FEWEST = 5
MATRIX = 4096  # rows of the matrices that are multiplied while copies run
PR_SET_PDEATHSIG = 1


def enough(first: Sequence[int], wanted: dict[str, Any]) -> int:
    """How many repeats the time for one measurement allows, from what the warm-up took."""
    left = int(1e9 * wanted["seconds"] / max(1, sorted(first)[len(first) // 2]))
    return max(min(FEWEST, wanted["repeats"]), min(wanted["repeats"], left))


def on_host(copy: Copy, repeats: int) -> list[int]:
    found: list[int] = []
    for _ in range(repeats):
        start = time.perf_counter_ns()
        copy()
        found.append(time.perf_counter_ns() - start)
    return found


def on_gpu(
    copies: Sequence[tuple[Any, Copy]], repeats: int, meanwhile: Callable[[bool], object] | None = None
) -> list[list[int]]:
    """Nanoseconds of each copy, per stream, queued one after the other; of two streams only while both run.

    A copy goes ahead on each stream, so that what is timed begins where another copy ended. `meanwhile` is
    called until the copies are done, with whether it should wait for what it queues.
    """
    zero = torch.cuda.Event(enable_timing=True)
    marks: list[list[Any]] = [[] for _ in copies]
    with torch.cuda.stream(copies[0][0]):
        zero.record()
    for stream, _ in copies:
        stream.wait_event(zero)
    if meanwhile:
        meanwhile(True)  # the first one ever is slow
        meanwhile(False)
    for _ in range(repeats + 1):
        for own, (stream, copy) in zip(marks, copies, strict=True):
            with torch.cuda.stream(stream):
                copy()
                own.append(torch.cuda.Event(enable_timing=True))
                own[-1].record()
    while meanwhile and not marks[0][-1].query():
        meanwhile(True)
    for stream, _ in copies:
        stream.synchronize()
    alone = min(zero.elapsed_time(own[-1]) for own in marks)  # from then on one direction has the link
    return [
        [
            max(1, round(1e6 * start.elapsed_time(end)))
            for number, (start, end) in enumerate(pairwise(own))
            if number == 0 or zero.elapsed_time(end) <= alone
        ]
        for own in marks
    ]


def timed(
    copies: Sequence[tuple[Any, Copy]],
    wanted: dict[str, Any],
    meanwhile: Callable[[bool], object] | None = None,
) -> list[list[int]]:
    first = on_gpu(copies, wanted["warm_up"])
    worst = [max(each) for each in zip(*first, strict=False)]
    return on_gpu(copies, enough(worst, wanted), meanwhile)


def products(device: Any) -> Callable[[bool], object]:
    """Multiplies matrices on the GPU, and waits if asked to, so that few are queued."""
    a, b = (torch.ones(MATRIX, MATRIX, dtype=torch.bfloat16, device=device) for _ in range(2))

    def multiply(wait: bool) -> None:
        torch.mm(a, b)
        if wait:
            torch.cuda.current_stream(device).synchronize()

    return multiply


def host_copies(wanted: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """From host memory to host memory, on the CPUs of each memory node."""
    for node in nodes(wanted):
        for size in wanted["sizes"]:
            row = {"operation": "host to host", "bytes": size, "host_memory": "pageable", "numa": node}
            try:
                source, target = torch.ones(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
            except (RuntimeError, MemoryError) as error:
                yield row | {"remark": said(error)}
                break

            def copy(source: Any = source, target: Any = target) -> None:
                target.copy_(source)

            repeats = enough(on_host(copy, wanted["warm_up"]), wanted)
            yield row | {"times": on_host(copy, repeats), "correct": bool(torch.equal(source, target))}


def gpu_copies(wanted: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Both ways between each GPU and pinned and pageable memory of each memory node, and pinned at once."""
    for node in nodes(wanted):
        for gpu in range(torch.cuda.device_count()):
            for kind in ("pinned", "pageable"):
                yield from _of_gpu(gpu, node, kind, wanted)


def _of_gpu(gpu: int, node: int | None, kind: str, wanted: dict[str, Any]) -> Iterator[dict[str, Any]]:
    device = torch.device("cuda", gpu)
    out, back = torch.cuda.Stream(device), torch.cuda.Stream(device)
    about = {"device": f"GPU{gpu}", "host_memory": kind, "numa": node}
    busy = products(device)
    for size in wanted["sizes"]:
        try:
            # Touched here, on the node's CPUs, so that its pages lie there.
            down, up = (torch.ones(size, dtype=torch.uint8, pin_memory=kind == "pinned") for _ in range(2))
            near, far = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
        except (RuntimeError, MemoryError) as error:
            yield about | {"operation": "host to device", "bytes": size, "remark": said(error)}
            return
        torch.cuda.synchronize(device)

        def send(near: Any = near, down: Any = down) -> None:
            near.copy_(down, non_blocking=True)

        def fetch(up: Any = up, far: Any = far) -> None:
            up.copy_(far, non_blocking=True)

        (times,) = timed([(out, send)], wanted)
        right = bool((near == 1).all())
        row = about | {"bytes": size}
        yield row | {"operation": "host to device", "both": False, "times": times, "correct": right}
        (times,) = timed([(back, fetch)], wanted)
        right = bool((up == 0).all())
        yield row | {"operation": "device to host", "both": False, "times": times, "correct": right}
        if kind == "pinned":
            sent, fetched = timed([(out, send), (back, fetch)], wanted)
            yield row | {"operation": "host to device", "both": True, "times": sent}
            yield row | {"operation": "device to host", "both": True, "times": fetched}
            for operation, stream, copy in (("host to device", out, send), ("device to host", back, fetch)):
                (times,) = timed([(stream, copy)], wanted, busy)
                yield row | {"operation": operation, "load": "matrix products", "times": times}


def between_gpus(wanted: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Inside each GPU's memory, and from each to each other."""
    gpus = range(torch.cuda.device_count())
    for a in gpus:
        stream = torch.cuda.Stream(torch.device("cuda", a))
        for b in gpus:
            for size in wanted["sizes"]:
                row = {"operation": "peer to peer" if a != b else "device to device", "bytes": size}
                row |= {"device": f"GPU{a}", **({"peer": f"GPU{b}"} if a != b else {})}
                try:
                    source = torch.ones(size, dtype=torch.uint8, device=torch.device("cuda", a))
                    target = torch.zeros(size, dtype=torch.uint8, device=torch.device("cuda", b))
                except RuntimeError as error:
                    yield row | {"remark": said(error)}
                    break
                torch.cuda.synchronize(a)
                torch.cuda.synchronize(b)

                def copy(source: Any = source, target: Any = target) -> None:
                    target.copy_(source, non_blocking=True)

                with torch.cuda.device(a):
                    (times,) = timed([(stream, copy)], wanted)
                torch.cuda.synchronize(b)
                yield row | {"times": times, "correct": bool((target == 1).all())}


def nodes(wanted: dict[str, Any]) -> Iterator[int | None]:
    """Move this process to the CPUs of each memory node in turn; memory that it touches then lies there."""
    allowed = os.sched_getaffinity(0)
    known = [(node, allowed & set(cpus)) for node, cpus in wanted["nodes"]]
    usable = [(node, cpus) for node, cpus in known if cpus]
    if not usable:
        yield None
        return
    try:
        for node, cpus in usable:
            os.sched_setaffinity(0, cpus)
            yield node
    finally:
        os.sched_setaffinity(0, allowed)


def said(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200] if str(error).strip() else ''}"


def end_with_parent() -> None:
    """Have the kernel end this process when the one that started it is gone: nobody would read the result."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(words: Sequence[str]) -> None:
    end_with_parent()
    wanted: dict[str, Any] = json.loads(words[0])
    # Torch's other threads stay on the CPUs on which they began, and would put memory there.
    torch.set_num_threads(1)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    about: dict[str, Any] = {"kind": "job", "torch": torch.__version__, "gpus": gpus}
    if gpus:
        about["gpu"] = torch.cuda.get_device_name(0)
        about["machine"] = platform.machine()
        with suppress(OSError):
            version = Path("/proc/driver/nvidia/version").read_text(errors="replace")
            about["driver"] = next(iter(re.findall(r"\b\d{3,4}\.\d+(?:\.\d+)?\b", version)), "unknown")
    places = len(wanted["nodes"]) or 1
    links = 8 * places * gpus + gpus * gpus if gpus else places  # as far as memory and affinity allow
    about["planned"] = links * len(wanted["sizes"])
    with Path(words[1]).open("a", buffering=1) as file:
        file.write(json.dumps(about) + "\n")
        for measure in (gpu_copies, between_gpus) if gpus else (host_copies,):
            for found in measure(wanted):
                file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
