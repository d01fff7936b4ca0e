"""What findings are joined by, asked of a session: `gather`."""
