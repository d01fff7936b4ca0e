"""How a job is spread over its ranks: which parallelism it uses, and how efficient that is."""
