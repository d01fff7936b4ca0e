"""Faults of the recording: the job itself is healthy."""
