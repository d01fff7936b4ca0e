"""What a command puts out: files, text that is safe to show, and word of how far it is."""
