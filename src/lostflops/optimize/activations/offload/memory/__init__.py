"""Memory of the offload engine: what it holds on the host, and what is free on the device."""
