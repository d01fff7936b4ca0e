"""Simulated jobs, whose truth is known, hold the tables and the first page to it."""
