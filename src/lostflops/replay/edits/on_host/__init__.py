"""What if the host did less, or waited less."""
