"""What counters and links of the machines say of a run."""
