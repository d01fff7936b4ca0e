"""Kernels of matrix products, and what tells the precision of their arithmetic."""
