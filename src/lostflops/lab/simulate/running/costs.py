"""What hosts and devices take for what is not the job's own work, and how much all times vary."""

from __future__ import annotations

from dataclasses import dataclass, field

from lostflops.lab.simulate.model.blocks import US, HostPace


@dataclass(frozen=True)
class HostCosts:
    """Times in ns; `kernel_noise` and the like are shares by which a time is longer or shorter at most."""

    pace: HostPace = field(default_factory=HostPace)
    arrive: int = 2_500  # from the middle of a launch to the earliest start of its work
    between: int = 900  # between two kernels of one stream, or from an event to what waits for it
    wake: int = 7 * US  # from the end of work to the return of the call that waited for it
    switch: int = 15 * US  # from one host thread to another
    event: int = 2 * US  # to record an event, or to make a stream wait for one
    collective: int = 30 * US  # to issue one, its launch included
    copy: int = 24 * US  # to issue one
    queue: int = 1024  # launches that may be pending before the host has to wait
    leave: int = 1_500  # ns within which the members of a collective leave it
    kernel_noise: float = 0.03
    host_noise: float = 0.04
    transfer_noise: float = 0.03


IDEAL = HostCosts(
    HostPace(0, 0), arrive=0, between=0, wake=0, switch=0, event=0, collective=0, copy=0, queue=1 << 40,
    leave=0, kernel_noise=0.0, host_noise=0.0, transfer_noise=0.0,
)  # fmt: skip
