"""Perfetto traces that lostflops wrote, read back as the tables that they were."""
