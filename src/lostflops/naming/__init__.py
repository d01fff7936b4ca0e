"""What a name means: kernels by family, operators, copies, frameworks, and what the host did."""
