"""The first byte of a Perfetto trace, and of one that is gzipped."""

PACKET = 0x0A  # how each packet of a trace begins
GZIP = b"\x1f\x8b"
