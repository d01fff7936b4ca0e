"""The one exception of `lostflops.optimize`: what was asked cannot be done, why, and what can."""

from __future__ import annotations


class Refused(RuntimeError):
    """What is true, as `reason`, and what to do next, as `hint`. The model is as it was before the call."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(f"{reason}\nHint: {hint}")
        self.reason = reason
        self.hint = hint


def needs(extra: str, error: ImportError) -> Refused:
    """For an optional library that is not installed."""
    return Refused(
        f"this needs '{extra}', which is not installed ({error})",
        f"pip install {extra}, or pip install 'lostflops[optimize]' for everything that optimize can use",
    )
