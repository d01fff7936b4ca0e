"""lostflops finds where your GPU hours go, what to change, and proves that it helped."""

from .version import __version__

__all__ = ["__version__"]
