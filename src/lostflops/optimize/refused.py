"""What cannot be done is refused, in words: for missing libraries here, else where it is known."""

from __future__ import annotations

from lostflops.errors import Refused as Refused


def needs(extra: str, error: ImportError) -> Refused:
    """For an optional library that is not installed."""
    return Refused(
        f"this needs '{extra}', which is not installed ({error})",
        f"pip install {extra}, or pip install 'lostflops[optimize]' for everything that optimize can use",
    )
