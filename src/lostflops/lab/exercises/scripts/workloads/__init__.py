"""Small workloads beside training: a script each, which writes what is true of its run."""
