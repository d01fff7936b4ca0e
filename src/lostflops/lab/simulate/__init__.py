"""Training jobs that never ran, as their profilers would have recorded them, and the truth about them.

A strategy declares what each rank does in a step, a fault what goes wrong with that; the engine runs the
ranks' hosts, streams, collectives and transfers, and `files` writes what a profiler would see. All of it
follows from the job and its seed.
"""

from __future__ import annotations

from lostflops.lab.simulate.job import SimulatedJob
from lostflops.lab.simulate.writing import simulate

__all__ = ["SimulatedJob", "simulate"]
