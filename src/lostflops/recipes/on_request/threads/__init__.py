"""What host threads did: calls of the system, states, sampled stacks, Python frames, and files."""
