"""What is typed behind a command: which traces and recipes are meant, and what is wrong with it."""
