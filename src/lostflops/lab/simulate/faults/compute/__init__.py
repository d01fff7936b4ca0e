"""Faults of what ranks compute, or on what."""
