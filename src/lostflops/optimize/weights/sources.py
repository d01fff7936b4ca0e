"""Where the bytes of layers come from: host memory, or a file through a few buffers in host memory.

The device's copies need host memory that is there before they are queued. So a file is read ahead, on a
thread, into a buffer; who needs it waits for the thread. A buffer is read into again only when the copy out
of it is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import torch

from lostflops.optimize.device.devices import Device, Event


class Sources(Protocol):
    def __len__(self) -> int: ...

    def nbytes(self, layer: int) -> int: ...

    def ask(self, layers: Sequence[int]) -> None:
        """These will be needed, soonest first."""
        ...

    def get(self, layer: int) -> torch.Tensor:
        """Its bytes in host memory. Waits."""
        ...

    def sent(self, layer: int, event: Event) -> None:
        """The copy out of them is done with the event."""
        ...

    def forget(self, layer: int) -> None:
        """Its bytes have changed."""
        ...


class HostSources:
    """All layers in host memory."""

    def __init__(self, memories: Sequence[torch.Tensor]) -> None:
        self._memories = memories

    def __len__(self) -> int:
        return len(self._memories)

    def nbytes(self, layer: int) -> int:
        return self._memories[layer].numel()

    def ask(self, layers: Sequence[int]) -> None: ...

    def get(self, layer: int) -> torch.Tensor:
        return self._memories[layer]

    def sent(self, layer: int, event: Event) -> None: ...

    def forget(self, layer: int) -> None: ...


@dataclass(eq=False)
class LayerBuffer:
    """Host memory for one layer at a time."""

    memory: torch.Tensor
    holds: int | None = None
    version: int = 0  # of the layer, as it was read
    read: Future[int] | None = None
    sent: Event = None
    used: int = 0


class FileSources:
    """Some layers in host memory, the others in files. `read(layer, memory)` says how many bytes it read;
    `version(layer)` counts the writes to the weights: after one, what was read ahead is read again."""

    def __init__(
        self,
        device: Device,
        sizes: Sequence[int],
        in_host: Sequence[torch.Tensor | None],
        read: Callable[[int, torch.Tensor], int],
        version: Callable[[int], int],
        buffers: int,
        thread: Executor | None = None,
    ) -> None:
        self._device = device
        self._sizes, self._in_host = sizes, in_host
        self._read, self._version = read, version
        largest = max(n for n, memory in zip(sizes, in_host, strict=True) if memory is None)
        self.buffers = [LayerBuffer(device.host_memory(largest)) for _ in range(buffers)]
        self._thread = thread or ThreadPoolExecutor(1, "weights of a file")
        self._clock = 0
        self.read_bytes = 0
        self.waited_ns = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def nbytes(self, layer: int) -> int:
        return self._sizes[layer]

    def ask(self, layers: Sequence[int]) -> None:
        wanted = {layer for layer in layers if self._in_host[layer] is None}
        for layer in layers:
            if layer in wanted and self._held(layer) is None:
                free = self._oldest(wanted)
                if free is None or not self._is_sent(free):
                    return
                self._begin(free, layer)

    def get(self, layer: int) -> torch.Tensor:
        memory = self._in_host[layer]
        if memory is not None:
            return memory
        self._clock += 1
        buffer = self._held(layer)
        if buffer is not None and buffer.version != self._version(layer):
            self.forget(layer)
            buffer = None
        if buffer is None:
            buffer = self._oldest({layer}) or self.buffers[0]
            if buffer.sent is not None:
                self._device.synchronize(buffer.sent)
            self._begin(buffer, layer)
        buffer.used = self._clock
        began = time.perf_counter_ns()
        if buffer.read is not None:
            reading, buffer.read = buffer.read, None
            try:
                self.read_bytes += reading.result()
            except BaseException:
                buffer.holds = None
                raise
            self.waited_ns += time.perf_counter_ns() - began
        return buffer.memory[: self._sizes[layer]]

    def sent(self, layer: int, event: Event) -> None:
        buffer = self._held(layer)
        if buffer is not None and self._in_host[layer] is None:
            buffer.sent = event

    def forget(self, layer: int) -> None:
        buffer = self._held(layer)
        if buffer is not None:
            self._finish(buffer)
            buffer.holds = None

    def close(self) -> None:
        """Waits for what is being read, and lets go of the memory."""
        for buffer in self.buffers:
            self._finish(buffer)
            if buffer.sent is not None:
                self._device.synchronize(buffer.sent)
        self._thread.shutdown()
        self.buffers.clear()

    def _finish(self, buffer: LayerBuffer) -> None:
        reading, buffer.read = buffer.read, None
        if reading is not None and reading.exception() is None:
            self.read_bytes += reading.result()

    def _held(self, layer: int) -> LayerBuffer | None:
        return next((buffer for buffer in self.buffers if buffer.holds == layer), None)

    def _oldest(self, wanted: set[int]) -> LayerBuffer | None:
        free = [each for each in self.buffers if each.holds not in wanted]
        return min(free, key=lambda each: (each.holds is not None, each.used), default=None)

    def _is_sent(self, buffer: LayerBuffer) -> bool:
        return buffer.sent is None or self._device.is_done(buffer.sent)

    def _begin(self, buffer: LayerBuffer, layer: int) -> None:
        self._finish(buffer)  # asked for, and not needed after all
        buffer.holds, buffer.sent, buffer.used = layer, None, self._clock
        buffer.version = self._version(layer)
        buffer.read = self._thread.submit(self._read, layer, buffer.memory[: self._sizes[layer]])
