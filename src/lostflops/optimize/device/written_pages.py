"""Which pages of host memory were written to, by whatever way: torch does not count writes through `.data`.

Linux since 6.7 says so without a fault handler: pages are protected (userfaultfd, asynchronous), the first
write to one lets the protection go, and `PAGEMAP_SCAN` finds those pages and protects them anew, in one step.
A scan takes microseconds where pages are huge, and 0.3 ms per GB of small ones.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import struct
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress

SYSTEM_CALL = {"x86_64": 323, "aarch64": 282}  # userfaultfd
USER_MODE_ONLY = 1  # what an unprivileged process may ask for; nothing is ever delivered here
API, API_VERSION = 0xC018AA3F, 0xAA
WRITE_PROTECT, UNPOPULATED, ASYNCHRONOUS = 1 << 0, 1 << 13, 1 << 15
REGISTER, BY_WRITE_PROTECTION = 0xC020AA00, 2
SCAN, SCAN_SIZE = 0xC0606610, 96
PROTECT_FOUND, MUST_BE_ASYNCHRONOUS = 1, 2
IS_WRITTEN, IS_FILE = 2, 4
FOUND = 64  # stretches that one call tells


class WrittenPages:
    """Watches memory of this process from `watch` to `close`. Raises `OSError` where the kernel cannot, or a
    container forbids it (Docker's default profile does)."""

    def __init__(self) -> None:
        number = SYSTEM_CALL.get(platform.machine())
        library = ctypes.CDLL(None, use_errno=True)
        if number is None or not hasattr(library, "syscall"):
            raise OSError("userfaultfd is not known here")
        self._faults = library.syscall(number, os.O_CLOEXEC | USER_MODE_ONLY)
        if self._faults < 0:
            raise OSError(ctypes.get_errno(), "userfaultfd")
        opened = [self._faults]
        self._close = weakref.finalize(self, _close, opened)
        wanted = WRITE_PROTECT | UNPOPULATED | ASYNCHRONOUS
        try:
            fcntl.ioctl(self._faults, API, bytearray(struct.pack("3Q", API_VERSION, wanted, 0)))
            self._pages = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
            opened.append(self._pages)
            self._try()
        except OSError:
            self.close()
            raise

    def watch(self, first: int, end: int) -> None:
        """Whole pages, by address. What was written up to now does not count."""
        if first < end:
            asked = struct.pack("4Q", first, end - first, BY_WRITE_PROTECTION, 0)
            fcntl.ioctl(self._faults, REGISTER, bytearray(asked))
            self.written(first, end)

    def written(self, first: int, end: int, *, but_for: int = 0) -> list[tuple[int, int]]:
        """The stretches of it that were written to since the last time.

        `but_for=IS_FILE`, for a file that is mapped: not those pages that are still the file's.
        """
        told: list[tuple[int, int]] = []
        found = (ctypes.c_uint64 * (3 * FOUND))()
        flags, asked_for = PROTECT_FOUND | MUST_BE_ASYNCHRONOUS, IS_WRITTEN | but_for
        while first < end:
            asked = bytearray(
                struct.pack(
                    "12Q", SCAN_SIZE, flags, first, end, 0, ctypes.addressof(found), FOUND,
                    0, but_for, asked_for, 0, asked_for,
                )
            )  # fmt: skip
            many = fcntl.ioctl(self._pages, SCAN, asked)
            told += [(found[3 * each], found[3 * each + 1]) for each in range(many)]
            first = struct.unpack_from("Q", asked, 32)[0]
        return told

    def close(self) -> None:
        self._close()

    def _try(self) -> None:
        """On a page of its own: what only claims to work must not be believed."""
        with mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as page:
            byte = ctypes.c_char.from_buffer(page)
            first = ctypes.addressof(byte)
            del byte
            page[7] = 1
            self.watch(first, first + mmap.PAGESIZE)
            end = first + mmap.PAGESIZE
            seen = [bool(self.written(first, end))]
            page[7] = 2
            seen += [bool(self.written(first, end)) for _ in range(2)]
            if seen != [False, True, False]:
                raise OSError("writes to pages are not noticed")


class MappedLayers:
    """Layers whose weights are views of mapped files: which of them were written to.

    `stretches` of addresses by layer. Neighbours in a file share a page: a write to it may be either's.
    """

    def __init__(self, pages: WrittenPages, stretches: Mapping[int, Sequence[tuple[int, int]]]) -> None:
        size = mmap.PAGESIZE
        self._pages = pages
        self._stretches = {
            layer: [(first // size * size, -(-end // size) * size) for first, end in each]
            for layer, each in stretches.items()
        }
        for first, end in {each for whole in self._stretches.values() for each in whole}:
            pages.watch(first, end)

    def written(self, layer: int) -> list[int]:
        """The layers that share a page which was written to since somebody asked, of those of this layer."""
        told = [
            page
            for first, end in self._stretches.get(layer, ())
            for page in self._pages.written(first, end, but_for=IS_FILE)
        ]
        if not told:
            return []
        return [
            other
            for other, whole in self._stretches.items()
            if any(first < last and begin < end for first, end in whole for begin, last in told)
        ]


def _close(opened: list[int]) -> None:
    for number in opened:
        with suppress(OSError):
            os.close(number)


def watching() -> WrittenPages | None:
    """None where it cannot be known."""
    try:
        return WrittenPages()
    except (OSError, AttributeError):
        return None
