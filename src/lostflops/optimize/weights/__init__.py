"""Weights that lie in host memory and come to the device layer by layer."""
