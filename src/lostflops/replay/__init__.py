"""What a change would gain: the dependency graph of a recorded job, run again with the change made."""
