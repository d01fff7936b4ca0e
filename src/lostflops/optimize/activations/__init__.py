"""What autograd keeps between forward and backward: counted, computed again, or moved to the host."""
