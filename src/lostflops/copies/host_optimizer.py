"""What an optimizer step on the host costs that its backward does not hide."""

from __future__ import annotations

from lostflops.errors import Refused


def exposed_optimizer_seconds(
    cpu_step_seconds: float,
    moved_bytes: int,
    host_to_device_bytes_per_second: float,
    window_seconds: float,
) -> float:
    """What a step is longer than its backward: max(0, t_cpu + bytes / B_in - window), predicted.

    `window_seconds`: how long the backward goes on while gradients already are on the host. The hidden part
    grows with the tokens of a step, because the window does and the other two do not.
    """
    for name, value in (("cpu_step_seconds", cpu_step_seconds), ("moved_bytes", moved_bytes),
                        ("window_seconds", window_seconds)):  # fmt: skip
        if value < 0:
            raise Refused(f"{name} cannot be {value}", "give 0 or more")
    if host_to_device_bytes_per_second <= 0:
        raise Refused(
            "a link without speed", "give host_to_device_bytes_per_second as measure_link measured it"
        )
    return max(0.0, cpu_step_seconds + moved_bytes / host_to_device_bytes_per_second - window_seconds)
