"""PyTorch profiler traces to tables: `reader` says what it recognises and reads it with the others' help."""
