"""What the GPU computes: kernels by name, family and precision, and what runs beside them."""
