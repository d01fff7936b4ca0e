"""What a job computes and may do without."""
