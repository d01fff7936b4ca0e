"""How the host feeds the GPU: what blocks it, how far it is ahead, and what CUDA graphs replay."""
