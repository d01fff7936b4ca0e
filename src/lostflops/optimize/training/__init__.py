"""How a model trains: adapters, precisions, the optimizer on the host, and whether the loss still falls."""
