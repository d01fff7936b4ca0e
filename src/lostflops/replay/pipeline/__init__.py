"""A pipelined step: where its bubble comes from, and how long it would take with another schedule."""
