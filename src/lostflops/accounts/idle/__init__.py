"""Nothing runs on the GPU: one file per cause, or per few that belong together."""
