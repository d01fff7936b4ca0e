"""Looks at a running job through its step logs: how fast it is, and which rank falls behind, since when."""
