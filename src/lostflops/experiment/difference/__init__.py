"""Why one run is slower than another: the change of the step, down to kernels, and what else differs."""
