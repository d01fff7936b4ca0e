"""Pages on machines: links, measured bandwidths, and what a monitor saw."""
