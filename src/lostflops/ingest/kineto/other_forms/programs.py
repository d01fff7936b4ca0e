"""Which other program wrote a trace, as far as its first bytes tell, and what to record instead."""

from __future__ import annotations

import re
from pathlib import Path

from lostflops.ingest.kineto.stream import CHUNK, ReadAhead

# How XLA's profiler names the device of a process, and what it says of each of its operations.
XLA_DEVICE = re.compile(rb'"\\?/device:(?P<kind>GPU|TPU):\d+')
XLA = re.compile(rb'"\\?/host:CPU"|"hlo_(?:op|module)"\s*:|"(?:XLA Ops|XLA Modules)"')
WITH_NSYS = (
    "record the same job with `nsys profile -t cuda,nvtx COMMAND`, export the report with `nsys export "
    "--type sqlite REPORT`, and give that export."
)
ON_TPU = (
    "lostflops reads no recording of a TPU: XProf, the profile plugin of TensorBoard, shows this one. On a "
    "GPU, record with `nsys profile -t cuda,nvtx COMMAND`."
)
ANY = (
    "record PyTorch with `lostflops record -- COMMAND`; JAX, TensorFlow and others with `nsys profile "
    "COMMAND`, and export the report with `nsys export --type sqlite`."
)


def another_program(path: Path) -> tuple[str, str]:
    """What to say after 'another program wrote it', and what to do. Raises Unreadable."""
    source = ReadAhead(path)
    try:
        head = bytearray()
        for block in source:
            head += block
            if len(head) >= CHUNK:
                break
    finally:
        source.close()
    device = XLA_DEVICE.search(head)
    if device is None and XLA.search(head) is None:
        return "", ANY
    kind = device["kind"].decode() if device else ""
    where = f", on a {kind}" if kind else ""
    return f", the profiler of JAX and TensorFlow (XLA){where}", ON_TPU if kind == "TPU" else WITH_NSYS
