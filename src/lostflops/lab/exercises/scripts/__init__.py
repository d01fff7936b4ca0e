"""What the exercises run, as processes of their own: torch and the standard library alone."""
