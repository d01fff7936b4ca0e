"""Runs the programs of all ranks: hosts, streams, and what ranks do together."""
