"""Amounts of memory, as the whole package reads and writes them."""

from __future__ import annotations

from lostflops.units import bytes_of as bytes_of
from lostflops.units import written as written
