"""PyTorch's memory snapshots: what its CUDA allocator did, and what is alive."""
