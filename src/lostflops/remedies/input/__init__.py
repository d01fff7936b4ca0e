"""Input."""

ORDER = 1
