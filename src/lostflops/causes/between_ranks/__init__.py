"""What ranks tell of each other: who is late among few, in which steps, and what communication costs."""
