"""What a recorded job's ranks wrote beside its traces: all steps, and which attempt wrote which file."""
