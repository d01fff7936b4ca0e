"""Where the time of pipeline stages goes, and what another schedule would make of it."""
