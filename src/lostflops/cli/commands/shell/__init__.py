"""Set up the shell."""

ORDER = 5
