"""Questions that are answered when they are asked by name; the first page neither runs nor loads them."""
