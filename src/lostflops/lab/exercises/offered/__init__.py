"""The exercises: one file each, found by being here."""
