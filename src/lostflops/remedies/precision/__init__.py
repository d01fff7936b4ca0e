"""Precision."""

ORDER = 2
