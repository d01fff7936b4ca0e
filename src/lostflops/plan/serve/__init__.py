"""Inference before it runs: memory of weights and cache, time to the first token and between tokens."""
