"""Learn and test."""

ORDER = 5
