"""Set up the shell."""

ORDER = 6
