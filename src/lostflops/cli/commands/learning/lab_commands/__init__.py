"""What `lostflops lab` does: one file each."""
