"""Communication."""

ORDER = 3
