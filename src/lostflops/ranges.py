"""Marks in the user's own code: `@lostflops.annotate` and `with lostflops.range("...")`.

They cost a fraction of a microsecond while nothing records, import nothing, and need neither PyTorch nor a
GPU. `lostflops record --annotate FILE` sets the same marks from outside.
"""

from lostflops.capture.boot.lostflops_boot.marks import Range, annotate

__all__ = ["annotate", "range"]

range = Range  # noqa: A001 - the public name
