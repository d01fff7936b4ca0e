"""What the GPU computes that need not be, or not so often."""
