"""Recording with the user's own nsys: its switches, how it is put around ranks, and what came of it."""
