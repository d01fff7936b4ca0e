"""The whole loop for a job: record it, find the cause, try a safe remedy, prove it, keep it or undo it."""
