"""Know the hardware."""

ORDER = 4
