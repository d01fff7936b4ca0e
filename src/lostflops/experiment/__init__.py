"""Compare runs, hold them to a budget, and prove what a change gained."""
