"""What the host does for the GPU: calls, launches, and the ranges that the code marks."""
