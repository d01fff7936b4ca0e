"""The machine."""

ORDER = 8
