"""Saved tensors wait in host memory: chosen, scheduled, moved, proved and reported."""
