"""What a notebook shows of runs, answers and findings, their charts, and notebooks as executed files."""
