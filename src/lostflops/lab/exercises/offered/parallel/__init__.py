"""Exercises with a model that several ranks share: one file each."""
