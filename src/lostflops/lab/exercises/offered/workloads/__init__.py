"""Exercises with workloads beside training: one file each."""
