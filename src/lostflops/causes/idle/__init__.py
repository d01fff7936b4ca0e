"""What idle time is called, and in which steps and on which ranks it passes."""
