"""What every rank did over time, in equal stretches: look here for when and where, not for how much."""
