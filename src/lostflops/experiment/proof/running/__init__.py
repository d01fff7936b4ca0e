"""Starts the commands before and after a change in pairs, and keeps what each start left."""
