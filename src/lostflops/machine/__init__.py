"""What machines are, give and do: their links, what can be measured of those, and counters over time."""
