"""Record a job."""

ORDER = 1
