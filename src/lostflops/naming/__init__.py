"""What a name means: kernels by family, operators, copies, and what the host did."""
