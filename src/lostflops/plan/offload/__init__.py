"""Which saved tensors to keep, move to the host or compute again, decided from the profile of a step."""
