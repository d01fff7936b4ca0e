"""What host threads did, of an Nsight Systems export: states, sampled stacks, libraries and files."""
