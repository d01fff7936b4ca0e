"""A training job before it runs: memory at its fullest, the time of a step, and what would make it fit."""
