"""Faults of what hosts do beside training."""
