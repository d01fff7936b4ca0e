"""When rows of several sources happened: their clocks, and times that cannot be true."""
