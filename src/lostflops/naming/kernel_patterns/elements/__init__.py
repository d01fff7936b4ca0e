"""Kernels that go through elements or rows: the time is in reading and writing them."""
