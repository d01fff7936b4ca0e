"""What ranks do of their own beyond the others, in steps that keep them together."""
