"""Recording on a Slurm cluster."""
