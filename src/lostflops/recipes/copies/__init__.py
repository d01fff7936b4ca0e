"""What copies between host and device cost."""
