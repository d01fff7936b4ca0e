"""Kernels and launches."""

ORDER = 5
