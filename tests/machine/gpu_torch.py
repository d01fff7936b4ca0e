"""A torch with two GPUs whose time is a number, for the scripts that measure in the Python of a job.

GPU1 is slower; host to device takes twice as long while the other direction runs, and all copies take longer
while matrices are multiplied. The environment's GPUS says how many there are.
"""

from __future__ import annotations

import sys
from pathlib import Path

TORCH = """
import contextlib
import os
__version__ = "9.9"
uint8 = bfloat16 = "type"
now, queued = 0.0, {"out": [], "into": []}
RATE = {"out": (50.0, 40.0), "into": (60.0, 30.0)}  # GB/s by GPU
LAUNCH = {"out": 7000, "into": 9000}
multiplied = False

class device:
    def __init__(self, kind, index=0): self.type, self.index = kind, index

class Tensor:
    def __init__(self, size, value, where, pinned):
        self.size, self.value, self.where, self.pinned = size, value, where, pinned

    def copy_(self, other, non_blocking=False):
        self.value = other.value
        if self.where is None and other.where is None: return
        gpu = (self.where or other.where).index
        way = "into" if other.where is None else "out"
        slow = 1 if (other.pinned or self.pinned) else 5
        mark = [None]
        queued[way].append((self.size, gpu, slow, mark))
        cuda.now_on.last = mark
    def __eq__(self, value): return Tensor(self.size, self.value == value, None, False)
    def all(self): return self.value

def ones(*size, dtype=None, pin_memory=False, device=None): return Tensor(size[0], 1, device, pin_memory)
def zeros(*size, dtype=None, pin_memory=False, device=None): return Tensor(size[0], 0, device, pin_memory)
def equal(a, b): return a.value == b.value
def set_num_threads(n): pass
def mm(a, b):
    global multiplied
    multiplied = True

def resolve():
    global now, multiplied
    ends = [now]
    for way, rows in queued.items():
        at = now
        for size, gpu, slow, mark in rows:
            rate = RATE[way][gpu] / slow / (1.25 if multiplied else 1)
            at += LAUNCH[way]
            beside = min(size, max(0, max(ends) - at) * rate / 2)
            at += beside / (rate / 2) + (size - beside) / rate
            mark[0] = at
        rows.clear()
        ends.append(at)
    now, multiplied = max(ends), False

class Stream:
    def __init__(self, device=None): self.last = [0.0]
    def wait_event(self, event): pass
    def synchronize(self): resolve()

class Event:
    def __init__(self, enable_timing=False): self.mark = None
    def record(self): self.mark = cuda.now_on.last if any(queued.values()) else [now]
    def query(self): return self.mark[0] is not None
    def elapsed_time(self, other): return (other.mark[0] - self.mark[0]) / 1e6

class cuda:
    Stream, Event, now_on = Stream, Event, Stream()
    @staticmethod
    def is_available(): return cuda.device_count() > 0
    @staticmethod
    def device_count(): return int(os.environ.get("GPUS", "2"))
    @staticmethod
    def get_device_name(n): return "Fast Card"
    @staticmethod
    def synchronize(device=None): resolve()
    @staticmethod
    def current_stream(device=None): return cuda.now_on
    @staticmethod
    @contextlib.contextmanager
    def stream(s):
        before, cuda.now_on = cuda.now_on, s
        yield
        cuda.now_on = before
    @staticmethod
    @contextlib.contextmanager
    def device(n): yield
"""


def python_with_gpus(folder: Path) -> str:
    """A Python whose torch it is."""
    (folder / "gpus").mkdir()
    (folder / "gpus" / "torch.py").write_text(TORCH)
    program = folder / "python-with-gpus"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={folder / "gpus"} exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return str(program)
