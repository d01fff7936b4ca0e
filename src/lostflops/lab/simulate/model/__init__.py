"""What a transformer's ranks compute: operators, their kernels, and how long those run."""
