"""What the recording itself is worth."""
