"""When the GPU idles, and why."""
