"""Pipelines, tensors and experts over ranks."""

ORDER = 7
