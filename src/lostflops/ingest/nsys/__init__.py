"""Nsight Systems exports and reports to tables: `reader` is the way in."""
