"""Training's own questions: steps, loading, memory for the batch, recomputation, compilation, experts."""
