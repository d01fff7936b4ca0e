"""What each rank does in a step: the passes through its layers, and how gradients and weights are shared."""
