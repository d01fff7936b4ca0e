"""The CPU's own work."""

ORDER = 6
