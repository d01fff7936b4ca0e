"""What is typed behind a command: which traces, ranges and recipes are meant, and what is wrong with it."""
