"""Starts the commands before and after a change in turns, and keeps what each start left."""
