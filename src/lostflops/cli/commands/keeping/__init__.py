"""Keep and pass on recordings."""

ORDER = 3
