"""Copies, memsets and migrations in more detail: sizes, bandwidth, and what makes the host wait."""
