"""Small training jobs with one known fault each, and the same job without it."""
