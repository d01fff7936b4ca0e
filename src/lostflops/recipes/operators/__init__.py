"""Operators and modules: what the framework ran, how long, and how far from what the hardware can."""
