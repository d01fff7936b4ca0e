"""What fills device memory, when, and who asked for it; and what managed memory moves."""
