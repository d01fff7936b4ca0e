"""What steps tell of each other: in which of them the same kernels take longer."""
