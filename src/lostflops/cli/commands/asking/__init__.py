"""Ask where the time went."""

ORDER = 2
