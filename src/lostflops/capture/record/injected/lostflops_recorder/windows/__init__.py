"""The steps that are recorded in full: when, by which profiler, and what became of it."""
