"""Where the time of steps goes, and which steps count."""
