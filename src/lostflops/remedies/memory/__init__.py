"""Memory."""

ORDER = 4
