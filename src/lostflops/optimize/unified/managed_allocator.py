"""Builds and opens the C allocator of unified memory, and tells what it has handed out.

`managed_allocator.c` is compiled once per machine, compiler and version of this file into the user's cache
folder, and loaded into the process for good: torch may free a tensor long after everybody forgot it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from lostflops.optimize.refused import Refused

SOURCE = Path(__file__).with_name("managed_allocator.c")
FLAGS = ("-std=gnu11", "-O2", "-shared", "-fPIC", "-pthread")
KINDS = ("managed", "system", "device")  # in the order of the C file
PREFERENCES = ("gpu", "cpu")
HOST = -1
PATIENCE = 120  # seconds for the compiler

_opened: dict[Path, Allocator] = {}
_opening = threading.Lock()


@dataclass(frozen=True)
class Usage:
    """Of one kind and preference on one GPU, since the process began. Bytes are those of whole segments."""

    bytes_now: int
    most_bytes: int
    allocations: int
    releases: int
    failures: int
    refused_advice: int
    last_failure: int  # cudaError


class Allocator:
    """The loaded library. Its functions may be called from any thread."""

    def __init__(self, path: Path, library: ctypes.CDLL) -> None:
        self.path = path
        self._library = library
        library.lostflops_problem.restype = ctypes.c_char_p
        memory, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        library.lostflops_advise.argtypes = [memory, size, number, number]
        library.lostflops_prefetch.argtypes = [memory, size, number, ctypes.c_void_p]

    def open(self, runtime: str) -> None:
        if self._library.lostflops_open(os.fsencode(runtime)):
            why = self._library.lostflops_problem().decode(errors="replace")
            raise Refused(
                f"{Path(runtime).name} cannot be used for unified memory: {why}",
                "use the CUDA runtime that torch was built with",
            )

    @property
    def takes_location(self) -> bool:
        """Whether advice and prefetch of this CUDA take a struct for the place (12.2 and later)."""
        return bool(self._library.lostflops_takes_location())

    def names(self, kind: str, prefer: str) -> tuple[str, str]:
        """The functions that torch's CUDAPluggableAllocator is told of."""
        return f"lostflops_{kind}_{prefer}_alloc", f"lostflops_{kind}_{prefer}_free"

    def usage(self, kind: str, prefer: str, device: int) -> Usage:
        numbers = (ctypes.c_longlong * 7)()
        if self._library.lostflops_usage(
            KINDS.index(kind), PREFERENCES.index(prefer), device, ctypes.byref(numbers)
        ):
            raise Refused(f"GPU {device} is beyond what can be counted", "use GPUs 0 to 63")
        return Usage(*numbers)

    def say_failures(self) -> None:
        """From now on on stderr as well: whoever asks for memory does not look."""
        self._library.lostflops_say_failures()

    def forget_peak(self, kind: str, prefer: str, device: int) -> None:
        self._library.lostflops_forget_peak(KINDS.index(kind), PREFERENCES.index(prefer), device)

    def allocate(self, kind: str, prefer: str, nbytes: int, device: int) -> int | None:
        """An address, or None when there is no memory. For trying out; torch calls the function itself."""
        function = self._library[self.names(kind, prefer)[0]]
        function.restype = ctypes.c_void_p
        function.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        return function(nbytes, device, None)

    def free(self, kind: str, prefer: str, address: int, nbytes: int, device: int) -> None:
        function = self._library[self.names(kind, prefer)[1]]
        function.restype = None
        function.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
        function(address, nbytes, device, None)

    def advise(self, address: int, nbytes: int, advice: int, device: int) -> int:
        """cudaError of cudaMemAdvise; `device` -1 is the host."""
        return self._library.lostflops_advise(address, nbytes, advice, device)

    def prefetch(self, address: int, nbytes: int, device: int, stream: int) -> int:
        """cudaError of cudaMemPrefetchAsync on a cudaStream_t."""
        return self._library.lostflops_prefetch(address, nbytes, device, stream)


def opened(runtime: str) -> Allocator:
    """The allocator, on this libcudart; built at first use, and the same for the rest of the process."""
    with _opening:
        path = built()
        if path not in _opened:
            allocator = Allocator(path, ctypes.CDLL(str(path)))
            allocator.open(runtime)
            _opened[path] = allocator
        return _opened[path]


def built() -> Path:
    """The compiled library in the cache folder. Refuses without a C compiler, or a folder to write to."""
    compiler = _compiler()
    told = "\0".join((SOURCE.read_text(), compiler, *FLAGS, platform.machine(), *platform.libc_ver()))
    folder = _folder()
    library = folder / f"managed-{hashlib.sha256(told.encode()).hexdigest()[:16]}.so"
    if library.is_file():
        return library
    # Built beside and moved, so that another process never loads half a file.
    with tempfile.TemporaryDirectory(dir=folder) as beside:
        made = Path(beside) / "made.so"
        try:
            done = subprocess.run(
                [compiler, *FLAGS, "-o", str(made), str(SOURCE), "-ldl"],
                stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Refused(f"the C compiler did not run: {error}", "set CC to a working C compiler") from error
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()[:3]
            raise Refused(
                f"the allocator of unified memory did not compile with {compiler}: {' '.join(said)}",
                "set CC to gcc or clang with the C library's headers (Debian: apt install build-essential)",
            )
        made.replace(library)
    return library


def _compiler() -> str:
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        if name and (found := shutil.which(name)):
            return found
    raise Refused(
        "unified memory needs a C compiler, and there is none on the PATH",
        "install gcc or clang (Debian: apt install build-essential), or set CC",
    )


def _folder() -> Path:
    """Of this user alone: what lies there is loaded into the process."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    folder = (Path(root) if root.startswith("/") else Path.home() / ".cache") / "lostflops"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = folder.stat()
    except (OSError, RuntimeError) as error:
        raise Refused(
            f"the cache folder cannot be made: {error}", "set XDG_CACHE_HOME to a folder of yours"
        ) from error
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise Refused(
            f"{folder} can be written by others: libraries from there are not loaded",
            "make it yours alone (chmod 700), or set XDG_CACHE_HOME to a folder of yours",
        )
    return folder
