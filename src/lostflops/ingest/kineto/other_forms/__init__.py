"""Traces that are not as the PyTorch profiler writes them: written again by other programs, or theirs."""
