"""Compute that a job may do without: it is no loss of the ledger, and yet there to be saved."""
