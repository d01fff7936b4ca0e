"""The GPU's work in more detail than its summary: sizes, spread, pace, order, and every row of it."""
